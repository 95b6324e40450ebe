"""What is executed for a launch spec: the argument list and the environment, with no secret in the former."""

import json
import os
import re
import shlex
import sys
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Set, Tuple

from ..coerce import Bad, shown, suggestion

Spec = Mapping[str, Any]

ENGINES = ("vllm", "sglang", "rehearsal", "command")

#: vLLM's names that have one dash.
_SHORT = frozenset("tp pp dp dcp pcp ep ac asc cc dc sc q n r dpa dpb dpe dph dpl dpm dpn dpp dpr".split())
#: Flags of vLLM that take a list as one JSON text, and those that are given once for each item.
_JSON_LISTS = frozenset({"--allowed-origins", "--allowed-methods", "--allowed-headers"})
_REPEATED = frozenset({"--middleware"})
#: What the spec itself says: the engine's flag -> the key of the spec.
_OWN = {
    "vllm": {"--model": "model", "--served-model-name": "name", "--host": "host", "--port": "port"},
    "sglang": {
        "--model": "model", "--model-path": "model", "--served-model-name": "name", "--host": "host", "--port": "port",
    },
}  # fmt: skip
#: Secrets among the arguments: flag -> the environment variable that the engine reads instead (None: it reads none).
_SECRETS: Dict[str, Dict[str, Optional[str]]] = {
    "vllm": {"--api-key": "VLLM_API_KEY", "--hf-token": "HF_TOKEN"},
    "sglang": {"--hf-token": "HF_TOKEN", "--api-key": None, "--admin-api-key": None},
}
_SECRET_NAME = re.compile(r"(?:token|password|secret|api-key|access-key)$")
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*$")
#: What the rehearsal engine can be told to do; for phases, which there are.
_STARTS = ("config", "weights", "compile", "kv-cache", "graphs", "listening")
FAULTS: Dict[str, Tuple[str, ...]] = {
    "fail": (*_STARTS, "request"), "hang": _STARTS, "fail_with": (), "slow": (), "shards": (), "orphan": (),
    "die_at_request": (), "error_in_200": (), "ignore_term": (),
}  # fmt: skip
#: Names of GPUs, as CUDA takes them.
_GPU = re.compile(r"\d+$|(?:GPU|MIG)-[0-9A-Za-z/-]+$")


class Launch(NamedTuple):
    """What to execute: ``argv``, and ``env``, the variables that the spec adds (never a copy of the node's own)."""

    argv: List[str]
    env: Dict[str, str]


def launch(
    spec: Spec, known: Optional[Set[str]] = None, secrets: Iterable[str] = (), base: Optional[Mapping[str, str]] = None
) -> Launch:
    """The argument list and environment of ``spec``.

    ``known`` are the engine's own flags (`known_flags`), which decide how a false argument is written; ``secrets``
    are values that must not be in an argument; ``base`` is the environment that the server inherits (default: this
    process's), of which only PATH is looked at. Raises `Bad`, whose message begins with the key that is wrong.
    """
    engine = spec.get("engine")
    if engine not in ENGINES:
        raise Bad("`engine` must be one of %s, not %s" % (", ".join(ENGINES), shown(engine)))
    style = style_of(spec)
    pairs, moved = _without_secrets(style, _pairs(spec.get("args")), engine)
    words = _words(style, pairs, known)
    if engine == "command":
        argv = [*_command(spec), *words]
    else:
        argv = [*_program(spec), *_own(spec, style), *words]
    for word in argv:
        for secret in secrets:
            if secret and secret in word:
                raise Bad(
                    "`args` would put a secret on the command line, which every user of the node can read",
                    "give it in `env`, under the variable that the engine reads",
                )
    return Launch(argv, {**moved, **_environment(spec, base)})


def argv(spec: Spec, known: Optional[Set[str]] = None) -> List[str]:
    """The argument list of ``spec`` alone. Raises `Bad`."""
    return launch(spec, known).argv


