"""`opsctl patch-vllm` on a local tree: what it says, its JSON, its exit codes, and `new`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from click.testing import CliRunner

from opsctl.cli.patch_vllm import command
from opsctl.errors import OpsError
from opsctl.patching.sets import dump_yaml
from opsctl.patching.verbs import Verified
from opsctl.ui.patching import verify_text

from .support import FILES, LIST, METHOD, ONE, contents, install, make_set

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one set, and a tree beside it."""
    folder = tmp_path / "playbooks" / "patches"
    folder.mkdir(parents=True)
    patch_set = make_set(LIST, METHOD, versions=">=1.2,<2")
    (folder / "fix.yml").write_text(dump_yaml(patch_set.dump()))
    install(tmp_path / "site")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args: str) -> tuple[int, str, str]:
    """Exit status, stdout, stderr of one command line."""
    result = CliRunner().invoke(command, list(args), standalone_mode=False)
    if isinstance(result.exception, OpsError):
        return result.exception.exit_code, result.stdout, result.exception.what
    if result.exception is not None:
        raise result.exception
    return int(result.return_value), result.stdout, result.stderr


def golden(name: str, text: str, project: Path) -> None:
    """The text is that of a file, with the project's folder called PROJECT; OPSCTL_TEST_WRITE_GOLDEN=1 writes it."""
    shown = re.sub(r"since run \w+", "since run RUN", text.replace(str(project.resolve()), "PROJECT"))
    if os.environ.get("OPSCTL_TEST_WRITE_GOLDEN"):
        (GOLDEN / f"{name}.txt").write_text(shown)
    assert shown == (GOLDEN / f"{name}.txt").read_text(), f"golden {name}:\n{shown}"


TARGET = ("--root", "site", "--package", "pkg")


def test_the_story(project: Path) -> None:
    """status, diff, apply, again, an edit by another hand, revert: every text as people see it."""
    out = []
    one = project / "site/pkg/one.py"

    def step(*args: str) -> None:
        code, stdout, stderr = run(*args, *TARGET)
        out.append(f"$ opsctl patch-vllm {' '.join([*args, *TARGET])}\n{stdout}{stderr}[{code}]\n")

    step("status")
    step("diff")
    step("apply", "--check")
    step("apply")
    step("apply")
    one.write_text(one.read_text().replace('"c"', '"d"'))
    step("status", "--check")
    step("diff")
    step("apply")
    step("revert")
    one.write_text(ONE)
    step("status")
    step("revert")
    step("revert")
    golden("story", "\n".join(out), project)


def test_a_mismatch(project: Path) -> None:
    """What was looked for and the nearest thing; nothing written; exit 1."""
    two = project / "site/pkg/two.py"
    two.write_text(two.read_text().replace("Engine", "Engines"))
    out = []
    for args in (("status",), ("apply",)):
        code, stdout, stderr = run(*args, *TARGET)
        out.append(f"$ opsctl patch-vllm {' '.join(args)}\n{stdout}{stderr}[{code}]\n")
    golden("mismatch", "\n".join(out), project)


def test_json(project: Path) -> None:
    """The published shape, for status, apply and revert."""

    def shape(*args: str) -> dict[str, Any]:
        code, stdout, _ = run(*args, "--json", *TARGET)
        assert code == 0
        value: dict[str, Any] = json.loads(stdout)
        return value

    value = shape("status")
    assert value == {
        "version": 1,
        "hosts": [
            {
                "host": None,
                "package": "pkg",
                "installed": "1.2.0",
                "root": str((project / "site").resolve()),
                "sets": [
                    {
                        "name": "fix",
                        "state": "clean",
                        "patches": [
                            {"name": "list", "file": "pkg/one.py", "state": "clean", "detail": "not applied"},
                            {"name": "method", "file": "pkg/two.py", "state": "clean", "detail": "not applied"},
                        ],
                    }
                ],
            }
        ],
    }
    applied = shape("apply")["hosts"][0]
    assert (applied["changed"], applied["sets"][0]["state"]) == (True, "applied")
    assert shape("apply")["hosts"][0]["changed"] is False
    undone = shape("revert")["hosts"][0]
    assert (undone["changed"], undone["sets"][0]["state"]) == (True, "clean")
    assert shape("revert")["hosts"][0]["changed"] is False


