"""A bundle holds what helps and nothing secret."""

from __future__ import annotations

import json
import stat
import tarfile
from pathlib import Path

import pytest

from opsctl.diagnose import diagnose_files
from opsctl.diagnose.bundle import redact, write_bundle
from opsctl.errors import InputUnreadable

SECRETS = [
    ("HF_TOKEN=hf_abcdefghijklmnop", "hf_abcdefghijklmnop"),
    ("{'api_key': 'verysecret123', 'x': 1}", "verysecret123"),
    ('"password": "hunter2hunter2"', "hunter2hunter2"),
    ("Authorization: Bearer abc.def-ghi123", "abc.def-ghi123"),
    ("https://user:pa55w0rd@proxy:3128/", "pa55w0rd"),
    ("vllm serve m --api-key topsecretkey --port 1", "topsecretkey"),
    ("OPENAI_API_KEY=sk-aaaaaaaaaaaaaaaa", "sk-aaaaaaaaaaaaaaaa"),
    ("token: ghp_0123456789abcdef", "ghp_0123456789abcdef"),
    ("MY_SECRET=s3cr3tvalue", "s3cr3tvalue"),
]


@pytest.mark.parametrize(("text", "secret"), SECRETS, ids=[text[:24] for text, _ in SECRETS])
def test_secrets_are_masked(text: str, secret: str) -> None:
    """Every common form of a secret is masked, and what stands around it stays."""
    masked = redact(text)
    assert secret not in masked and "********" in masked
    assert masked[:5] == text[:5]


@pytest.mark.parametrize(
    "text", ["max_tokens=3072, tokens: 12", "GPU KV cache size: 439,126 tokens", "'api_key': None", "tokenizer='x'"]
)
def test_what_is_no_secret_stays(text: str) -> None:
    """Numbers of tokens and empty fields are not secrets."""
    assert redact(text) == text


def test_the_archive(tmp_path: Path) -> None:
    """Report, versions and the windows of the log around the finding, readable by the user alone."""
    log = tmp_path / "server.log"
    lines = [f"line {n}" for n in range(1, 5001)]
    lines[2499] = "RuntimeError: CUDA out of memory. Tried to allocate 1 GiB, token=hf_secretsecret"
    log.write_text("\n".join(lines) + "\n")
    target = tmp_path / "b.tar.gz"
    write_bundle(str(target), [str(log)], [diagnose_files([str(log)])])
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with tarfile.open(target) as archive:
        texts = {member.name: (archive.extractfile(member) or log.open("rb")).read().decode() for member in archive}
    assert json.loads(texts["opsctl-bundle/report.json"])[0]["findings"][0]["id"] == "cuda-oom"
    window = texts["opsctl-bundle/logs/01-server.log.txt"].splitlines()
    numbers = [int(line.split(":")[0]) for line in window]
    assert {1, 200, 2300, 2500, 2700, 4801, 5000} <= set(numbers) and 1000 not in numbers
    assert "hf_secretsecret" not in "".join(texts.values())


def test_no_place_to_write(tmp_path: Path) -> None:
    """A folder that does not exist is an error with a hint."""
    with pytest.raises(InputUnreadable) as error:
        write_bundle(str(tmp_path / "no" / "b.tar.gz"), [], [])
    assert error.value.hint
