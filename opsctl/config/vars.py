"""Variables: which layers there are, in which order, and where a value came from.

The order is Ansible's for what exists here (contracts 2), lowest first. What the inventory's files say of groups comes
first, then `group_vars/` for `all`, then `group_vars/` for other groups, each beside the inventory, then beside the
playbook; then the host: the files, `host_vars/` beside the inventory, then beside the playbook.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import ConfigError, InputUnreadable, Span, UsageError
from ..model import Host, Inventory, Play
from .draft import LoadedInventory
from .inventory import load_vars_file
from .patterns import LOCAL
from .source import Map, Text, is_template, span_of, value_span
from .yaml import load_yaml

#: The names of the layers, lowest first; groups and hosts stand for one layer each group and source.
ORDER = (
    "defaults",
    "group",
    "host",
    "facts",
    "play vars",
    "vars_files",
    "block vars",
    "task vars",
    "set_fact and register",
    "-e",
    "magic",
)

#: Variables that opsctl itself sets; nothing can override them.
MAGIC: dict[str, str] = {
    "inventory_hostname": "the host's name in the inventory",
    "inventory_hostname_short": "the same up to the first dot",
    "inventory_dir": "the directory of the inventory source that named the host",
    "inventory_file": "that source",
    "group_names": "the groups of the host, sorted, without `all`",
    "groups": "all groups with the names of their hosts",
    "hostvars": "the variables of every host",
    "playbook_dir": "the directory of the playbook",
    "play_hosts": "the hosts of this play that have not failed (`ansible_play_hosts` too)",
    "ansible_play_hosts": "the same",
    "ansible_play_hosts_all": "all hosts of this play",
    "ansible_play_batch": "the hosts of this `serial` batch",
    "ansible_play_name": "the name of this play, or its hosts as written",
    "ansible_check_mode": "whether this is `--check`",
    "ansible_diff_mode": "whether this is `--diff`",
    "ansible_run_tags": "what `--tags` says; `['all']` without",
    "ansible_skip_tags": "what `--skip-tags` says",
    "ansible_limit": "what `--limit` says; undefined without",
    "ansible_forks": "what `--forks` says",
    "ansible_verbosity": "how many `-v` there are",
    "ansible_playbook_python": "the Python that opsctl runs on",
    "opsctl_rehearse": "whether this is `--rehearse`",
    "opsctl_version": "the version of opsctl",
}


_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")


class Layer(NamedTuple):
    """Variables of one precedence; ``name`` is what `--explain` shows."""

    name: str
    vars: Mapping[str, Any]


class Origin(NamedTuple):
    """One place that gives a variable a value. The last of a list of them is the winner."""

    layer: str
    value: Any
    span: Span | None


def layers_for(inventory: Inventory, host: Host) -> list[Layer]:
    """The layers of variables that the inventory gives ``host``, lowest first: all that lies below the facts."""
    out = [Layer("defaults", {"ansible_host": host.name})]
    if isinstance(inventory, LoadedInventory) and host.name in inventory.hosts:
        out += [Layer(layer.name, layer.vars) for layer in inventory.layers(host.name)]
    else:
        out.append(Layer(f"host `{host.name}`", host.vars))
    return out


def origins(layers: Iterable[Layer], name: str) -> list[Origin]:
    """Every layer that has the variable ``name``, lowest first: the last one wins."""
    return [
        Origin(layer.name, layer.vars[name], value_span(layer.vars, name, span_of(layer.vars[name])))
        for layer in layers
        if name in layer.vars
    ]


def explain(
    inventory: Inventory,
    host: Host,
    name: str,
    *,
    extra: Mapping[str, Any] | None = None,
    magic: Mapping[str, Any] | None = None,
) -> list[Origin]:
    """What `opsctl inventory HOST --explain NAME` shows: all places of the inventory and the command line."""
    above = [Layer(layer, values) for layer, values in (("-e", extra), ("magic", magic)) if values]
    return origins([*layers_for(inventory, host), *above], name)


def groups_of(inventory: Inventory) -> dict[str, list[str]]:
    """`groups`: every group with the names of its hosts, those of groups below it included."""
    from .patterns import select

    return {
        name: [host.name for host in select(inventory, name)] if name in inventory.groups else []
        for name in inventory.groups
    }


def common_vars(inventory: Inventory) -> dict[str, Any]:
    """The inventory's variables that every host has with the same value: known before any host is asked."""
    hosts = iter(inventory.hosts.values())
    first = next(hosts, None)
    out = dict(first.vars) if first is not None else {}
    for host in hosts:
        out = {name: value for name, value in out.items() if name in host.vars and host.vars[name] == value}
    return out


def run_vars(
    *,
    check: bool = False,
    diff: bool = False,
    rehearse: bool = False,
    tags: Iterable[str] = (),
    skip_tags: Iterable[str] = (),
    limit: Sequence[str] = (),
    forks: int = 32,
    verbosity: int = 0,
) -> dict[str, Any]:
    """Those of `MAGIC` that the command line decides."""
    out: dict[str, Any] = {
        "ansible_check_mode": check,
        "ansible_diff_mode": diff,
        "ansible_run_tags": sorted(tags) or ["all"],
        "ansible_skip_tags": sorted(skip_tags),
        "ansible_forks": forks,
        "ansible_verbosity": max(0, verbosity),
        "ansible_playbook_python": sys.executable,
        "opsctl_rehearse": rehearse,
    }
    if limit:
        out["ansible_limit"] = ",".join(limit)
    return out


