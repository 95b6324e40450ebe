"""Controller files become content, blobs and trees."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from opsctl.errors import InputUnreadable
from opsctl.files import ControllerFiles
from opsctl.tasks import kind
from opsctl.tasks.base import INLINE_LIMIT


def prepare(name: str, base: Path, args: dict[str, Any]) -> dict[str, Any]:
    found = kind(name)
    assert found is not None and found.prepare is not None
    return found.prepare(found.validate(found.canonical(args)), ControllerFiles(str(base)))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "files/conf/sub").mkdir(parents=True)
    (tmp_path / "templates").mkdir()
    (tmp_path / "files/small").write_text("ä = 1\n")
    (tmp_path / "files/small").chmod(0o640)
    (tmp_path / "files/binary").write_bytes(b"\xff\xfe")
    (tmp_path / "files/large").write_text("x" * (INLINE_LIMIT + 1))
    (tmp_path / "files/conf/sub/a").write_text("A")
    (tmp_path / "files/conf/sub/a").chmod(0o755)
    (tmp_path / "files/conf/link").symlink_to("sub/a")
    (tmp_path / "templates/t.j2").write_text("port = {{ port }}\n\n")
    (tmp_path / "files/s.sh").write_text("#!/bin/sh\n")
    return tmp_path


def test_short_text_travels_inside_the_task(base: Path) -> None:
    args = prepare("copy", base, {"src": "small", "dest": "/x"})
    assert args["content"] == "ä = 1\n" and args["name"] == "small" and "src" not in args and "blob" not in args


@pytest.mark.parametrize("name", ["binary", "large"])
def test_anything_else_is_a_blob_by_its_sha256(base: Path, name: str) -> None:
    args = prepare("copy", base, {"src": name, "dest": "/x"})
    data = (base / "files" / name).read_bytes()
    assert args["blob"] == hashlib.sha256(data).hexdigest() and args["sha1"] == hashlib.sha1(data).hexdigest()
    assert "content" not in args


def test_mode_preserve_is_the_mode_of_the_controllers_file(base: Path) -> None:
    assert prepare("copy", base, {"src": "small", "dest": "/x", "mode": "preserve"})["mode"] == "0640"


def test_a_directory_is_a_list_of_entries_parents_first(base: Path) -> None:
    args = prepare("copy", base, {"src": "conf", "dest": "/etc"})
    assert args["name"] == "conf" and args["inside"] is False
    assert [(entry["path"], entry["type"]) for entry in args["tree"]] == [
        ("link", "file"), ("sub", "dir"), ("sub/a", "file"),
    ]  # fmt: skip
    assert args["tree"][0]["content"] == "A"
    assert args["tree"][2]["content"] == "A" and args["tree"][2]["mode"] == "0755"
    assert prepare("copy", base, {"src": "conf/", "dest": "/etc"})["inside"] is True


def test_links_of_a_tree_are_followed_unless_told_otherwise_and_never_in_circles(base: Path) -> None:
    (base / "files/conf/broken").symlink_to("nowhere")
    (base / "files/conf/round").symlink_to(".")
    (base / "files/conf/other").symlink_to("sub")
    args = {"src": "conf", "dest": "/e"}
    tree = {entry["path"]: entry for entry in prepare("copy", base, args)["tree"]}
    assert tree["broken"]["type"] == tree["round"]["type"] == "link"
    assert tree["other"]["type"] == "dir" and tree["other/a"]["content"] == "A"
    tree = {entry["path"]: entry for entry in prepare("copy", base, {**args, "local_follow": "no"})["tree"]}
    assert tree["other"] == {"path": "other", "type": "link", "mode": "0777", "target": "sub"}
    assert tree["link"]["target"] == "sub/a" and "other/a" not in tree


def test_content_and_files_of_the_node_need_nothing_from_here(base: Path) -> None:
    assert prepare("copy", base, {"content": "x", "dest": "/x"})["content"] == "x"
    assert prepare("copy", base, {"src": "/remote", "remote_src": True, "dest": "/x"})["src"] == "/remote"


def test_a_template_keeps_its_text_name_and_options(base: Path) -> None:
    args = prepare("template", base, {"src": "t.j2", "dest": "/x", "trim_blocks": False, "mode": "0644"})
    template = args["template"]
    assert template["source"] == "port = {{ port }}\n\n" and template["name"] == str(base / "templates/t.j2")
    assert template["options"]["trim_blocks"] is False and template["options"]["lstrip_blocks"] is False
    assert args["mode"] == "0644" and "trim_blocks" not in args and "src" not in args
    assert prepare("template", base, {"src": "t.j2", "dest": "/x"})["template"]["options"]["trim_blocks"] is True


def test_a_template_that_is_no_text_names_the_byte(base: Path) -> None:
    (base / "templates/bad.j2").write_bytes(b"a\xff")
    with pytest.raises(InputUnreadable) as bad:
        prepare("template", base, {"src": "bad.j2", "dest": "/x"})
    assert "is not UTF-8" in bad.value.what and "byte 1 is 0xff" in str(bad.value.cause)


def test_a_script_is_its_content_and_its_arguments(base: Path) -> None:
    args = prepare("script", base, {"cmd": "s.sh --mtu 9000 'a b'"})
    assert args["content"] == "#!/bin/sh\n" and args["arguments"] == "--mtu 9000 'a b'" and args["name"] == "s.sh"


def test_a_missing_file_says_where_it_was_looked_for(base: Path) -> None:
    with pytest.raises(InputUnreadable, match="not found"):
        prepare("copy", base, {"src": "nope", "dest": "/x"})
