"""The built-in sets on real releases (three of vLLM, one of SGLang; all of them: the matrix tier).

Files come out of the wheels on the package index by ranged reads, and are kept between runs (tests/matrix/wheels.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.matrix import behaviour, releases, wheels


@pytest.mark.parametrize("version", releases.DEFAULT)
@pytest.mark.parametrize("name", releases.SETS)
def test_each_release_has_the_expected_state_and_comes_back(name: str, version: str, tmp_path: Path) -> None:
    """A set is clean, upstreamed or not applicable exactly where it should be, and leaves no trace after revert."""
    cycle = releases.prove("vllm", version, releases.built_in()[name], tmp_path)
    assert cycle.state == releases.expected(version)[name]


@pytest.mark.parametrize("version", releases.DEFAULT)
def test_after_the_set_the_model_collects_hidden_states(version: str, tmp_path: Path) -> None:
    """DeepseekV2's own forward keeps hidden_states + residual before the listed layers; the wrapper passes them on."""
    cycle = releases.prove("vllm", version, releases.built_in()["kimi-k25-eagle3"], tmp_path)
    behaviour.deepseek_collects(cycle.applied)
    behaviour.offset_ranks_count_from_their_first_layer(cycle.applied)
    behaviour.kimi_delegates(cycle.applied)


def test_before_the_set_it_does_not() -> None:
    """The pristine release fails the very check that a server makes."""
    names = (behaviour.DEEPSEEK, behaviour.INTERFACES)
    texts = {path: data for path in names if (data := wheels.wheel_file("vllm", "0.16.0", path)) is not None}
    behaviour.deepseek_has_no_interface(texts)


def test_sglang(tmp_path: Path) -> None:
    """The one release of SGLang that has the model and lacks the three methods."""
    cycle = releases.prove("sglang", "0.5.9", releases.built_in()["sglang-kimi-k25-eagle3"], tmp_path)
    assert cycle.state == "clean"


def test_both_kimi_sets_go_together(tmp_path: Path) -> None:
    """The text-only set on top of the other has nothing left to do but its own, and each can be reverted alone."""
    from opsctl.patching import verbs
    from opsctl.patching.site import local_site

    sets = releases.built_in()
    both = [sets["kimi-k2-eagle3"], sets["kimi-k25-eagle3"]]
    paths = wheels.unpack("vllm", "0.16.0", releases.files_of("vllm"), tmp_path)
    pristine = {path: (tmp_path / path).read_bytes() for path in paths}
    site = local_site(root=str(tmp_path))
    report = verbs.apply(site, both, run="r")[0]
    assert report.error is None
    assert [item.state for item in report.sets] == ["applied", "applied"]
    verbs.revert(site, ["vllm"], both, None)
    assert {path: (tmp_path / path).read_bytes() for path in paths} == pristine