def magic_vars(
    inventory: Inventory,
    host: Host,
    *,
    groups: Mapping[str, list[str]] | None = None,
    playbook: str | None = None,
    play: Play | None = None,
    play_hosts: Sequence[str] = (),
    all_hosts: Sequence[str] | None = None,
    batch: Sequence[str] | None = None,
    run: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The variables of `MAGIC`, except `hostvars`, which the planner adds. ``groups`` is `groups_of`, and ``run`` what
    `run_vars` gives, once a run."""
    from .. import __version__

    source = inventory.origins.get(host.name, "") if isinstance(inventory, LoadedInventory) else ""
    out: dict[str, Any] = {
        "inventory_hostname": host.name,
        "inventory_hostname_short": host.name if host.name in LOCAL else host.name.split(".", 1)[0],
        "group_names": list(host.groups),
        "groups": dict(groups if groups is not None else groups_of(inventory)),
        "play_hosts": list(play_hosts),
        "ansible_play_hosts": list(play_hosts),
        "ansible_play_hosts_all": list(play_hosts if all_hosts is None else all_hosts),
        "ansible_play_batch": list(play_hosts if batch is None else batch),
        "opsctl_version": __version__,
        **(run_vars() if run is None else run),
    }
    if source and os.path.exists(source):
        out["inventory_file"] = os.path.abspath(source)
        out["inventory_dir"] = os.path.dirname(os.path.abspath(source))
    if playbook is not None:
        out["playbook_dir"] = os.path.dirname(os.path.abspath(playbook))
    if play is not None and not is_template(play.name or play.hosts):
        shown = play.name or play.hosts
        out["ansible_play_name"] = shown if isinstance(shown, str) else ",".join(map(str, shown))
    return out


def load_vars_files(play: Play, playbook: str, render: Callable[[Any], Any] | None = None) -> list[tuple[str, Map]]:
    """The play's `vars_files`, each as (name, variables). ``render`` evaluates names that hold templates.

    Names are relative to the file that the play stands in. ConfigError at the name if a file is not there.
    """
    out = []
    for raw in play.vars_files:
        span = span_of(raw, play.span)
        name = raw
        if is_template(raw):
            if render is None:
                raise ConfigError("the name of this file cannot be evaluated here", span=span)
            name = render(raw)
        near = os.path.dirname(span.file) if span is not None else os.path.dirname(playbook)
        path = os.path.join(near, os.path.expanduser(str(name)))
        if not os.path.isfile(path):
            path = os.path.join(os.path.dirname(playbook), os.path.expanduser(str(name)))
        try:
            out.append((str(name), load_vars_file(path)))
        except InputUnreadable as error:
            raise ConfigError(
                f"`vars_files`: the file `{name}` cannot be read",
                span=span,
                cause=error.cause,
                hint="the name is relative to the playbook",
            ) from None
    return out


def parse_extra(items: Sequence[str]) -> Map:
    """The variables of all `-e` options, the last one winning: `key=value ...`, `{json or yaml}`, `@file`.

    Values of `key=value` are strings, as in Ansible; JSON keeps its types. Raises UsageError or ConfigError.
    """
    out = Map(Span("-e", 1))
    for item in items:
        text = item.strip()
        if text.startswith("@"):
            found = load_vars_file(os.path.expanduser(text[1:]))
        elif text[:1] in ("{", "["):
            found = _inline(text)
        else:
            found = _pairs(text)
        for key, value in found.items():
            out.put(key, value, found.keys_at[key], found.values_at[key])
    return out


def _inline(text: str) -> Map:
    # JSON escapes characters beyond the first plane as two halves, which YAML does not know.
    text = _PAIR.sub(lambda found: json.loads(f'"{found.group()}"'), text)
    try:
        value = load_yaml(text=text, file="-e")
    except ConfigError as error:
        raise UsageError(f"-e: {error.what}", cause=f"in `{_short(text)}`", hint=error.hint) from None
    if not isinstance(value, Map) or not all(isinstance(key, str) and key.isidentifier() for key in value):
        raise UsageError(
            f"-e: `{_short(text)}` is no mapping of variables", hint="""write -e '{"name": "value"}' or -e name=value"""
        )
    return value


def _pairs(text: str) -> Map:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"-e: the quotes in `{_short(text)}` do not match", cause=str(error)) from None
    span = Span("-e", 1)
    out = Map(span)
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            hint = "write -e name=value, -e '{json}' or -e @file"
            if os.path.isfile(word):
                hint = f"use @{word} to read a file"
            raise UsageError(f"-e: `{_short(word)}` is no name=value", hint=hint)
        out.put(name, Text(value, span), span, span)
    if not words:
        raise UsageError("-e: nothing is given", hint="write -e name=value, -e '{json}' or -e @file")
    return out


def _short(text: str) -> str:
    return text if len(text) <= 50 else text[:47] + "..."
