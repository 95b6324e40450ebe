"""Every release of vLLM and SGLang: states, apply, apply again, revert; the table of docs/patch-matrix.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import behaviour, releases, table

pytestmark = pytest.mark.matrix


@pytest.mark.parametrize("version", releases.VLLM)
@pytest.mark.parametrize("name", releases.SETS)
def test_each_release_has_the_expected_state_and_comes_back(name: str, version: str, tmp_path: Path) -> None:
    """A set is clean, upstreamed or not applicable exactly where it should be, and leaves no trace after revert."""
    cycle = releases.prove("vllm", version, releases.built_in()[name], tmp_path)
    assert cycle.state == releases.expected(version)[name]
    if name == "kimi-k2-eagle3":
        behaviour.deepseek_collects(cycle.applied)
        behaviour.offset_ranks_count_from_their_first_layer(cycle.applied)
    if name == "kimi-k25-eagle3" and cycle.state != "not-applicable":
        behaviour.deepseek_collects(cycle.applied)
        behaviour.kimi_delegates(cycle.applied)


@pytest.mark.parametrize("version", releases.SGLANG)
def test_sglang(version: str, tmp_path: Path) -> None:
    """The same for SGLang."""
    cycle = releases.prove("sglang", version, releases.built_in()["sglang-kimi-k25-eagle3"], tmp_path)
    assert cycle.state == releases.expected_sglang(version)


def test_the_documented_table_is_the_measured_one(tmp_path: Path) -> None:
    """docs/patch-matrix.md is what the releases say; `python -m tests.matrix.table` writes it."""
    assert table.DOC.read_text(encoding="utf-8") == table.render(tmp_path)
