"""Secrets: values that are used but never shown.

`Secret` keeps a value out of every ``repr`` and format string; `resolve` gets one from where the user
keeps it (``!secret env:NAME | file:PATH | cmd:COMMAND``); `Masker` removes registered secrets from
events before the journal or a renderer sees them. What is secret: contracts section 6.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

from .agent.hidden import secret_name
from .agent.values import NOT_KEPT
from .errors import ConfigError, OpsError, Span

MASK = "********"

#: Seconds that the command of ``cmd:`` may take (password managers may ask for a touch or a PIN).
COMMAND_TIMEOUT = 60.0

# Settings that a name like USE_TOKEN may hold; masking them would blacken every report.
_NO_SECRETS = frozenset({"true", "false", "yes", "no", "on", "off", "none", "null", "auto", "0", "1"})
# A shorter secret is masked only where it stands alone: as part of words it would hide everything.
_SHORT = 4


class Secret:
    """A value that shows as ``********`` wherever it is printed; `reveal` gives the value itself."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value, for handing it to whom it is meant."""
        return self._value

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(_bytes(self._value), _bytes(other._value))

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __bool__(self) -> bool:
        return bool(self._value)

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not written anywhere")


def resolve(
    ref: str,
    *,
    base: str | os.PathLike[str] = ".",
    span: Span | None = None,
    environ: Mapping[str, str] | None = None,
) -> Secret:
    """The secret that ``ref`` names: ``env:NAME``, ``file:PATH`` (relative to ``base``) or ``cmd:COMMAND``.

    One final newline is dropped. Raises `ConfigError` at ``span`` when it cannot be had or is empty. What is
    no reference is not repeated in the error: it may be the secret itself.
    """
    base = os.fspath(base) or "."
    kind, sep, rest = ref.partition(":")
    rest = rest.strip()
    if not sep or not rest or kind not in ("env", "file", "cmd"):
        raise ConfigError(
            "what follows `!secret` is not a reference to a secret",
            cause="a secret is named by where it is kept, so that no file of the project holds it",
            hint="write `!secret env:NAME`, `!secret file:PATH` or `!secret cmd:COMMAND`",
            span=span,
        )
    if kind == "env":
        value = _from_environment(rest, os.environ if environ is None else environ, span)
    elif kind == "file":
        value = _from_file(Path(base, os.path.expanduser(rest)), span)
    else:
        value = _from_command(rest, base, span)
    if value.endswith("\n"):
        value = value[:-1].removesuffix("\r")
    if not value:
        raise ConfigError(f"the secret `{kind}:{rest}` is empty", hint="set it, or remove the reference", span=span)
    return Secret(value)


def _from_environment(name: str, environ: Mapping[str, str], span: Span | None) -> str:
    if name not in environ:
        raise ConfigError(
            f"the environment variable `{name}` of a secret is not set",
            hint=f"set it where opsctl runs: `export {name}=...`",
            span=span,
        )
    return environ[name]


def _from_file(path: Path, span: Span | None) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"the secret file `{path}` is not UTF-8 text", span=span) from None
    except OSError as exc:
        raise ConfigError(
            f"the secret file `{path}` cannot be read",
            cause=exc.strerror or str(exc),
            hint="create it with mode 0600, or correct the path (it is relative to the file that names it)",
            span=span,
        ) from None


def _from_command(command: str, base: str | os.PathLike[str], span: Span | None) -> str:
    what = f"the secret command `{command}` failed"
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=base,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=COMMAND_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(what, cause=f"no end within {COMMAND_TIMEOUT:.0f} s", span=span) from None
    except OSError as exc:
        raise ConfigError(what, cause=exc.strerror or str(exc), span=span) from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        cause = f"exit {done.returncode}" + (f": {said[-1]}" if said else "")
        raise ConfigError(what, cause=cause, hint="run it by hand to see what it needs", span=span)
    try:
        return done.stdout.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(what, cause="its output is not UTF-8 text", span=span) from None


def is_secret_name(name: str) -> bool:
    """True when an environment variable of this name holds a secret."""
    return secret_name(name)


