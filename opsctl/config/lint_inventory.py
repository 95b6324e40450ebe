"""Findings about a project, and those about its inventory."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError, OpsError, Span
from .connection import check_host, check_variables
from .draft import LoadedInventory
from .inventory import load_inventory
from .source import Text, did_you_mean, value_span

_YES_NO = frozenset(("yes", "no", "on", "off"))


@dataclass(frozen=True)
class Problem:
    """One finding. ``severity`` is ``error`` or ``warning``."""

    severity: str
    error: OpsError

    def as_dict(self) -> dict[str, Any]:
        """The finding as JSON values."""
        return {"severity": self.severity, **self.error.as_dict()}


def errors_of(error: OpsError) -> list[Problem]:
    """The error and those that it holds (`ConfigError.also`), each on its own."""
    if not isinstance(error, ConfigError):
        return [Problem("error", error)]
    alone = copy.copy(error)
    alone.also = ()
    return [Problem("error", alone), *(problem for one in error.also for problem in errors_of(one))]


def warning(what: str, span: Span | None, hint: str | None = None, cause: str | None = None) -> Problem:
    return Problem("warning", ConfigError(what, span=span, hint=hint, cause=cause))


def lint_inventory(sources: Sequence[str], folder: str | None, found: list[Problem]) -> LoadedInventory | None:
    if not sources:
        return None
    try:
        inventory = load_inventory(sources, playbook_dir=folder)
    except OpsError as error:
        found += errors_of(error)
        return None
    layers = [
        layer for layers in (*inventory.group_layers.values(), *inventory.host_layers.values()) for layer in layers
    ]
    for layer in layers:
        found += [Problem("error", error) for error in check_variables(layer.vars)]
        found += plain_words(layer.vars)
    for host in inventory.hosts.values():
        found += [problem for error in check_host(host) for problem in errors_of(error)]
    for place in dict.fromkeys((*inventory.folders, *([folder] if folder is not None else []))):
        found += _orphans(place, inventory)
    return inventory


def _orphans(folder: str, inventory: LoadedInventory) -> Iterator[Problem]:
    """Files in group_vars and host_vars that belong to nothing."""
    for kind, names in (("group", inventory.groups), ("host", inventory.hosts)):
        base = os.path.join(folder, f"{kind}_vars")
        if not os.path.isdir(base):
            continue
        for entry in sorted(os.listdir(base)):
            stem = entry
            for ending in (".yml", ".yaml", ".json"):
                stem = stem.removesuffix(ending)
            if not entry.startswith(".") and entry not in names and stem not in names:
                yield warning(
                    f"there is no {kind} `{stem}`, so this file is not used",
                    Span(os.path.join(base, entry), 1),
                    did_you_mean(stem, names),
                )


def plain_words(values: Any) -> Iterator[Problem]:
    """`yes` and `no` without quotes: booleans to Ansible, strings here (YAML 1.2)."""
    items: Iterable[Any] = values.items() if isinstance(values, dict) else enumerate(values)
    for key, value in items:
        if isinstance(value, Text) and value.style == "" and value.lower() in _YES_NO:
            word = "true" if value.lower() in ("yes", "on") else "false"
            yield warning(
                f"`{value}` is a string here, not a boolean",
                value_span(values, key, value.span),
                f'write `{word}` for a boolean, or quote it: "{value}"',
                "YAML 1.2 knows only true and false; Ansible reads YAML 1.1",
            )
        elif isinstance(value, (dict, list)):
            yield from plain_words(value)
