"""The engines that search bytes for many texts find the same lines."""

from __future__ import annotations

import random
from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.diagnose import engine
from opsctl.diagnose.engine import Scanner, make_scanner
from opsctl.diagnose.scan import OFTEN, wanted_texts
from opsctl.diagnose.signatures import load_signatures

TEXTS = sorted({*wanted_texts(load_signatures()), "Error 802: fab", "\n== "} - set(OFTEN))
ENGINES = ("hyperscan", "python")
QUIET = "abcdef 0123456789 [x.py:7] (Worker pid=31) :./'\""


def lines_with(texts: list[str], block: bytes) -> set[int]:
    """The lines (from 0) that contain one of the texts, by the plain reading."""
    lines = [b"\n" + line for line in block.split(b"\n")]
    return {n for n, line in enumerate(lines) if any(text.encode() in line for text in texts)}


@lru_cache
def scanner_of(name: str) -> Scanner:
    """The engine, made once."""
    return make_scanner(TEXTS, engine=name)


def found_lines(name: str, block: bytes) -> set[int]:
    """The lines of what the engine finds."""
    try:
        scanner = scanner_of(name)
    except ImportError:
        pytest.skip(f"{name} is not installed")
    return {block.count(b"\n", 0, offset) for offset, _ in scanner.find(block)}


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("seed", range(30))
def test_engines_find_every_line(name: str, seed: int) -> None:
    """Texts between noise, at the start and the end of lines, cut off, doubled: exactly the lines that hold one."""
    rng = random.Random(seed)
    lines = ["first"]
    for _ in range(60):
        line = "".join(rng.choices(QUIET, k=rng.randrange(40)))
        if rng.random() < 0.4:
            text = rng.choice(TEXTS).lstrip("\n")
            text = text if rng.random() < 0.7 else text[: rng.randrange(len(text))]
            at = rng.choice([0, len(line), rng.randrange(len(line) + 1)])
            line = line[:at] + text + line[at:]
        lines.append(line)
    block = "\n".join(lines).encode()
    assert found_lines(name, block) == lines_with(TEXTS, block)


@given(st.lists(st.text(alphabet="Killed=$ CUDA0123abf\t", max_size=30), max_size=30))
def test_shapes_clear_no_line_that_matters(lines: list[str]) -> None:
    """Whatever digits and letters a line has, no line with a text is taken for one without."""
    block = "\n".join(["first", *lines]).encode()
    assert found_lines("python", block) == lines_with(TEXTS, block)


def test_shapes_are_forgotten_and_learned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of shapes is bounded; after it was emptied the same lines are found."""
    monkeypatch.setattr(engine, "_REMEMBERED", 200)
    scanner = make_scanner(TEXTS, engine="python")
    block = (
        "\n".join(f"line {chr(103 + n % 19) * n} x" for n in range(80)).encode()
        + b"\nTraceback (most recent call last):"
    )
    first = scanner.find(block)
    assert first and scanner.find(block) == first
