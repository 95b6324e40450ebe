"""Inventories in Ansible's YAML: groups with `hosts`, `children` and `vars`."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError, Span
from .draft import Draft, vars_of
from .source import Map, did_you_mean, key_span, span_of, value_span

_KEYS = ("hosts", "children", "vars")


def parse_groups(document: Any, file: str, draft: Draft) -> None:
    """Read a YAML inventory into ``draft``. Raises ConfigError with its place."""
    if document is None:
        return
    top = span_of(document, Span(file, 1)) or Span(file, 1)
    if not isinstance(document, Map):
        raise ConfigError(
            "an inventory is a mapping of groups", span=top, hint="begin with `all:` and `hosts:` below it"
        )
    if "plugin" in document and isinstance(document["plugin"], str):
        raise ConfigError(
            f"the inventory plugin `{document['plugin']}` is not supported",
            span=key_span(document, "plugin"),
            hint="use an executable that prints the inventory as JSON (`ansible-inventory --list` does)",
        )
    if document and not any(isinstance(value, Map) or value is None for value in document.values()):
        first = next(iter(document))
        raise ConfigError(
            "an inventory is a mapping of groups",
            span=value_span(document, first),
            hint="begin with `all:` and `hosts:` below it",
        )
    if "hosts" in document and "all" not in document:
        raise ConfigError(
            "`hosts` stands where the name of a group is expected",
            span=key_span(document, "hosts"),
            hint="put `all:` above it and indent the rest",
        )
    for name in document:
        _group(document, name, draft)


def _group(holder: Map, name: Any, draft: Draft) -> None:
    span, place = key_span(holder, name) or holder.span, value_span(holder, name) or holder.span
    value = holder[name]
    name = str(name)
    draft.group(name, span)
    if value is None:
        return
    if not isinstance(value, Map):
        raise ConfigError(
            f"the group `{name}` must be a mapping", span=place, hint="it holds `hosts`, `children` and `vars`"
        )
    for key in value:
        if key not in _KEYS:
            raise ConfigError(
                f"a group has no `{key}`",
                span=key_span(value, key),
                hint=did_you_mean(str(key), _KEYS)
                or f"hosts of `{name}` stand below `hosts:`, groups below `children:`, variables below `vars:`",
            )
    if "vars" in value:
        draft.add_vars(
            f"group `{name}`", vars_of(value["vars"], "`vars`", value_span(value, "vars") or place), group=name
        )
    _hosts(value, name, draft)
    children = value.get("children")
    if children is None:
        return
    if not isinstance(children, Map):
        raise ConfigError(
            "`children` must be a mapping of groups",
            span=value_span(value, "children"),
            hint="write `name:` one a line, without `- `",
        )
    for child in children:
        draft.child(name, str(child), key_span(children, child) or place)
        _group(children, child, draft)


def _hosts(group: Map, name: str, draft: Draft) -> None:
    hosts = group.get("hosts")
    place = value_span(group, "hosts") or group.span
    if hosts is None:
        return
    if isinstance(hosts, str):
        draft.add_hosts(hosts, name, place)
        return
    if not isinstance(hosts, Map):
        raise ConfigError(
            "`hosts` must be a mapping of hosts",
            span=place,
            hint="write `name:` one a line, without `- `; variables of a host stand below it",
        )
    for host, values in hosts.items():
        at = key_span(hosts, host) or place
        found = vars_of(values, f"what stands below the host `{host}`", value_span(hosts, host) or at)
        for one in draft.add_hosts(str(host), name, at):
            draft.add_vars(f"host `{one}`", found, host=one)