def environment(spec: Spec, base: Optional[Mapping[str, str]] = None) -> Dict[str, str]:
    """The variables that ``spec`` adds, secrets of its arguments included. Raises `Bad`."""
    return launch(spec, base=base).env


def base_url(spec: Spec) -> str:
    """Where the node itself reaches the server: an address that listens everywhere is asked on loopback."""
    host = str(spec.get("host") or "127.0.0.1").strip("[]")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return "http://%s:%d" % ("[%s]" % host if ":" in host else host, int(spec.get("port") or 8000))


def style_of(spec: Spec) -> str:
    """Whose arguments and log lines to expect: `vllm` or `sglang`; `command` for anything else."""
    engine = str(spec.get("engine"))
    return str(spec.get("style") or "vllm") if engine == "rehearsal" else engine


def rehearse(spec: Spec, program: str, **faults: Any) -> Dict[str, Any]:
    """``spec`` with the rehearsal engine (the file ``program`` on the node) in the place of its own.

    ``faults`` are the rehearsal engine's options (`fail`, `fail_with`, `hang`, `slow`, `orphan`, ...). Its
    interpreter is not the environment's: that need not exist.
    """
    out = {key: value for key, value in spec.items() if key not in ("venv", "command")}
    style = style_of(spec)
    out.update(engine="rehearsal", style="vllm" if style == "command" else style, program=program)
    if style == "command":
        out.pop("args", None)
    out["python"] = None
    merged = dict(spec.get("rehearsal") or {})
    merged.update({name: value for name, value in faults.items() if value is not None})
    out["rehearsal"] = merged
    return out


# The program


def _program(spec: Spec) -> List[str]:
    engine, venv, python = spec["engine"], spec.get("venv"), spec.get("python")
    if engine == "rehearsal":
        if not spec.get("program"):
            raise Bad("`program` is missing: the rehearsal engine's file")
        faults = _words("rehearsal", _faults(spec.get("rehearsal")), None)
        return [_python(spec) or sys.executable, str(spec["program"]), "--style", style_of(spec), *faults]
    if engine == "vllm":
        if venv:
            return [os.path.join(str(venv), "bin", "vllm"), "serve"]
        return [str(python), "-m", "vllm.entrypoints.cli.main", "serve"] if python else ["vllm", "serve"]
    return [_python(spec) or "python3", "-m", "sglang.launch_server"]


def _faults(faults: Any) -> List[Tuple[str, Any]]:
    if not isinstance(faults or {}, Mapping):
        raise Bad("`rehearsal` must be a mapping, not %s" % shown(faults))
    out: List[Tuple[str, Any]] = []
    for name, value in (faults or {}).items():
        key = str(name).replace("-", "_")
        if key not in FAULTS:
            near = suggestion(key, FAULTS)
            hint = "did you mean `%s`?" % near if near else "it takes " + ", ".join(sorted(FAULTS))
            raise Bad("`rehearsal` has no option `%s`" % name, hint)
        if FAULTS[key] and value is not None and value not in FAULTS[key]:
            raise Bad("`rehearsal: %s` must be one of %s, not %s" % (name, ", ".join(FAULTS[key]), shown(value)))
        out.append((key, value))
    return out


def _python(spec: Spec) -> Optional[str]:
    if spec.get("venv"):
        return os.path.join(str(spec["venv"]), "bin", "python")
    return str(spec["python"]) if spec.get("python") else None


def _command(spec: Spec) -> List[str]:
    command = spec.get("command")
    try:
        words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command or []]
    except ValueError as exc:
        raise Bad("`command` cannot be split into words: %s" % exc, "quote it, or write a list of words") from None
    if not words:
        raise Bad("`command` is missing: the program that `engine: command` starts")
    if spec.get("venv") and "/" not in words[0]:
        inside = os.path.join(str(spec["venv"]), "bin", words[0])
        if os.access(inside, os.X_OK):
            words[0] = inside
    return words


