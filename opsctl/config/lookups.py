"""Lookups: values that the controller reads for an expression. What they read is data and never a template."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..agent.values import ExprError


class LookupContext(NamedTuple):
    """What lookups may see: the playbook's folder and the environment."""

    playbook_dir: str
    environ: Mapping[str, str]

    def find(self, name: str) -> str | None:
        """A controller file: absolute, or relative to the playbook's folder or its `files/`.

        Whatever can be read is one: a pipe of the shell's (`<(vault read ...)`) too.
        """
        path = os.path.expanduser(name)
        for base in (self.playbook_dir, os.path.join(self.playbook_dir, "files")):
            there = os.path.join(base, path)
            if os.path.exists(there) and not os.path.isdir(there):
                return there
        return None


#: Lookups of Ansible's that do not exist here -> what to use instead.
REFUSED_LOOKUPS: dict[str, str] = {
    "pipe": "run the command in a task with `delegate_to: localhost` and `register` it; secrets: `!secret cmd:...`",
    "lines": "run the command in a task with `delegate_to: localhost` and `register` it",
    "password": "give the password as `!secret env:NAME` or `!secret file:PATH`",
    "template": "use the `template` task kind",
    "url": "use a `uri` task with `register`",
    "fileglob": "name the files in a list, or copy their directory",
    "filetree": "copy the directory: `copy` takes one",
    "csvfile": "keep the values in a YAML file and name it in `vars_files`",
    "ini": "keep the values in a YAML file and name it in `vars_files`",
    "dict": "use the filter: `name | dict2items`",
    "items": "use the list itself",
    "list": "use the list itself",
    "sequence": "use `range(1, 5) | list`",
    "together": "use the filter: `a | zip(b) | list`",
    "nested": "use the filter: `a | product(b) | list`",
    "subelements": "use the filter: `users | subelements('keys')`",
    "inventory_hostnames": "use `groups['name']`",
    "random_choice": "use the filter: `list | random`",
    "config": "opsctl has no configuration of Ansible's",
    "unvault": "use `!secret cmd:ansible-vault view FILE`",
    "varnames": "name the variables, or keep them in one mapping",
    "hashi_vault": "use `!secret cmd:vault kv get ...`",
    "community.hashi_vault.hashi_vault": "use `!secret cmd:vault kv get ...`",
}


class Lookup:
    """`lookup(name, term...)` and, with ``as_list``, `query(name, term...)`."""

    def __init__(self, context: LookupContext, *, as_list: bool) -> None:
        self.context = context
        self.as_list = as_list

    @property
    def jinja_pass_arg(self) -> Any:
        """Marks the object for Jinja2: it wants the context. Not a constant, so that Jinja2 stays unimported."""
        import jinja2

        return jinja2.pass_context(lambda context: None).jinja_pass_arg  # type: ignore[attr-defined]

    def __call__(self, context: Any, name: str, *terms: Any, **options: Any) -> Any:
        short = str(name).removeprefix("ansible.builtin.")
        found = _LOOKUPS.get(short)
        if found is None:
            hint = REFUSED_LOOKUPS.get(short, f"there are the lookups {', '.join(sorted(_LOOKUPS))}")
            raise ExprError(f"the lookup `{short}` is not supported", hint=hint)
        wantlist = bool(options.pop("wantlist", self.as_list))
        options.pop("errors", None)
        values = found(self.context, context, terms, options)
        if wantlist:
            return values
        if len(values) == 1:
            return values[0]
        return ",".join(str(value) for value in values) if all(isinstance(v, str) for v in values) else values


def _env(at: LookupContext, context: Any, terms: tuple[Any, ...], options: dict[str, Any]) -> list[Any]:
    default = options.pop("default", "")
    _no_more("env", options)
    return [at.environ.get(str(term), default) for term in terms]


def _file(at: LookupContext, context: Any, terms: tuple[Any, ...], options: dict[str, Any]) -> list[Any]:
    rstrip, lstrip = options.pop("rstrip", True), options.pop("lstrip", False)
    _no_more("file", options)
    out = []
    for term in terms:
        path = at.find(str(term))
        if path is None:
            raise ExprError(
                f"lookup `file`: `{term}` does not exist",
                hint=f"it is searched in {at.playbook_dir or '.'} and its files/",
            )
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise ExprError(f"lookup `file`: {path} cannot be read: {error}") from None
        text = text.rstrip() if rstrip else text
        out.append(text.lstrip() if lstrip else text)
    return out


def _vars(at: LookupContext, context: Any, terms: tuple[Any, ...], options: dict[str, Any]) -> list[Any]:
    import jinja2
    from jinja2.utils import missing

    has_default, default = "default" in options, options.pop("default", None)
    _no_more("vars", options)
    out = []
    for term in terms:
        value = context.resolve_or_missing(str(term))
        if value is missing or isinstance(value, jinja2.Undefined):
            if not has_default:
                raise ExprError(f"lookup `vars`: `{term}` is undefined", hint="give it a default: default='...'")
            value = default
        out.append(value)
    return out


def _first_found(at: LookupContext, context: Any, terms: tuple[Any, ...], options: dict[str, Any]) -> list[Any]:
    skip = bool(options.pop("skip", False))
    files, paths = options.pop("files", None), options.pop("paths", None)
    _no_more("first_found", options)
    names: list[str] = []
    folders = [str(path) for path in ([paths] if isinstance(paths, str) else paths or [])]
    for term in (*terms, *([files] if isinstance(files, str) else files or [])):
        for one in term if isinstance(term, (list, tuple)) else [term]:
            if isinstance(one, Mapping):
                skip = skip or bool(one.get("skip"))
                more = one.get("paths") or []
                folders += [more] if isinstance(more, str) else [str(path) for path in more]
                inner = one.get("files") or []
                names += [inner] if isinstance(inner, str) else [str(name) for name in inner]
            else:
                names.append(str(one))
    candidates = [os.path.join(folder, name) for name in names for folder in folders] if folders else names
    for name in candidates:
        path = at.find(name)
        if path is not None:
            return [path]
    if skip:
        return []
    raise ExprError("lookup `first_found`: none of the files exists", hint="searched: " + ", ".join(candidates))


def _no_more(name: str, options: dict[str, Any]) -> None:
    if options:
        raise ExprError(f"lookup `{name}` has no option `{next(iter(options))}`")


_LOOKUPS: dict[str, Callable[[LookupContext, Any, tuple[Any, ...], dict[str, Any]], list[Any]]] = {
    "env": _env,
    "file": _file,
    "first_found": _first_found,
    "vars": _vars,
}


def known_lookups() -> list[str]:
    """The names of the lookups that there are."""
    return sorted(_LOOKUPS)
