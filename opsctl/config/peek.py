"""A first look at a playbook, without its models: enough to connect while the rest is still being loaded."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from .source import Map, Seq, is_template
from .yaml import load_yaml


class Peek(NamedTuple):
    """``hosts`` are the patterns of all plays as far as they are plain text; ``document`` is the parsed file, which
    `load_playbook` takes so that it is not read twice."""

    hosts: tuple[str, ...]
    document: Any


def peek_plays(path: str | os.PathLike[str]) -> Peek:
    """The host patterns of the plays in ``path`` and the playbooks that it imports by plain name.

    Reads YAML only, and imports neither pydantic nor Jinja2. What is wrong with the plays is left to
    `load_playbook`; files that cannot be read or are no YAML raise as there.
    """
    document = load_yaml(path)
    return Peek(tuple(_hosts(document, os.path.dirname(os.fspath(path)), 0)), document)


def _hosts(document: Any, folder: str, depth: int) -> list[str]:
    found: list[str] = []
    for play in document if isinstance(document, Seq) else ():
        if not isinstance(play, Map):
            continue
        hosts = play.get("hosts")
        patterns = hosts if isinstance(hosts, list) else [hosts]
        found += [str(one) for one in patterns if isinstance(one, str) and not is_template(one)]
        other = play.get("import_playbook", play.get("ansible.builtin.import_playbook"))
        if isinstance(other, str) and not is_template(other) and depth < 8:
            path = os.path.join(folder, other)
            if os.path.isfile(path):
                found += _hosts(load_yaml(path), os.path.dirname(path), depth + 1)
    return found
