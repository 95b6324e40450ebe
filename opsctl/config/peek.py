"""A first look at a playbook, without its models: enough to connect while the rest is still being loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from .connection import KEYWORDS
from .source import Map, Seq, is_template
from .yaml import load_yaml


class Peek(NamedTuple):
    """``hosts`` are the patterns of all plays as far as they are plain text; ``document`` is the parsed file, which
    `load_playbook` takes so that it is not read twice."""

    hosts: tuple[str, ...]
    document: Any
    #: Whether the first play leaves it to the inventory how its hosts are reached.
    plain: bool = True


def peek_plays(path: str | os.PathLike[str]) -> Peek:
    """The host patterns of the plays in ``path`` and the playbooks that it imports by plain name.

    Reads YAML only, and imports neither pydantic nor Jinja2. What is wrong with the plays is left to
    `load_playbook`; files that cannot be read or are no YAML raise as there.
    """
    document = load_yaml(path)
    plays = list(_plays(document, os.path.dirname(os.fspath(path)), 0))
    hosts = [str(one) for play in plays for one in _patterns(play)]
    return Peek(tuple(hosts), document, not plays or _plain(plays[0]))


def _plays(document: Any, folder: str, depth: int) -> Iterator[Map]:
    for play in document if isinstance(document, Seq) else ():
        if not isinstance(play, Map):
            continue
        if "hosts" in play:
            yield play
        other = play.get("import_playbook", play.get("ansible.builtin.import_playbook"))
        if isinstance(other, str) and not is_template(other) and depth < 8:
            path = os.path.join(folder, other)
            if os.path.isfile(path):
                yield from _plays(load_yaml(path), os.path.dirname(path), depth + 1)


def _patterns(play: Map) -> list[str]:
    hosts = play["hosts"]
    return [one for one in (hosts if isinstance(hosts, list) else [hosts]) if isinstance(one, str) and not is_template(one)]


def _plain(play: Map) -> bool:
    given = play.get("vars")
    names = given if isinstance(given, dict) else ()
    return not any(word in play for word in KEYWORDS) and not any(str(name).startswith("ansible_") for name in names)
