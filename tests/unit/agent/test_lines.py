"""`lineinfile`: Ansible's rules of which line is meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.kinds import Fail
from opsctl.tasks.base import BadArgs
from tests.unit.agent.support import look, run, twice

TEXT = "alpha = 1\nbeta = 2\nalpha = 3\n# end\n"

CASES: list[tuple[str, dict[str, Any], str]] = [
    ("new line at the end", {"line": "x = 1"}, TEXT + "x = 1\n"),
    ("last match replaced", {"regexp": "^alpha", "line": "alpha = 9"}, "alpha = 1\nbeta = 2\nalpha = 9\n# end\n"),
    (
        "first match replaced",
        {"regexp": "^alpha", "line": "alpha = 9", "firstmatch": True},
        "alpha = 9\nbeta = 2\nalpha = 3\n# end\n",
    ),
    ("plain text searched", {"search_string": "a = 2", "line": "b"}, "alpha = 1\nb\nalpha = 3\n# end\n"),
    ("no match adds", {"regexp": "^gamma", "line": "gamma = 1"}, TEXT + "gamma = 1\n"),
    ("behind the last match", {"line": "x", "insertafter": "^alpha"}, "alpha = 1\nbeta = 2\nalpha = 3\nx\n# end\n"),
    ("before the last match", {"line": "x", "insertbefore": "^alpha"}, "alpha = 1\nbeta = 2\nx\nalpha = 3\n# end\n"),
    (
        "before the first match",
        {"line": "x", "insertbefore": "^alpha", "firstmatch": True},
        "x\n" + TEXT,
    ),
    ("at the beginning", {"line": "x", "insertbefore": "BOF"}, "x\n" + TEXT),
    ("nothing to go behind", {"line": "x", "insertafter": "^nope"}, TEXT + "x\n"),
    (
        "back references",
        {"regexp": r"^(beta) = (\d)", "line": r"\1 = \g<2>0", "backrefs": True},
        "alpha = 1\nbeta = 20\nalpha = 3\n# end\n",
    ),
    ("removed by pattern", {"regexp": "^alpha", "state": "absent"}, "beta = 2\n# end\n"),
    ("removed by text", {"search_string": "= 2", "state": "absent"}, "alpha = 1\nalpha = 3\n# end\n"),
    ("removed as it is", {"line": "# end", "state": "absent"}, "alpha = 1\nbeta = 2\nalpha = 3\n"),
]


@pytest.mark.parametrize(("args", "wanted"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_right_line_changes_and_only_once(tmp_path: Path, args: dict[str, Any], wanted: str) -> None:
    path = tmp_path / "f"
    path.write_text(TEXT)
    if args.get("backrefs"):  # what it matches is still there afterwards, longer every time
        run("lineinfile", {"path": str(path), **args})
    else:
        twice("lineinfile", {"path": str(path), **args})
    assert path.read_text() == wanted


@pytest.mark.parametrize(
    "args",
    [
        {"line": "beta = 2"},
        {"line": "beta = 2", "insertbefore": "BOF"},
        {"regexp": "^beta", "line": "beta = 2"},
        {"regexp": "^nope", "line": "beta = 2"},
        {"regexp": "^(nope)", "line": r"\1", "backrefs": True},
        {"line": "nope", "state": "absent"},
    ],
)
def test_what_is_so_already_is_left_alone(tmp_path: Path, args: dict[str, Any]) -> None:
    path = tmp_path / "f"
    path.write_text(TEXT)
    assert look("lineinfile", {"path": str(path), **args}) is None


def test_line_ends_and_bytes_that_are_no_text_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"a = 1\r\nb = \xff\xfe\r\nlast")
    twice("lineinfile", {"path": str(path), "regexp": "^a", "line": "a = 2"})
    twice("lineinfile", {"path": str(path), "line": "c = 3"})
    assert path.read_bytes() == b"a = 2\r\nb = \xff\xfe\r\nlast\r\nc = 3\r\n"


def test_a_missing_file_needs_create(tmp_path: Path) -> None:
    args = {"path": f"{tmp_path}/f", "line": "x"}
    with pytest.raises(Fail, match="does not exist") as failed:
        run("lineinfile", args)
    assert failed.value.needs == (("path", f"{tmp_path}/f"),)
    twice("lineinfile", {**args, "create": True, "mode": "0600"})
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600


def test_a_line_gone_from_a_missing_file_is_nothing_to_do(tmp_path: Path) -> None:
    assert look("lineinfile", {"path": f"{tmp_path}/f", "line": "x", "state": "absent"}) is None
    assert run("lineinfile", {"path": f"{tmp_path}/f", "line": "x", "state": "absent"}).result["found"] == 0


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("a\n")
    (tmp_path / "link").symlink_to("real")
    twice("lineinfile", {"path": f"{tmp_path}/link", "line": "b"})
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "a\nb\n"


def test_drift_of_content_and_mode_is_found(tmp_path: Path) -> None:
    path = tmp_path / "f"
    args = {"path": str(path), "regexp": "^a", "line": "a = 1", "create": True, "mode": "0640"}
    twice("lineinfile", args)
    path.write_text("a = 2\n")
    assert twice("lineinfile", args).result["msg"] == "line replaced"
    path.chmod(0o600)
    assert twice("lineinfile", args).result["msg"] == "ownership or permissions changed"


def test_backup_and_validate(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("ok\n")
    with pytest.raises(Fail, match="did not pass"):
        run("lineinfile", {"path": str(path), "line": "bad", "validate": "sh -c '! grep bad $0' %s"})
    assert path.read_text() == "ok\n"
    done = twice("lineinfile", {"path": str(path), "line": "fine", "backup": True})
    assert Path(done.result["backup"]).read_text() == "ok\n"


def test_a_wrong_pattern_names_the_argument(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x\n")
    with pytest.raises(Fail, match="`regexp` is no regular expression"):
        run("lineinfile", {"path": f"{tmp_path}/f", "regexp": "(", "line": "x"})


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "needs `line`"),
        ({"line": "a\nb"}, "takes one line"),
        ({"line": "a", "backrefs": True}, "needs `regexp`"),
        ({"line": "a", "regexp": "a", "search_string": "a"}, "either `regexp` or `search_string`"),
        ({"line": "a", "insertafter": "a", "insertbefore": "a"}, "either `insertafter` or `insertbefore`"),
        ({"state": "absent"}, "needs one of"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises(BadArgs, match=message):
        look("lineinfile", {"path": "/x", **args})
