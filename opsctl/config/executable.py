"""Inventories printed by programs: Ansible's JSON (`--list`, `_meta.hostvars`, `--host NAME`)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError, InputUnreadable, Span
from .draft import Draft
from .source import Map, Seq, Text

#: Seconds that the program may take; clouds are slow, but not that slow.
TIMEOUT = 120.0


def run_inventory(path: str, draft: Draft) -> None:
    """Run the program and read what it prints into ``draft``."""
    span = Span(path, 1)
    groups = _run(path, ["--list"], span)
    meta = groups.pop("_meta", None)
    hostvars = meta.get("hostvars") if isinstance(meta, dict) else None
    for name, value in groups.items():
        _group(name, value, path, span, draft)
    if isinstance(hostvars, dict):
        known: Mapping[str, Any] = hostvars
    else:
        known = {host: _run(path, ["--host", host], span) for host in list(draft.hosts) if draft.origins[host] == path}
    for host, values in known.items():
        if not isinstance(values, dict):
            raise _wrong(path, f"the variables of `{host}` are no object", span)
        draft.add_hosts(host, None, span)
        draft.add_vars(f"host `{host}`", _placed(values, span), host=host)


def _group(name: str, value: Any, path: str, span: Span, draft: Draft) -> None:
    draft.group(name, span)
    if isinstance(value, list):
        value = {"hosts": value}
    if not isinstance(value, dict):
        raise _wrong(path, f"the group `{name}` is neither an object nor a list of hosts", span)
    for key, kind in (("hosts", (list, dict)), ("children", (list, dict)), ("vars", dict)):
        if not isinstance(value.get(key, kind() if isinstance(kind, type) else []), kind):
            raise _wrong(path, f"`{key}` of the group `{name}` has the wrong type", span)
    for host in value.get("hosts", ()):
        draft.add_hosts(str(host), name, span)
    for child in value.get("children", ()):
        draft.child(name, str(child), span)
    draft.add_vars(f"group `{name}`", _placed(value.get("vars", {}), span), group=name)


def _run(path: str, arguments: list[str], span: Span) -> dict[str, Any]:
    shown = " ".join([path, *arguments])
    try:
        done = subprocess.run(
            [os.path.abspath(path), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputUnreadable(f"the inventory `{shown}` did not end within {TIMEOUT:.0f} s") from None
    except OSError as error:
        raise InputUnreadable(
            f"the inventory `{shown}` cannot be run",
            cause=error.strerror or str(error),
            hint="check its first line, or remove its x bit if it is no program",
        ) from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise InputUnreadable(
            f"the inventory `{shown}` failed with exit {done.returncode}",
            cause=said[-1] if said else None,
            hint=f"run it by hand: {shown}",
        )
    try:
        value = json.loads(done.stdout)
    except (ValueError, RecursionError) as error:
        raise _wrong(path, f"`{shown}` did not print JSON: {error}", span) from None
    if not isinstance(value, dict):
        raise _wrong(path, f"`{shown}` printed no JSON object", span)
    return value


def _wrong(path: str, cause: str, span: Span) -> ConfigError:
    return ConfigError(
        f"the output of the inventory `{os.path.basename(path)}` is not understood",
        span=span,
        cause=cause,
        hint="it is Ansible's JSON: groups with `hosts`, `children`, `vars`, and `_meta.hostvars`",
    )


def _placed(value: Any, span: Span) -> Any:
    """JSON values as values with a place: the program's first line."""
    if isinstance(value, str):
        return Text(value, span)
    if isinstance(value, dict):
        out = Map(span)
        for key, item in value.items():
            out.put(key, _placed(item, span), span, span)
        return out
    if isinstance(value, list):
        return Seq(span, [_placed(item, span) for item in value])
    return value
