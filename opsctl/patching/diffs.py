"""Unified diffs of sources: for people, and recorded as a patch set."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from ..errors import UsageError
from .sets import dump_yaml
from .site import Site
from .source import NotText, decode


def unified(path: str, old: bytes, new: bytes, before: str = "now", after: str = "patched") -> str:
    """A unified diff for people."""
    try:
        left, right = decode(old).text, decode(new).text
    except NotText:
        return f"{path} differs (binary)\n"
    return "".join(_diff_lines(left, right, f"{path}  ({before})", f"{path}  ({after})"))


def _diff_lines(old: str, new: str, before: str, after: str) -> list[str]:
    left, right = _lines(old), _lines(new)
    return [
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(left, right, before, after)
    ]


def _lines(text: str) -> list[str]:
    parts = text.split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def new_set(site: Site, shipped: dict[str, bytes], *, name: str, package: str, purpose: str) -> str:
    """The YAML of a set that records the edits of an environment: each changed file as a unified diff.

    ``shipped`` are the files as the package ships them (from its wheel), by path.
    """
    patches: list[dict[str, Any]] = []
    seen = site.observe(package, [])
    for path, now in site.read(package, sorted(shipped)).items():
        if now == shipped[path]:
            continue
        try:
            old, new = decode(shipped[path]).text, decode(now).text
        except NotText as exc:
            raise UsageError(f"{path} is no text: {exc}") from None
        # A blank line of context without its space: YAML then shows the diff as the lines that it has.
        diff = "".join("\n" if line == " \n" else line for line in _diff_lines(old, new, path, path))
        statements = [{"unified_diff": {"diff": diff}}]
        patches.append({"name": _patch_name(path, patches), "file": path, "statements": statements})
    if not patches:
        raise UsageError(f"no file of {package} differs from what was shipped", hint="edit the installed files first")
    values: dict[str, Any] = {"name": name, "package": package, "for": purpose}
    if seen["installed"]:
        values["versions"] = "==" + seen["installed"].split("+")[0]
    return dump_yaml({**values, "patches": patches})


def _patch_name(path: str, patches: Sequence[dict[str, Any]]) -> str:
    stem = path.rsplit("/", 1)[-1].removesuffix(".py").replace("_", "-")
    taken = {item["name"] for item in patches}
    return stem if stem not in taken else path.removesuffix(".py").replace("/", "-").replace("_", "-")
