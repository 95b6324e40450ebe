"""`opsctl init [DIR]`."""

from __future__ import annotations

import os
import sys
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .. import shipped
from ..errors import UsageError

if TYPE_CHECKING:
    from importlib.abc import Traversable


@click.command("init", short_help="Start a project here")
@click.argument("directory", metavar="[DIR]", default=".", type=click.Path(file_okay=False))
def command(directory: str) -> int:
    """Write a small project into DIR (default: here): inventory/, playbooks/, templates/.

    It works at once, on this machine; playbooks/vllm.yml is for a node with a GPU. Nothing that exists is overwritten.
    """
    content = _content(files("opsctl") / "data" / "init")
    content["playbooks/vllm.yml"] = shipped.playbook("vllm.yml").read_text(encoding="utf-8")
    root = Path(directory)
    taken = [name for name in content if os.path.lexists(root / name)]
    if taken:
        raise UsageError(
            f"`{root / taken[0]}` exists already, so nothing was written",
            hint="give another directory: `opsctl init DIR`",
        )
    try:
        for name, text in content.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "x", encoding="utf-8") as file:
                file.write(text)
    except OSError as exc:
        raise UsageError(f"`{exc.filename}` cannot be written", cause=exc.strerror) from None
    playbook = os.path.join("playbooks", "site.yml")
    go = "" if directory == "." else f"cd {directory} && "
    sys.stderr.write("".join(f"wrote {root / name}\n" for name in content))
    sys.stderr.write(f"\nnext: `{go}opsctl plan {playbook}`, then `opsctl deploy {playbook}`\n")
    return 0


def _content(folder: Traversable, prefix: str = "") -> dict[str, str]:
    """Path in the project -> text, for everything below ``folder``."""
    out: dict[str, str] = {}
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        name = f"{prefix}{entry.name}"
        if entry.is_dir():
            out.update(_content(entry, name + "/"))
        elif not entry.name.startswith("."):
            out[name] = entry.read_text(encoding="utf-8")
    return out