def test_exit_codes(project: Path) -> None:
    """0; 8 for --check when something is not in place; 1 refused; 2 usage; 3 no such tree."""
    assert run("status", *TARGET)[0] == 0
    assert run("status", "--check", *TARGET)[0] == 8
    assert run("apply", "--check", *TARGET)[0] == 8
    assert run("apply", *TARGET)[0] == 0
    assert run("status", "--check", *TARGET)[0] == 0
    assert run("apply", "--check", *TARGET)[0] == 0
    assert run("status", "--set", "fixx", *TARGET)[0] == 2
    assert run("status", "--root", "nowhere", "--package", "pkg")[0] == 3
    assert run("status", "--root", ".", "--package", "pkg")[0] == 3
    assert run("status")[0] == 2
    assert run("status", "--local", "--env", "nowhere", *TARGET[2:])[0] == 2
    assert run("status", "--env", ".", "--root", "site", *TARGET[2:])[0] == 2
    (project / "site/pkg/two.py").write_text("x = 1\n")
    (project / "site/.opsctl/manifest.json").unlink()
    assert run("apply", *TARGET)[0] == 1


def test_no_terminal_obeys_what_lies_on_a_node(project: Path) -> None:
    """Escapes, carriage returns and marks that turn text around, in files or in what a check prints, are shown."""
    assert run("apply", *TARGET)[0] == 0
    path = project / "site/pkg/one.py"
    path.write_text(path.read_text() + "x = 1  # \x1b[2J\x07 \u202e hidden\ry\n", newline="")
    shown = run("diff", *TARGET)[1]
    assert "+x = 1  # \\x1b[2J\\x07 \\u202e hidden\\ry\n" in shown
    said = verify_text([Verified("fix", False, "\x1b]0;title\x07bad\n", "exit 1\x1b[1m")])
    assert said == "fix  failed  exit 1\n  bad\n"


def test_apply_asks_which_set(project: Path) -> None:
    """With several sets of a package, `apply` wants a name; `status` and `diff` show all that can be shown."""
    other = make_set(LIST, name="other").dump()
    other["patches"][0]["file"] = "pkg/absent.py"
    (project / "playbooks/patches/other.yml").write_text(dump_yaml(other))
    code, _, what = run("apply", *TARGET)
    assert (code, what) == (2, "say which patch set to apply: --set NAME")
    assert run("apply", "--set", "fix", *TARGET)[0] == 0
    code, stdout, _ = run("status", *TARGET)
    assert "absent" in stdout
    assert run("status", "--check", *TARGET)[0] == 0, "what does not apply here is not missed, unless it is named"
    assert run("status", "--check", "--set", "other", *TARGET)[0] == 8
    assert run("diff", *TARGET)[:2] == (0, "")
    code, _, what = run("diff", "--set", "other", *TARGET)
    assert (code, what) == (1, "patch other/list does not apply to pkg 1.2.0")
    _, stdout, _ = run("revert", *TARGET)
    assert "other" not in stdout