def _own(spec: Spec, style: str) -> List[str]:
    model = spec.get("model")
    if not model:
        raise Bad("`model` is missing: the path or the id of the model that is served")
    out = [str(model)] if style == "vllm" else ["--model-path", str(model)]
    for flag, key in (("--served-model-name", "name"), ("--host", "host"), ("--port", "port")):
        if spec.get(key) not in (None, ""):
            out += [flag, str(spec[key])]
    return out


# Arguments


def _pairs(args: Any) -> List[Tuple[str, Any]]:
    """The arguments as (name or flag, value); a word that is no flag has the name ''."""
    if args is None:
        return []
    if isinstance(args, str):
        try:
            args = shlex.split(args)
        except ValueError as exc:
            raise Bad("`args` cannot be split into words: %s" % exc, "quote it, or write a mapping") from None
    if isinstance(args, Mapping):
        return [(str(name), value) for name, value in args.items()]
    if not isinstance(args, (list, tuple)):
        raise Bad("`args` must be a mapping, a list of words or a command line, not %s" % shown(args))
    out: List[Tuple[str, Any]] = []
    for item in args:
        if isinstance(item, Mapping):
            out += [(str(name), value) for name, value in item.items()]
        elif isinstance(item, (list, tuple)) or item is None:
            raise Bad("`args` has an item that is no word: %s" % shown(item))
        else:
            word = json.dumps(item) if isinstance(item, bool) else str(item)
            flag, _, value = word.partition("=")
            if _FLAG.match(flag) and "=" in word:
                out.append((flag, _Word(value, joined=True)))
            elif _FLAG.match(word):
                out.append((word, _Word(None)))
            elif out and isinstance(out[-1][1], _Word) and out[-1][1].value is None:
                out[-1] = (out[-1][0], _Word(word))
            else:
                out.append(("", _Word(word)))
    return out


class _Word:
    """A value that was written as a word of a command line, to be passed on as it is (None: a flag without one)."""

    def __init__(self, value: Optional[str], joined: bool = False) -> None:
        self.value = value
        self.joined = joined


def flag_of(name: str, style: str) -> str:
    """The flag that an argument's name means: `max_model_len` is `--max-model-len`, vLLM's `tp` is `-tp`."""
    if name.startswith("-"):
        flag, dot, rest = name.partition(".")
        return (flag.replace("_", "-") if flag.startswith("--") else flag) + dot + rest
    head, dot, rest = name.partition(".")
    if style == "vllm" and head in _SHORT:
        return "-" + head + dot + rest
    return "--" + head.replace("_", "-") + dot + rest


def _without_secrets(
    style: str, pairs: List[Tuple[str, Any]], engine: str
) -> Tuple[List[Tuple[str, Any]], Dict[str, str]]:
    """The pairs that may be on a command line, and the environment of those that may not."""
    kept: List[Tuple[str, Any]] = []
    moved: Dict[str, str] = {}
    table = _SECRETS.get(style, {})
    for name, value in pairs:
        flag = flag_of(name, style) if name else ""
        plain = value.value if isinstance(value, _Word) else value
        own = _OWN.get(style, {}).get(flag)
        if own and engine != "command":
            raise Bad("`args` repeats `%s`" % name, "write it as `%s:` of the task instead" % own)
        if flag in table and plain not in (None, False):
            variable = table[flag]
            if variable is None or not isinstance(plain, (str, int)) or isinstance(plain, bool):
                raise Bad(
                    "`args` has `%s`, a secret that this engine takes only on its command line, which every user of "
                    "the node can read" % name,
                    "leave it out, let the server listen on 127.0.0.1, and reach it through an SSH tunnel",
                )
            moved[variable] = str(plain)
        elif _SECRET_NAME.search(flag) and isinstance(plain, str) and plain and flag not in table:
            raise Bad(
                "`args` has `%s`, which looks like a secret: every user of the node can read a command line" % name,
                "give it in `env`, under the variable that the engine reads",
            )
        else:
            kept.append((name, value))
    return kept, moved


