"""The releases that the built-in sets are proven on, what is expected of each, and the cycle that proves it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from opsctl.patching import verbs
from opsctl.patching.sets import PatchSet, load_sets
from opsctl.patching.site import local_site

from . import wheels

VLLM = (
    "0.11.0 0.11.1 0.11.2 0.12.0 0.13.0 0.14.0 0.14.1 0.15.0 0.15.1 0.16.0 0.17.0 0.17.1 0.18.0 0.18.1 0.19.0 0.19.1 "
    "0.20.0 0.20.1 0.20.2 0.21.0 0.22.0 0.22.1 0.23.0 0.24.0 0.25.0 0.25.1 0.26.0 0.27.0 0.27.1 0.28.0 0.29.0 0.30.0 "
    "0.31.0 0.32.0 0.33.0"
).split()
SGLANG = "0.5.7 0.5.8 0.5.8.post1 0.5.9 0.5.10 0.5.10.post1 0.5.11 0.5.14 0.5.17 0.5.20 0.5.23".split()
#: Those that the default run looks at: every patch of the first set is written in one of them.
DEFAULT = ("0.15.1", "0.16.0", "0.33.0")
SETS = ("kimi-k25-eagle3", "kimi-k2-eagle3", "sm120-triton-mla-fp8")

STATES = {"clean": "applies", "upstreamed": "upstreamed", "not-applicable": "-"}


def expected(version: str) -> dict[str, str]:
    """The state of each set on a pristine release of vLLM."""
    minor = tuple(int(part) for part in version.split(".")[:2])
    kimi = "not-applicable" if minor < (0, 15) else "clean" if minor < (0, 18) else "upstreamed"
    return {
        "kimi-k25-eagle3": kimi,
        "kimi-k2-eagle3": "clean" if minor < (0, 18) else "upstreamed",
        "sm120-triton-mla-fp8": "not-applicable" if minor < (0, 20) else "clean",
    }


def expected_sglang(version: str) -> str:
    """The state of the SGLang set on a pristine release."""
    parts = version.removesuffix(".post1").split(".")
    patch = int(parts[2])
    return "not-applicable" if patch < 9 else "clean" if patch == 9 else "upstreamed"


@dataclass
class Cycle:
    """What one set did on one release."""

    state: str
    patched: list[str]
    patches: dict[str, str]
    applied: dict[str, bytes]


def prove(package: str, version: str, patch_set: PatchSet, root: Path) -> Cycle:
    """status, apply, apply again, revert, on the files of a wheel below ``root``; asserts what must always hold."""
    paths = wheels.unpack(package, version, files_of(package), root)
    pristine = {path: (root / path).read_bytes() for path in paths}
    site = local_site(root=str(root))
    before = verbs.report_status(site, [patch_set])[0]
    state = before.sets[0].state
    assert before.installed == version
    first = verbs.apply(site, [patch_set], run="r1")[0]
    now = {path: (root / path).read_bytes() for path in pristine}
    changed = [path for path in pristine if now[path] != pristine[path]]
    for path in changed:
        ast.parse(now[path])
    if state == "clean":
        assert first.error is None
        assert first.changed
        assert first.sets[0].state == "applied"
        assert sorted(first.written) == sorted(changed)
    else:
        assert not first.changed
        assert not changed
        assert (first.error is None) == (state == "upstreamed")
    again = verbs.apply(site, [patch_set], run="r2")[0]
    assert not again.changed
    assert {path: (root / path).read_bytes() for path in pristine} == now, "applying twice changed bytes"
    undone = verbs.revert(site, [package], [patch_set], None)[0]
    assert undone.changed == bool(changed)
    assert {path: (root / path).read_bytes() for path in pristine} == pristine, (
        "revert left other bytes than the wheel's"
    )
    assert not [path for path in root.rglob("*opsctl-*") if path.is_file()]
    assert undone.sets[0].state == state
    return Cycle(state, changed, {item.name: item.state for item in before.sets[0].patches}, now)


def built_in() -> dict[str, PatchSet]:
    """The sets that come with opsctl."""
    return {name: item for name, item in load_sets(Path("/nonexistent")).items() if item.builtin}


def files_of(package: str) -> list[str]:
    """Every file that a built-in set of a package looks at."""
    return sorted({path for item in built_in().values() if item.package == package for path in item.files()})
