"""Any history of applies, reverts, reinstalls and edits by others ends where it should."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.agent.patchfind import sha256
from opsctl.patching import verbs
from opsctl.patching.site import Site

from .support import FILES as PLAIN
from .support import LIST, LOOP, METHOD, make_set, patch

#: With a head, so that an edit at the top does not touch a patched line.
FILES = {path: f'"""{path}"""\n\n\n{text}' for path, text in PLAIN.items()}

PAUSE = {"method": {"class": "Engine", "source": "def pause(self):\n    return None\n"}}
SETS = {
    "a": make_set(LIST, METHOD, name="a"),
    "b": make_set(LOOP, patch("pause", "pkg/two.py", PAUSE), name="b"),
    "c": make_set(LIST, name="c"),
}
ALL = tuple(SETS.values())


class Memory:
    """An environment in memory: what patchops would answer."""

    def __init__(self) -> None:
        self.files = {path: text.encode() for path, text in FILES.items()}
        self.shipped = {path: sha256(data) for path, data in self.files.items()}
        self.manifest: dict[str, Any] | None = None
        self.kept: dict[str, bytes] = {}
        self.record = 0

    def __call__(self, op: str, args: dict[str, Any], timeout: float) -> Mapping[str, Any]:
        return {"value": getattr(self, op)(args)}

    def observe(self, args: dict[str, Any]) -> dict[str, Any]:
        written = (self.manifest or {"files": {}})["files"]
        names = list(dict.fromkeys([*args["files"], *written]))
        blobs = {sha256(self.files[path]): self.files[path] for path in names if path in self.files}
        for entry in written.values():
            blobs.update({digest: self.kept[digest] for digest in (entry["before"], entry["after"])})
        return {
            "root": "/m",
            "installed": "1.2.0",
            "python": None,
            "record": str(self.record),
            "shipped": self.shipped,
            "clean": None,
            "manifest": self.manifest,
            "recovered": None,
            "found": {},
            "files": {p: {"sha256": sha256(self.files[p])} if p in self.files else None for p in names},
            "blobs": {digest: base64.b64encode(data).decode() for digest, data in blobs.items()},
        }

    def commit(self, args: dict[str, Any]) -> dict[str, Any]:
        plan = args["plan"]
        assert plan["manifest_before"] == self.manifest
        for item in plan["writes"]:
            assert sha256(self.files[item["path"]]) == item["before"]
            self.files[item["path"]] = base64.b64decode(item["data"])
        self.kept.update({sha256(data): data for data in map(base64.b64decode, plan["keep"])})
        self.manifest = plan["manifest"]
        return {"written": [item["path"] for item in plan["writes"]], "notes": [], "copies": []}

    def check(self, args: dict[str, Any]) -> None:
        for path, text in args["texts"].items():
            compile(base64.b64decode(text), path, "exec")

    def importers(self, args: dict[str, Any]) -> list[Any]:
        return []


ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("apply"), st.sampled_from("abc")),
        st.tuples(st.just("revert"), st.sampled_from("abc")),
        st.tuples(st.just("edit"), st.sampled_from(["pkg/one.py", "pkg/two.py"])),
        st.tuples(st.just("reinstall"), st.just("")),
    ),
    max_size=9,
)


@settings(max_examples=60)
@given(ACTS)
def test_every_history_can_be_undone(acts: list[tuple[str, str]]) -> None:
    """After each act the set concerned stands as it should; reverted whole, only the edits of others are left."""
    env = Memory()
    site = Site(env, {})
    edits: dict[str, int] = dict.fromkeys(FILES, 0)
    for act, what in acts:
        if act == "apply":
            report = verbs.apply(site, [SETS[what]], run="r")[0]
            assert report.error is None
            assert report.sets[0].state == "applied"
            again = verbs.apply(site, [SETS[what]], run="r")[0]
            assert again.changed is False
        elif act == "revert":
            others = {name: verbs.report_status(site, [SETS[name]])[0].sets[0].state for name in SETS if name != what}
            owned = {item["set"] for e in (env.manifest or {"files": {}})["files"].values() for item in e["patches"]}
            assert verbs.revert(site, ["pkg"], ALL, [what])[0].error is None
            for name, state in others.items():
                if name in owned:
                    assert verbs.report_status(site, [SETS[name]])[0].sets[0].state == state
        elif act == "edit":
            edits[what] += 1
            env.files[what] = b"# another hand\n" + env.files[what]
        else:
            env.files = {path: text.encode() for path, text in FILES.items()}
            env.record += 1
            edits = dict.fromkeys(FILES, 0)
    assert verbs.revert(site, ["pkg"], ALL, None)[0].error is None
    assert env.manifest is None
    assert env.files == {path: b"# another hand\n" * edits[path] + text.encode() for path, text in FILES.items()}
