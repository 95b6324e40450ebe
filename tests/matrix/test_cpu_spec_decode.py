"""The set that lets vLLM 0.16.0 draft on a CPU applies to the release, and comes back."""

from __future__ import annotations

import ast
from pathlib import Path

from opsctl.patching import verbs
from opsctl.patching.sets import read_set
from opsctl.patching.site import local_site

from . import wheels

SET = read_set(Path(__file__).parent / "cpu-spec-decode.yml")


def test_it_applies_to_the_release(tmp_path: Path) -> None:
    """Clean, applied, nothing twice, and the wheel's bytes again."""
    paths = wheels.unpack("vllm", "0.16.0", list(SET.files()), tmp_path)
    pristine = {path: (tmp_path / path).read_bytes() for path in paths}
    site = local_site(root=str(tmp_path))
    assert verbs.apply(site, [SET], run="r")[0].sets[0].state == "applied"
    now = {path: (tmp_path / path).read_bytes() for path in paths}
    assert all(now[path] != pristine[path] and ast.parse(now[path]) for path in paths)
    assert verbs.apply(site, [SET], run="r")[0].changed is False
    verbs.revert(site, ["vllm"], [SET], None)
    assert {path: (tmp_path / path).read_bytes() for path in paths} == pristine
