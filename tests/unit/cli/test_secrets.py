"""Secrets are used but never shown: in no form, in no field."""

from __future__ import annotations

import base64
import copy
import json
import pickle
import shlex
import urllib.parse
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.errors import ConfigError, Span
from opsctl.secrets import MASK, Masker, Secret, is_secret_name, resolve

VALUE = "hunter2 'x' \"y\" \\ é$\n"


def test_a_secret_shows_nothing() -> None:
    """repr, str, format and containers show the mask; only reveal gives the value."""
    secret = Secret("hunter2")
    shown = [repr(secret), str(secret), f"{secret}", f"{secret:>20}", repr([secret]), "<" + str(secret) + ">"]
    assert not any("hunter2" in text for text in shown)
    assert secret.reveal() == "hunter2"


def test_a_secret_survives_copies_but_not_files() -> None:
    """Copies are the secret itself; writing it anywhere is refused."""
    secret = Secret("hunter2")
    assert copy.deepcopy({"a": secret})["a"] is secret and copy.copy(secret) is secret
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    with pytest.raises(TypeError):
        json.dumps(secret)


def test_equality() -> None:
    """Secrets compare by value with secrets only."""
    assert Secret("a") == Secret("a") != Secret("b")
    assert len({Secret("a"), Secret("a")}) == 1
    assert Secret("a") != "a"
    assert not Secret("")


def forms(value: str) -> list[str]:
    raw = value.encode("utf-8", "surrogatepass")
    return [
        value,
        json.dumps({"k": value}),
        json.dumps(value, ensure_ascii=False),
        repr(value),
        "pw=" + shlex.quote(value),
        urllib.parse.quote(value, safe="", errors="surrogatepass"),
        base64.b64encode(raw).decode(),
        base64.urlsafe_b64encode(raw).decode(),
    ]


@pytest.mark.parametrize(
    "value", [VALUE, "s3cr3t", "a b'c", "pass%word&x", "-----BEGIN-----\nMIIEabcdefgh\n-----END-----\n"]
)
def test_every_form_is_masked(value: str) -> None:
    """As it is, in JSON, repr, shell quotes, URLs and base64."""
    masker = Masker([value])
    for form in forms(value):
        masked = masker.mask(f"before {form} after")
        assert MASK in masked
        assert value.strip() not in masked
        assert form not in masked


@pytest.mark.parametrize("before", ["", "u", "us", "usr", "user:"])
def test_base64_inside_other_base64_is_masked(before: str) -> None:
    """`user:password` in an Authorization header does not give the password away."""
    token = base64.b64encode(f"{before}correct-horse-battery:and more".encode()).decode()
    masked = Masker(["correct-horse-battery"]).mask(token)
    left = masked.replace(MASK, "")
    assert MASK in masked
    assert len(left) <= len(token) - 4 * len("correct-horse-battery") // 3 + 4


def test_a_key_is_masked_line_by_line() -> None:
    """A diff or a log shows a key in lines; each of them is masked."""
    masker = Masker(["-----BEGIN KEY-----\nMIIEpAIBAAKC\n}\n-----END KEY-----\n"])
    assert masker.mask("+MIIEpAIBAAKC") == "+" + MASK
    assert masker.mask("}") == "}"


def test_short_secrets_are_masked_where_they_stand_alone() -> None:
    """A PIN of three digits does not blacken every number that has them inside."""
    masker = Masker(["123"])
    assert masker.mask("pin=123, 12345, x123") == f"pin={MASK}, 12345, x123"


def test_blank_secrets_mask_nothing() -> None:
    """An empty value would blacken everything."""
    masker = Masker(["", " ", "\n"])
    assert masker.mask("a b") == "a b"