class Masker:
    """An event processor that replaces every registered secret by ``********``.

    A secret is found as it is and as JSON, shell, URL and base64 write it, alone or inside other text,
    and line by line when it has several lines. Secrets of fewer than four characters are masked only
    where they stand alone. Numbers, booleans and the fields that name things of opsctl's own (`event`,
    `run`, `host`, `outcome`, the task's `id`) are left alone.
    """

    def __init__(self, secrets: Iterable[str | Secret] = ()) -> None:
        self._secrets: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        for secret in secrets:
            self.add(secret)

    def add(self, secret: str | Secret) -> None:
        """Mask this value from now on. Blank values are ignored."""
        value = secret.reveal() if isinstance(secret, Secret) else str(secret)
        if value.strip() and value not in self._secrets:
            # A new set, not an addition: another thread may be reading the old one.
            secrets = self._secrets | {value}
            self._pattern = _pattern(secrets)
            self._secrets = secrets

    def add_environment(self, env: Mapping[str, Any]) -> None:
        """Register the values of the variables whose names say that they are secret (words like `true` are not)."""
        for name, value in env.items():
            if is_secret_name(name) and isinstance(value, (str, Secret)):
                text = value.reveal() if isinstance(value, Secret) else value
                if text.strip().lower() not in _NO_SECRETS:
                    self.add(text)

    def mask(self, text: str) -> str:
        """``text`` without the registered secrets."""
        return text if self._pattern is None else self._pattern.sub(MASK, text)

    def value(self, value: Any) -> Any:
        """A JSON-like value with every string in it masked, keys included; a `Secret` becomes the mask."""
        if isinstance(value, str):
            return self.mask(value)
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, (dict, Mapping)):  # every event passes here: the quick test first
            return {self.value(k): self.value(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(v) for v in value]
        return MASK if isinstance(value, Secret) else value

    def error(self, exc: OpsError) -> OpsError:
        """``exc`` with its texts masked, for what is wrong before there are events."""
        exc.what = self.mask(exc.what)
        exc.cause = None if exc.cause is None else self.mask(exc.cause)
        exc.hint = None if exc.hint is None else self.mask(exc.hint)
        return exc

    def kept(self, value: Any) -> Any:
        """A JSON-like value for a ledger: a string that holds a secret is left out, and known to be (`NOT_KEPT`)."""
        if isinstance(value, str):
            return value if self.mask(value) == value else NOT_KEPT
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, (dict, Mapping)):
            return {self.value(k): self.kept(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.kept(v) for v in value]
        return NOT_KEPT if isinstance(value, Secret) else value

    def within(self, text: str) -> list[str]:
        """The registered secrets, but the shortest, that stand in a JSON text."""
        found = [one for one in self._secrets if len(one) >= _SHORT]
        return sorted(one for one in found if json.dumps(one, ensure_ascii=False)[1:-1] in text)

    def __call__(self, event: dict[str, Any]) -> dict[str, Any]:
        return {key: self._field(key, value) for key, value in event.items()}

    def _field(self, key: str, value: Any) -> Any:
        if key in ("event", "run", "host", "outcome"):
            return value
        if key == "hosts" and isinstance(value, Mapping):
            return {name: self.value(counts) for name, counts in value.items()}
        if key == "hosts" and isinstance(value, (list, tuple)):
            return list(value)
        if key == "task" and isinstance(value, Mapping) and "id" in value:
            return {**self.value(value), "id": value["id"]}
        return self.value(value)


def _pattern(secrets: Iterable[str]) -> re.Pattern[str]:
    forms = {form for secret in secrets for form in _forms(secret)}
    # The longest first: a form may be the beginning of another one.
    ordered = sorted(forms, key=lambda form: (-len(form), form))
    return re.compile("|".join(_alone(form) if len(form) < _SHORT else re.escape(form) for form in ordered))


def _alone(form: str) -> str:
    return rf"(?<!\w){re.escape(form)}(?!\w)"


def _forms(secret: str) -> Iterator[str]:
    """The ways in which a secret may stand in text."""
    whole = [secret]
    if secret.strip() != secret:
        whole.append(secret.strip())
    lines = secret.splitlines()
    if len(lines) > 1:
        # A diff or a log shows a key line by line; short lines (`}`) say nothing.
        whole += [line.strip() for line in lines if len(line.strip()) >= 8]
    for one in whole:
        yield one
        yield json.dumps(one)[1:-1]
        yield json.dumps(one, ensure_ascii=False)[1:-1]
        yield repr(one)[1:-1]
        yield shlex.quote(one)
        yield shlex.quote(one)[1:-1] if shlex.quote(one) != one else one
        yield quote(one, safe="", errors="surrogatepass")
        if len(one) >= _SHORT:
            yield from _base64_forms(_bytes(one))


def _base64_forms(raw: bytes) -> Iterator[str]:
    """Base64 of ``raw`` wherever it begins in the encoded text (as in ``user:password``)."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for before in range(3):
            text = encode(b"\0" * before + raw).decode("ascii").rstrip("=")
            # Characters that also hold bits of what stands before or after differ with it.
            start = (before * 8 + 5) // 6
            end = (before + len(raw)) * 8 // 6
            if end - start >= _SHORT:
                yield text[start:end]
            if before == 0:
                yield encode(raw).decode("ascii")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