def test_new_records_an_edited_tree(project: Path) -> None:
    """`new` writes a set of unified diffs against the wheel; on a pristine tree it applies, and reverts."""
    wheel = project / "pkg-1.2.0-py3-none-any.whl"
    with ZipFile(wheel, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
    one = project / "site/pkg/one.py"
    one.write_text(ONE.replace("use(item)", "use(item, 2)").rstrip("\n"))
    edited = contents(project / "site")
    assert run("new", "mine", "--root", "site", "--package", "pkg", "--wheel", str(wheel))[0] == 0
    written = (project / "playbooks/patches/mine.yml").read_text()
    assert "      diff: |\n        --- pkg/one.py\n" in written and "\n        +        use(item, 2)\n" in written
    again = run("new", "mine", "--root", "site", "--package", "pkg", "--wheel", str(wheel))
    assert again[0] == 2
    pristine = contents(install(project / "site"))
    assert run("apply", "--set", "mine", *TARGET)[0] == 0
    assert contents(project / "site") == edited
    assert run("apply", "--set", "mine", *TARGET)[0] == 0
    assert run("revert", "--set", "mine", *TARGET)[0] == 0
    assert contents(project / "site") == pristine
    code, _, error = run("new", "other", "--root", "site", "--package", "pkg", "--wheel", str(wheel))
    assert (code, error) == (2, "no file of pkg differs from what was shipped")


@pytest.fixture
def env(project: Path) -> Path:
    """A virtual environment with the package in it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(project / "env")], check=True)
    (site,) = (project / "env").glob("lib/python3*/site-packages")
    install(site)
    return site


def test_a_broken_file_does_not_hide_the_other_sets(project: Path) -> None:
    """`status` shows the sets that can be read, says what is wrong with each file that is none and where, and fails;
    verbs that write are refused before they look at anything."""
    patches = project / "playbooks" / "patches"
    (patches / "aaa.yml").write_text("name: aaa\npackage: pkg\nfor: x\npatchs: []\n")
    (patches / "bbb.yml").write_text("name: [\n")
    code, stdout, stderr = run("status", *TARGET)
    assert code == 2
    assert "patch set fix" in stdout
    assert "playbooks/patches/aaa.yml:4:1" in stderr and "did you mean `patches`?" in stderr
    assert "playbooks/patches/bbb.yml:2:1" in stderr
    code, stdout, _ = run("status", "--json", "--set", "fix", *TARGET)
    found = json.loads(stdout)
    assert code == 2 and [item["name"] for item in found["hosts"][0]["sets"]] == ["fix"]
    assert [error["at"]["file"] for error in found["errors"]] == [f"playbooks/patches/{n}.yml" for n in ("aaa", "bbb")]
    assert run("status", "--set", "aaa", *TARGET) == (2, "", "a patch set has no `patchs`")
    before = contents(project / "site")
    assert run("apply", "--set", "fix", *TARGET) == (2, "", "a patch set has no `patchs`")
    assert contents(project / "site") == before


def verify_set(project: Path, source: str, timeout: int = 60) -> None:
    """Give the set a check."""
    values = make_set(LIST, METHOD).dump()
    values["verify"] = {"python": source, "timeout": timeout}
    (project / "playbooks/patches/fix.yml").write_text(dump_yaml(values))


def test_verify_runs_in_the_environment(project: Path, env: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The set's check runs in the environment's interpreter; its output is shown; not applied is a failure."""
    monkeypatch.setenv("OPSCTL_NODE_STATE_DIR", str(project / "state"))
    verify_set(project, "import pkg.two, pkg.one\nprint(pkg.one.SUPPORTED)\npkg.two.Engine().stop\n")
    where = ("--local", "--env", "env", "--package", "pkg")
    assert run("verify", *where)[:2] == (1, "fix  failed  clean: apply it first\n")
    assert run("apply", *where)[0] == 0
    assert run("verify", *where)[:2] == (0, "fix  verified\n  ['a', 'b', 'c']\n")
    assert not (env / ".opsctl").exists()
    assert list((project / "state" / "patches").iterdir())
    verify_set(project, "raise SystemExit('wrong')")
    assert run("verify", *where)[:2] == (1, "fix  failed  exit 1\n  wrong\n")


def test_verify_has_a_deadline(project: Path, env: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that hangs is ended with everything that it started."""
    monkeypatch.setenv("OPSCTL_NODE_STATE_DIR", str(project / "state"))
    sleep = "[sys.executable, '-c', 'import time; time.sleep(600)']"
    hang = f"import subprocess, sys\nprint('begin', flush=True)\nsubprocess.run({sleep})\n"
    verify_set(project, hang, timeout=1)
    where = ("--local", "--env", "env", "--package", "pkg")
    assert run("apply", *where)[0] == 0
    assert run("verify", *where)[:2] == (1, "fix  failed  no answer in 1 s\n  begin\n")


def test_a_running_server_needs_restart(project: Path, env: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was started from the environment before the change is named."""
    monkeypatch.setenv("OPSCTL_NODE_STATE_DIR", str(project / "state"))
    python = project / "env/bin/python"
    code = "import pkg.one, sys; print('up', flush=True); sys.stdin.read()"
    server = subprocess.Popen([str(python), "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"up\n"
        _, stdout, _ = run("apply", "--local", "--env", "env", "--package", "pkg")
        assert f"needs restart: pid {server.pid}" in stdout
        _, stdout, _ = run("apply", "--local", "--env", "env", "--package", "pkg")
        assert "needs restart" not in stdout
    finally:
        server.kill()
        server.communicate()


def test_editable_and_user_installs(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is found where the interpreter imports it from: a path file to a source tree, the user's site."""
    monkeypatch.setenv("OPSCTL_NODE_STATE_DIR", str(project / "state"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(project / "env")], check=True)
    (site,) = (project / "env").glob("lib/python3*/site-packages")
    source = install(project / "checkout", record=False)
    (site / "editable.pth").write_text(str(source) + "\n")
    code, stdout, _ = run("status", "--json", "--local", "--env", "env", "--package", "pkg")
    host = json.loads(stdout)["hosts"][0]
    assert (code, host["root"], host["installed"]) == (0, str(source.resolve()), "1.2.0")
    ask = "import json, site; print(json.dumps([site.getusersitepackages(), bool(site.ENABLE_USER_SITE)]))"
    base = Path(sys.base_prefix, "bin", "python3")
    home = {**os.environ, "PYTHONUSERBASE": str(project / "user")}
    monkeypatch.setenv("PYTHONUSERBASE", home["PYTHONUSERBASE"])
    done = subprocess.run([str(base), "-c", ask], capture_output=True, text=True, env=home, check=True)
    user, enabled = json.loads(done.stdout)
    assert enabled
    install(Path(user))
    code, stdout, _ = run("status", "--json", "--local", "--env", str(base), "--package", "pkg")
    assert (code, json.loads(stdout)["hosts"][0]["root"]) == (0, str(Path(user).resolve()))