def test_all_string_fields_of_an_event_are_masked() -> None:
    """Nested values and keys are masked; opsctl's own words and numbers stay."""
    masker = Masker(["changed", "hunter2"])
    event = {
        "event": "task_finished", "run": "hunter2", "seq": 3, "host": "hunter2", "outcome": "changed", "changed": True,
        "task": {"id": "changed", "name": "set hunter2", "line": 3},
        "result": {"stdout": "a hunter2 b", "list": ["hunter2", 1, None], "hunter2": 1.5, "secret": Secret("other")},
        "error": {"what": "x", "cause": "hunter2"},
        "diff": {"before": "", "after": "p=hunter2\n"},
    }  # fmt: skip
    assert masker(event) == {
        "event": "task_finished", "run": "hunter2", "seq": 3, "host": "hunter2", "outcome": "changed", "changed": True,
        "task": {"id": "changed", "name": f"set {MASK}", "line": 3},
        "result": {"stdout": f"a {MASK} b", "list": [MASK, 1, None], MASK: 1.5, "secret": MASK},
        "error": {"what": "x", "cause": MASK},
        "diff": {"before": "", "after": f"p={MASK}\n"},
    }  # fmt: skip


def test_the_counts_of_hosts_keep_their_names() -> None:
    """The host that is called like a password is still found in the recap."""
    masker = Masker(["gpu-01"])
    assert masker({"event": "run_finished", "hosts": {"gpu-01": {"ok": 1}}})["hosts"] == {"gpu-01": {"ok": 1}}
    assert masker({"event": "run_started", "hosts": ["gpu-01"]})["hosts"] == ["gpu-01"]


def test_environment_names_say_what_is_secret() -> None:
    """TOKEN, PASSWORD, SECRET and API_KEY at the end of a name, in any case."""
    masker = Masker()
    masker.add_environment(
        {"HF_TOKEN": "hf_abc", "db_password": "pw123", "TOKENIZERS": "plain", "PATH": "/bin", "N_SECRET": 5}
    )
    assert masker.mask("hf_abc pw123 plain /bin 5") == f"{MASK} {MASK} plain /bin 5"
    masker.add_environment({"USE_TOKEN": "true", "NO_SECRET": "0"})
    assert masker.mask("true 0") == "true 0"
    assert is_secret_name("OPENAI_API_KEY") and not is_secret_name("API_KEY_FILE")


@given(st.text(min_size=4), st.text(), st.text())
def test_no_secret_survives(secret: str, before: str, after: str) -> None:
    """Whatever stands around it, a registered secret is not in the masked text."""
    masked = Masker([secret]).mask(before + secret + after)
    if secret.strip() and secret not in MASK:
        assert secret not in masked.replace(MASK, "\0")


def test_resolve_env() -> None:
    """env: reads a variable; one final newline goes."""
    assert resolve("env:X", environ={"X": "v\n"}).reveal() == "v"
    with pytest.raises(ConfigError, match="`X` of a secret is not set") as caught:
        resolve("env:X", environ={}, span=Span("a.yml", 1))
    assert caught.value.span == Span("a.yml", 1)


def test_resolve_file(tmp_path: Path) -> None:
    """file: is relative to the file that names it; what is wrong with it is said."""
    (tmp_path / "pw").write_text("two\nlines\n")
    assert resolve("file:pw", base=tmp_path).reveal() == "two\nlines"
    assert resolve(f"file: {tmp_path}/pw").reveal() == "two\nlines"
    (tmp_path / "bin").write_bytes(b"\xff")
    (tmp_path / "empty").write_text("\n")
    for name, words in (
        ("none", "cannot be read"),
        ("bin", "not UTF-8"),
        ("empty", "is empty"),
        (".", "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=words):
            resolve(f"file:{name}", base=tmp_path)


def test_resolve_command(tmp_path: Path) -> None:
    """cmd: runs in the shell, beside the file that names it; a failure shows its last words, never its output."""
    assert resolve("cmd:printf 'a b' | tr a c", base=tmp_path).reveal() == "c b"
    (tmp_path / "x").write_text("here\n")
    assert resolve("cmd:cat x", base=tmp_path).reveal() == "here"
    with pytest.raises(ConfigError) as caught:
        resolve("cmd:echo hunter2; echo locked >&2; exit 3")
    assert caught.value.cause == "exit 3: locked"
    assert "hunter2" not in str(caught.value.cause)


@pytest.mark.parametrize("ref", ["", "env", "env:", "vault:x", "FILE:x", "hunter2"])
def test_what_is_no_reference(ref: str) -> None:
    """Anything else is refused with the three forms, and not repeated: it may be the secret itself."""
    with pytest.raises(ConfigError, match="not a reference") as caught:
        resolve(ref)
    assert "hunter2" not in caught.value.what
    assert "env:NAME" in str(caught.value.hint)
