"""The one exec request: find a Python on the node that works, and let it run the agent's first stage.

The command passes through the user's login shell, whatever that is (sh, bash, dash, csh, fish, zsh): it is one
word list with one single-quoted script, in which there is no quote, backslash, exclamation mark or newline.
What boot needs is in argv (base64, nothing secret), since standard input costs one more turn of the link.
"""

from __future__ import annotations

import base64
import functools
import importlib.util
import json
import re
import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from ..agent import boot
from ..errors import UsageError

#: Where a Python may be, best first. A name without a slash is looked up in PATH.
PYTHONS = (
    "python3", "/usr/bin/python3", "/usr/local/bin/python3",
    "python3.13", "python3.12", "python3.11", "python3.10", "python3.9", "python3.8",
    "/usr/libexec/platform-python", "/opt/conda/bin/python3", "/opt/python/bin/python3",
    "/opt/venv/bin/python3", "/opt/bin/python3", "~/miniconda3/bin/python3", "python",
)  # fmt: skip

#: Exit status of the start command when no Python worked; before it, `no_python` is printed.
NO_PYTHON = 94

#: The values of ansible_python_interpreter that mean "look for one".
_AUTO = frozenset({"auto", "auto_silent", "auto_legacy", "auto_legacy_silent"})

# $1 nonce, $2 hash of the agent, $3 the boot stage; then the candidates. A candidate that ends with another status
# than boot's own (0 ended, 93 said why) and without a signal has not become the agent: the next one is tried.
_SCRIPT = (
    "N=$1 H=$2 B=$3; shift 3; "
    'for p do case $p in "~/"*) p=$HOME/${p#??};; esac; '
    'command -v "$p" >/dev/null 2>/dev/null || continue; '
    '"$p" -I -S -c "import sys,binascii,zlib;exec(zlib.decompress(binascii.a2b_base64(sys.argv.pop())))" "$N" "$H" "$B"; s=$?; '
    "case $s in 0|93) exit $s;; esac; test $s -ge 128 && exit $s; done; "
    'echo; echo "<<opsctl-no-python $N>>"; exit ' + str(NO_PYTHON)
)

# Python 2 must be able to compile this. ImportError is left alone: a Python without its library is broken, and
# another may do; any other failure is the agent's own, and trying again elsewhere would only hide it.
_WRAPPER = """\
import sys
if sys.version_info < (3, 8):
    sys.exit(94)
try:
    exec(compile(%r, "opsctl-boot", "exec"))
except (SystemExit, ImportError):
    raise
except BaseException:
    import traceback
    traceback.print_exc()
    sys.exit(93)
"""

#: The hash by which boot verifies a bundle: over names and sources, not over the compressed bytes.
_digest: Callable[[dict[str, str]], str] = boot.digest

_HASHING = threading.Lock()

_PLAIN = re.compile(r"[A-Za-z0-9_./+@%:,=~ -]+")


def no_python(nonce: str) -> bytes:
    """The line that the start command prints when it found no Python."""
    return f"<<opsctl-no-python {nonce}>>".encode()


def pythons(interpreter: str | None) -> tuple[str, ...]:
    """The candidates for `ansible_python_interpreter`: that one only, if it is given. Raises UsageError."""
    if interpreter is None or interpreter in _AUTO or not interpreter.strip():
        return PYTHONS
    if not _PLAIN.fullmatch(interpreter):
        raise UsageError(
            f"ansible_python_interpreter is not a path that can be passed through every shell: {interpreter!r}",
            hint="use letters, digits and the signs _./+@%:,=~- in it",
        )
    return (interpreter,)


def start_command(nonce: str, agent_hash: str, candidates: Sequence[str] = PYTHONS) -> str:
    """The exec request that starts the agent whose bundle has ``agent_hash``; it greets with ``nonce``."""
    words = [f"'{_SCRIPT}'", "opsctl", nonce, agent_hash, _boot(), *(f"'{path}'" for path in candidates)]
    return " ".join(["exec", "/bin/sh", "-c", *words])


@functools.cache
def _boot() -> str:
    source = Path(boot.__file__).read_text(encoding="utf-8")
    return base64.b64encode(zlib.compress((_WRAPPER % source).encode(), 9)).decode()


def _sources(package: str, name: str) -> dict[str, str]:
    """The Python sources of an installed package as {NAME/relative path: text}; nothing is imported."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations
    root = Path(next(iter(spec.submodule_search_locations)))
    files = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py")}
    return {f"{name}/{relative}": files[relative].read_text(encoding="utf-8") for relative in sorted(files)}


def _pack(files: dict[str, str]) -> tuple[str, bytes]:
    data = json.dumps(files, ensure_ascii=False, separators=(",", ":")).encode()
    return _digest(files), zlib.compress(data, 6)


@functools.cache
def _agent() -> dict[str, str]:
    return _sources("opsctl.agent", "opsctl_agent")


def agent_hash() -> str:
    """The hash of the agent's sources; many threads may want it first."""
    with _HASHING:
        return _agent_hash()


@functools.cache
def _agent_hash() -> str:
    return _digest(_agent())


@functools.cache
def bundle() -> tuple[str, bytes]:
    """The agent for a node that has not got it: hash, and its sources as zlib(JSON {path: text})."""
    return _pack(_agent())


@functools.cache
def _jinja() -> dict[str, str]:
    return {**_sources("jinja2", "jinja2"), **_sources("markupsafe", "markupsafe")}


@functools.cache
def jinja_hash() -> str:
    """The hash of what `jinja_bundle` packs."""
    return _digest(_jinja())


@functools.cache
def jinja_bundle() -> tuple[str, bytes]:
    """The controller's own Jinja2 and MarkupSafe (pure Python), packed as `bundle`."""
    return _pack(_jinja())