def _words(style: str, pairs: List[Tuple[str, Any]], known: Optional[Set[str]]) -> List[str]:
    out: List[str] = []
    for name, value in pairs:
        if not name:
            out.append(str(value.value))
            continue
        flag = flag_of(name, style)
        if not _FLAG.match(flag):
            raise Bad("`args` has a name that cannot be a flag: %s" % shown(name))
        if isinstance(value, _Word):
            plain = value.value
            out += [flag] if plain is None else ["%s=%s" % (flag, plain)] if value.joined else [flag, plain]
        else:
            out += _valued(style, flag, value, known)
    return out


def _valued(style: str, flag: str, value: Any, known: Optional[Set[str]]) -> List[str]:
    if value is None:
        return []
    if value is True:
        return [flag]
    if value is False:
        # vLLM's booleans have both forms; in SGLang and most others only the positive one exists.
        negative = "--no-" + flag.lstrip("-")
        use = negative in known if known is not None else style == "vllm"
        return [negative] if use else []
    if isinstance(value, Mapping):
        return [flag, json.dumps(value, separators=(",", ":"), ensure_ascii=False)]
    if isinstance(value, (list, tuple)):
        if flag in _JSON_LISTS:
            return [flag, json.dumps(list(value), separators=(",", ":"), ensure_ascii=False)]
        items = [_text(item) for item in value]
        if flag in _REPEATED:
            return [word for item in items for word in (flag, item)]
        return [flag, *items] if items else []
    text = _text(value)
    return ["%s=%s" % (flag, text)] if text.startswith("-") else [flag, text]


def _text(value: Any) -> str:
    if isinstance(value, (Mapping, list, tuple, bool)):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return str(value)


# The environment


def _environment(spec: Spec, base: Optional[Mapping[str, str]]) -> Dict[str, str]:
    base = os.environ if base is None else base
    # Logs come line by line and without colours; both can be set otherwise in `env`.
    out = {"PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
    if style_of(spec) == "vllm":
        out["VLLM_LOGGING_COLOR"] = "0"
    if spec.get("venv"):
        folder = os.path.join(str(spec["venv"]), "bin")
        # ninja and other tools of the environment are started by name when kernels are compiled.
        out["PATH"] = folder + os.pathsep + (base.get("PATH") or "/usr/local/bin:/usr/bin:/bin")
        out["VIRTUAL_ENV"] = str(spec["venv"])
    visible = _gpus(spec.get("gpus"))
    if visible is not None:
        out["CUDA_VISIBLE_DEVICES"] = visible
    env = spec.get("env") or {}
    if not isinstance(env, Mapping):
        raise Bad("`env` must be a mapping, not %s" % shown(env))
    for name, value in env.items():
        if not re.match(r"[A-Za-z_][A-Za-z0-9_]*$", str(name)):
            raise Bad("`env` has a name that cannot be a variable: %s" % shown(name))
        if name == "CUDA_VISIBLE_DEVICES" and visible is not None:
            raise Bad("`env` sets CUDA_VISIBLE_DEVICES, which `gpus` sets too", "leave one of them out")
        if value is not None:
            out[str(name)] = ("1" if value else "0") if isinstance(value, bool) else _text(value)
    return out


def _gpus(gpus: Any) -> Optional[str]:
    if gpus is None or gpus == "all":
        return None
    if isinstance(gpus, bool) or not isinstance(gpus, (str, int, list, tuple)):
        raise Bad("`gpus` must be a list of GPUs, not %s" % shown(gpus))
    items = gpus if isinstance(gpus, (list, tuple)) else str(gpus).split(",")
    names = [str(item).strip() for item in items if str(item).strip()]
    for name in names:
        if not _GPU.match(name):
            raise Bad("`gpus` has %s, which is no GPU" % shown(name), "write indices (0, 1) or UUIDs (GPU-...)")
    if len(set(names)) != len(names):
        raise Bad("`gpus` names a GPU twice: %s" % ",".join(names))
    return ",".join(names)
