"""The same playbooks under Ansible itself and under opsctl: values, variables, control flow, results and files are the same."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import cache
from tests.support.project import Project

HERE = Path(__file__).parent / "ansible"
VERSION = "2.19.14"
HOSTS = "".join(f"{name} ansible_connection=local ansible_python_interpreter={sys.executable}\n" for name in ("n1", "n2"))
#: Keys of results that differ from run to run, or that docs/ansible.md does not promise.
APART = frozenset(
    "delta start end atime mtime ctime inode dev elapsed invocation exception diff warnings deprecations md5sum src "
    "backup backup_file cmd dest path state failed_when_suppressed_exception attr_flags attributes version block_size "
    "blocks device_type false_condition rc gid group mode owner size uid".split()
)

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(900)]


@pytest.fixture(scope="session")
def ansible() -> Path:
    """ansible-playbook of one release, in an environment that is kept between runs."""
    python = tuple(sys.version_info[:2])
    if python < (3, 11):
        pytest.skip(f"ansible-core {VERSION} needs Python 3.11")
    venv = cache() / f"ansible-core-{VERSION}-{python[0]}.{python[1]}"
    command = venv / "bin" / "ansible-playbook"
    if not (venv / "complete").exists():
        shutil.rmtree(venv, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([venv / "bin" / "pip", "install", "-q", f"ansible-core=={VERSION}"], check=True)
        (venv / "complete").touch()
    return command


def normal(value: Any, out: str, inside_result: bool = False) -> Any:
    """``value`` without what is apart, and without the name of the directory."""
    if isinstance(value, dict):
        failed = value.get("failed") is True
        return {
            key: normal(item, out, True)
            for key, item in value.items()
            if not (inside_result and (key in APART or (failed and key == "msg")))
        }
    if isinstance(value, list):
        return [normal(item, out, inside_result) for item in value]
    return value.replace(out, "OUT").rstrip("\n") if isinstance(value, str) else value


def both(a: Any, b: Any) -> tuple[Any, Any]:
    """Both values without the keys of results that only one of them has."""
    if isinstance(a, dict) and isinstance(b, dict):
        pairs = {key: both(a[key], b[key]) for key in a if key in b}
        return {key: one for key, (one, _) in pairs.items()}, {key: other for key, (_, other) in pairs.items()}
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        found = [both(one, other) for one, other in zip(a, b, strict=True)]
        return [one for one, _ in found], [other for _, other in found]
    return a, b


def tree(folder: Path) -> dict[str, str]:
    """Names, modes, links and contents."""
    out = {}
    for path in sorted(folder.rglob("*")):
        name = re.sub(r"\.\d+\.\d{4}-\d\d-\d\d@[\d:]+~", ".BACKUP", str(path.relative_to(folder)))
        if path.suffix == ".json":
            continue
        if path.is_symlink():
            out[name] = f"-> {os.readlink(path)}"
        else:
            content = path.read_bytes().hex() if path.is_file() else ""
            out[name] = f"{stat.S_IMODE(path.stat().st_mode):04o} {content}"
    return out


@pytest.mark.parametrize("name", ["values", "language", "results"])
def test_a_playbook_means_the_same(ansible: Path, tmp_path: Path, name: str) -> None:
    """Every dumped value and every file is equal; a result of ours may have more keys, never another value."""
    project = Project(tmp_path / "project")
    shutil.copytree(HERE, project.directory, dirs_exist_ok=True)
    project.write("hosts.ini", HOSTS)
    outs = {who: tmp_path / who for who in ("ansible", "opsctl")}
    for out in outs.values():
        out.mkdir()
    env = {**project.env, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_LOCALHOST_WARNING": "False", "LC_ALL": "C.UTF-8"}
    theirs = subprocess.run(
        [ansible, "-i", "hosts.ini", f"{name}.yml", "-e", f"out={outs['ansible']}"],
        cwd=project.directory, env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert theirs.returncode == 0, theirs.stdout[-3000:] + theirs.stderr[-3000:]
    project.opsctl("deploy", f"{name}.yml", "-i", "hosts.ini", "-e", f"out={outs['opsctl']}", deadline=300).ok()
    dumps = sorted(path.name for path in outs["ansible"].glob("*.json"))
    assert dumps and dumps == sorted(path.name for path in outs["opsctl"].glob("*.json"))
    for dump in dumps:
        want, have = (normal(json.loads((out / dump).read_text()), str(out)) for out in outs.values())
        assert sorted(want) == sorted(have)
        expected, found = both(want, have)
        assert found == expected, dump
    assert tree(outs["opsctl"]) == tree(outs["ansible"])
