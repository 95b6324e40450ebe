"""The reference page of the events, made from their types: ``python -m opsctl.ui.events_page``."""

from __future__ import annotations

import sys
from typing import Any

from ..events import VERSION
from ..schema_events import schema


def page() -> str:
    """The reference page of the events (docs/events.md), in Markdown."""
    made = "<!-- Made by `python -m opsctl.ui.events_page > docs/events.md`; do not edit. -->"
    out = [
        made,
        "",
        "# Events",
        "",
        f"`opsctl deploy --json` writes one JSON object a line to stdout; their version is {VERSION}. Fields may be",
        "added without a new version. `run_finished` is the last line of a run; an error before there is a run is one",
        "`error` line. Times are in seconds. `opsctl schema events` prints the JSON Schema.",
    ]
    definitions = schema()["$defs"]
    by_event = {d["properties"]["event"]["const"]: d for d in definitions.values() if "event" in d["properties"]}
    for name in schema()["discriminator"]["mapping"]:
        definition = by_event[name]
        out += ["", f"## {name}", "", *_described(definition)]
    out += ["", "# Parts of events"]
    for name, definition in definitions.items():
        if "event" not in definition["properties"]:
            out += ["", f"## Part {name}", "", *_described(definition)]
    return "\n".join(out) + "\n"


def _described(definition: dict[str, Any]) -> list[str]:
    required = set(definition.get("required", ()))
    rows = [
        f"| `{name}` | {_type(value)} | {'' if name in required else 'may be absent'} |"
        for name, value in definition["properties"].items()
        if name != "event"
    ]
    text = " ".join(definition.get("description", "").split())
    return [text, "", "| field | type | |", "|---|---|---|", *rows]


def _type(value: dict[str, Any]) -> str:
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#part-{name.lower()})"
    if "anyOf" in value:
        return " or ".join(_type(one) for one in value["anyOf"])
    if "enum" in value:
        return " ".join(f"`{one}`" for one in value["enum"])
    if value.get("type") == "array":
        return f"list of {_type(value['items'])}" if value.get("items") else "list"
    if value.get("type") == "object":
        inner = value.get("additionalProperties")
        return f"mapping to {_type(inner)}" if isinstance(inner, dict) and inner else "mapping"
    return str(value.get("type", "any"))


if __name__ == "__main__":
    sys.stdout.write(page())
