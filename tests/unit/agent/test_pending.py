"""Check mode: which pending changes make a look worthless, and which leave it as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.kinds import Pair, affected, load
from tests.unit.agent.support import wire


@pytest.mark.parametrize(
    ("kind", "args", "write", "wanted"),
    [
        ("copy", {"dest": "{}/d/x", "content": "a"}, ("path", "{}/d/x"), True),
        ("copy", {"dest": "{}/d/x", "content": "a"}, ("dir", "{}/d"), False),
        ("copy", {"dest": "{}/d/x", "content": "a"}, ("path", "{}/d"), True),
        ("copy", {"dest": "{}/d/x", "content": "a"}, ("path", "{}/d/xy"), False),
        ("copy", {"dest": "{}/link/x", "content": "a"}, ("path", "{}/real/x"), True),
        ("file", {"path": "{}/n", "state": "directory"}, ("dir", "{}/n/m"), True),
        ("file", {"path": "{}/real", "state": "directory"}, ("dir", "{}/real/m"), False),
        ("file", {"path": "{}/real", "state": "directory", "recurse": True}, ("path", "{}/real/m"), True),
        ("shell", {"cmd": "x", "creates": "{}/a*/b"}, ("path", "{}/abc"), True),
        ("shell", {"cmd": "x"}, ("path", "{}/abc"), False),
        ("user", {"name": "llm"}, ("user", "llm"), True),
        ("apt", {"name": "curl=7.*"}, ("package", "curl"), True),
        ("apt", {"name": "curl"}, ("package", "tmux"), False),
        ("systemd", {"name": "x", "state": "started"}, ("unit", "x.service"), True),
        ("systemd", {"name": "x", "state": "restarted"}, ("unit", "x.service"), False),
        ("copy", {"dest": "{}/x", "content": "a"}, ("any", ""), False),
    ],
)
def test_a_look_is_worth_nothing_only_where_a_pending_change_reaches(
    tmp_path: Path, kind: str, args: dict[str, Any], write: Pair, wanted: bool
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    here = {
        name: value.replace("{}", str(tmp_path)) if isinstance(value, str) else value for name, value in args.items()
    }
    pair = (write[0], write[1].replace("{}", str(tmp_path)))
    assert affected(load(kind)().watches(wire(kind, here)), [pair]) is wanted
