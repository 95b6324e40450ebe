"""JSON Schemas of what users write, made from the models: for editors with a YAML language server."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from .connection import SUPPORTED
from .keywords import (
    BlockWords,
    HandlerWords,
    ImportPlaybookWords,
    IncludeWords,
    LoopControlWords,
    PlayWords,
    TaskWords,
)

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_TEMPLATE = {"type": "string", "pattern": "\\{\\{|\\{%"}
#: What an argument of a type (`Kind.types`) takes besides its own JSON type.
_ALSO: dict[str, list[dict[str, Any]]] = {
    "bool": [{"enum": ["yes", "no", "on", "off"]}],
    "mode": [{"type": "integer"}],  # editors may read 0644 as a number
    "list": [{"type": "string"}],
    "ints": [{"type": ["string", "integer"]}],
    "int": [{"type": "string", "pattern": "^-?[0-9]+$"}],
    "float": [{"type": "string", "pattern": "^-?[0-9.]+$"}],
    "str": [{"type": "number"}],
    "path": [{"type": "number"}],
}
_ANY_ARGS = {"type": ["object", "string", "null"]}
_TASK_LISTS = ("tasks", "pre_tasks", "post_tasks", "block", "rescue", "always")


def playbook() -> dict[str, Any]:
    """The schema of a playbook, with the arguments of every task kind."""
    kinds = _kinds()
    definitions: dict[str, Any] = {
        "Play": _object(PlayWords, required=["hosts"]),
        "ImportPlaybook": _object(ImportPlaybookWords, required=["import_playbook"]),
        "Block": _object(BlockWords, required=["block"]),
        "Task": _task(TaskWords, kinds),
        "Handler": _task(HandlerWords, kinds),
        "IncludeTasks": _include(),
        "LoopControl": _object(LoopControlWords),
        "TaskOrBlock": {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in ("Task", "Block", "IncludeTasks")]},
        "HandlerOrInclude": {"anyOf": [{"$ref": "#/$defs/Handler"}, {"$ref": "#/$defs/IncludeTasks"}]},
        **{f"args.{name}": schema for name, schema in kinds.items()},
    }
    return {
        "$schema": _DRAFT,
        "title": "opsctl playbook",
        "type": "array",
        "items": {"anyOf": [{"$ref": "#/$defs/Play"}, {"$ref": "#/$defs/ImportPlaybook"}]},
        "$defs": definitions,
    }


def inventory() -> dict[str, Any]:
    """The schema of a YAML inventory."""
    variables = {
        "type": ["object", "null"],
        "properties": {name: {"description": text} for name, text in SUPPORTED.items()},
    }
    group = {
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": {
            "hosts": {
                "type": ["object", "string", "null"],
                "additionalProperties": {"$ref": "#/$defs/Variables"},
                "description": "Hosts, with their variables below them; `web[01:10]` is a range.",
            },
            "children": {
                "type": ["object", "null"],
                "additionalProperties": {"$ref": "#/$defs/Group"},
                "description": "Groups that are part of this one.",
            },
            "vars": {"$ref": "#/$defs/Variables"},
        },
    }
    return {
        "$schema": _DRAFT,
        "title": "opsctl inventory",
        "type": ["object", "null"],
        "additionalProperties": {"$ref": "#/$defs/Group"},
        "$defs": {"Group": group, "Variables": variables},
    }


def _kinds() -> dict[str, Any]:
    """The schema of each task kind's arguments."""
    from ..tasks import kinds

    out: dict[str, Any] = {}
    for name, kind in kinds().items():
        given = kind.model.model_json_schema()
        properties = {}
        for field, schema in given.get("properties", {}).items():
            schema.pop("title", None)
            aliases = schema.pop("aliases", [])
            described = {key: schema.pop(key) for key in ("description", "default") if key in schema}
            word = kind.types.get(field)
            also = _ALSO.get(word, []) if isinstance(word, str) else []
            properties[field] = {**described, "anyOf": [schema, *also, _TEMPLATE]} if schema else described
            for alias in aliases:
                properties[alias] = {"description": f"the same as `{field}`"}
        shape: dict[str, Any] = {"type": "object", "properties": properties}
        if not kind.any_name:
            shape["additionalProperties"] = False
        if "$defs" in given:
            shape["$defs"] = given["$defs"]
        out[name] = {"description": kind.doc.strip().split("\n\n")[0], "anyOf": [shape, {"type": ["string", "null"]}]}
    return out


def _object(model: type[BaseModel], required: list[str] | None = None) -> dict[str, Any]:
    given = model.model_json_schema()
    properties = given.get("properties", {})
    for name, schema in properties.items():
        schema.pop("title", None)
        schema.pop("default", None)
        if name in _TASK_LISTS:
            schema["items"] = {"$ref": "#/$defs/TaskOrBlock"}
        elif name == "handlers":
            schema["items"] = {"$ref": "#/$defs/HandlerOrInclude"}
        elif name == "loop_control":
            properties[name] = {"$ref": "#/$defs/LoopControl", "description": schema.get("description", "")}
    out: dict[str, Any] = {
        "type": "object",
        "description": given.get("description", ""),
        "properties": properties,
        "additionalProperties": False,
    }
    if required:
        out["required"] = required
    return out


def _task(model: type[BaseModel], kinds: dict[str, Any]) -> dict[str, Any]:
    out = _object(model)
    out["properties"].update({name: {"$ref": f"#/$defs/args.{name}"} for name in kinds})
    out["properties"].update(
        {
            "meta": {"enum": ["flush_handlers", "noop", "end_play", "end_host"]},
            "action": _ANY_ARGS,
            "local_action": _ANY_ARGS,
            "with_items": {},
            "with_list": {},
            "with_dict": {},
        }
    )
    out["patternProperties"] = {"^ansible\\.(builtin|legacy)\\.": _ANY_ARGS}
    return out


def _include() -> dict[str, Any]:
    out = _object(IncludeWords)
    for name in ("include_tasks", "import_tasks"):
        out["properties"][name] = {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "required": ["file"],
                    "additionalProperties": False,
                    "properties": {"file": {"type": "string"}, "apply": {"type": "object"}},
                },
            ],
            "description": "A file of tasks; its name must be known before the play.",
        }
    out["patternProperties"] = {"^ansible\\.(builtin|legacy)\\.(include|import)_tasks$": {}}
    out["anyOf"] = [
        {"required": ["include_tasks"]},
        {"required": ["import_tasks"]},
        {"patternProperties": {"^ansible\\.": {}}, "minProperties": 1},
    ]
    return out
