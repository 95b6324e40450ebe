"""What is secret by its name or its place (contracts 6): environment variables, results of `no_log` tasks."""

from __future__ import annotations

from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator


#: Environment variables whose names end like this hold secrets.
SECRET_NAMES = ("TOKEN", "PASSWORD", "SECRET", "API_KEY")
#: Keys of a result that never hold a secret, or nothing but what everybody knows.
PLAIN = frozenset(
    "changed failed skipped rc start end delta msg cmd path dest src mode owner group uid gid size state checksum "
    "skip_reason false_condition ansible_loop_var item invocation output_files signal attempts url".split()
)
#: A shorter string (`ok`, `yes`, `200`) is no secret, and masking it would blacken everything.
SECRET_LEAST = 6


def secret_name(name: str) -> bool:
    """True when an environment variable of this name holds a secret (contracts 6)."""
    return name.upper().endswith(SECRET_NAMES)


def sensitive(value: Any) -> Iterator[str]:
    """The strings in the result of a `no_log` task that nobody may see, wherever they turn up later."""
    if isinstance(value, str):
        if len(value.strip()) >= SECRET_LEAST:
            yield value.strip()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if key not in PLAIN:
                yield from sensitive(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from sensitive(item)


def strings(value: Any) -> Iterator[str]:
    """All strings in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from strings(item)
