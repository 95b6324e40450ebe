"""`venv`: environments converge, in check mode as in an apply, by what is installed. The index is a folder of wheels
that the tests make; two tests ask PyPI."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent import installers, process, sitepackages
from opsctl.agent.installer_words import culprit, meaning, reason
from opsctl.agent.kinds import Fail
from opsctl.agent.kinds.venv import MARKER
from opsctl.agent.node import Node
from opsctl.agent.pypi import Sources
from opsctl.tasks.base import BadArgs
from tests.support.wheels import wheel
from tests.unit.agent.support import look, run, snapshot, twice, wire

INSTALLERS = ["uv", "pip"]


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packages: `alpha` needs `beta`, with the extra `more` also `gamma`; `clash` wants an old `beta`."""
    folder = tmp_path_factory.mktemp("wheels")
    wheel(folder, "alpha", "1.0", ("beta>=1",))
    wheel(folder, "alpha", "1.1", ("beta>=1", 'gamma ; extra == "more"', 'ghost ; sys_platform == "win32"'), ("more",))
    for version in ("1.0", "2.0"):
        wheel(folder, "beta", version)
    wheel(folder, "gamma", "0.5+local.1")
    wheel(folder, "clash", "1.0", ("beta<2",))
    return folder


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory that has uv, fetched once by the product's own means (or taken from PATH)."""
    state = tmp_path_factory.mktemp("state")
    node = Node(state_dir=str(state))
    found = installers.find_uv(node)
    if found is None:
        installers.fetch_uv(node, Sources())
    else:
        (state / "tools/uv/bin").mkdir(parents=True)
        (state / "tools/uv/bin/uv").symlink_to(found)
    return state


@pytest.fixture
def node(tools: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node with uv whose installers look nowhere but at what a task names."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")) and name not in ("PIP_CERT", "PIP_CONFIG_FILE"):
            monkeypatch.delenv(name)
    return Node(diff=True, state_dir=str(tools))


@pytest.fixture
def task(tmp_path: Path, wheels: Path) -> Callable[..., dict[str, Any]]:
    """The arguments of a task that only looks at the test's wheels."""

    def make(*packages: str, **more: Any) -> dict[str, Any]:
        base = {"path": str(tmp_path / "env"), "no_index": True, "find_links": str(wheels), "python": sys.executable}
        return {**base, **({"packages": list(packages)} if packages else {}), **more}

    return make


def versions(path: Path) -> dict[str, str]:
    site = sitepackages.look(str(path))
    assert site is not None
    found = sitepackages.installed(site.folders)
    return {name: dist.version for name, dist in found.items() if name not in ("pip", "setuptools")}


@pytest.mark.parametrize("installer", INSTALLERS)
def test_an_environment_with_packages_is_made_once(
    installer: str, task: Callable[..., dict[str, Any]], node: Node, tmp_path: Path
) -> None:
    """Check predicts it and writes nothing; the second run changes nothing; the interpreter has the packages. What
    it is doing is told meanwhile."""
    said: list[str] = []
    node.progress = said.append
    args = task("alpha[more]==1.1", installer=installer)
    change = look("venv", args, Node(check=True, state_dir=node.state_dir))
    assert change is not None and "alpha[more]==1.1" in change.msg and not (tmp_path / "env").exists()
    done = twice("venv", args, node)
    assert versions(tmp_path / "env") == {"alpha": "1.1", "beta": "2.0", "gamma": "0.5+local.1"}
    assert done.result["installer"] == installer and done.result["installed"] == {"alpha": "1.1"}
    python = done.result["python"]
    assert node.run([python, "-c", "import alpha, gamma; print(alpha.version)"]).stdout == "1.1\n"
    assert look("venv", args) is None and said[0] == "making the environment" and len(said) > 1


@pytest.mark.parametrize("installer", INSTALLERS)
def test_versions_follow_the_task(
    installer: str, task: Callable[..., dict[str, Any]], node: Node, tmp_path: Path
) -> None:
    """A pin that changes is followed; a range that holds is left alone; `upgrade` takes the newest that is allowed."""
    run("venv", task("beta==1.0", installer=installer), node)
    assert look("venv", task("beta>=1,<2", installer=installer)) is None
    assert look("venv", task("beta", installer=installer)) is None
    done = twice("venv", task("beta", installer=installer, upgrade=True), node)
    assert versions(tmp_path / "env") == {"beta": "2.0"} and done.change is not None
    assert done.change.diff is not None and "beta==2.0" in done.change.diff["after"]
    done = run("venv", task("beta<2", installer=installer), node)
    assert versions(tmp_path / "env") == {"beta": "1.0"}
    assert done.change is not None and done.change.diff is not None and done.change.diff["before"] == "beta==2.0\n"


@pytest.mark.parametrize("installer", INSTALLERS)
def test_a_failed_installation_names_the_package_and_the_reason(
    installer: str, task: Callable[..., dict[str, Any]], node: Node
) -> None:
    """A version that does not exist, a name that does not, and a conflict."""
    for packages, named, why in (
        (("beta==99.0",), "beta", "99.0"),
        (("nothing-like-it",), "nothing-like-it", "nothing-like-it"),
        (("alpha", "clash", "beta==2.0"), "", "clash"),
    ):
        with pytest.raises(Fail) as caught:
            run("venv", task(*packages, installer=installer), node)
        assert named in caught.value.result["package"], caught.value
        assert why in caught.value.cause and "could not install" in caught.value.msg
        change = look("venv", task("beta", installer=installer))
        assert change is not None and "finish" in change.msg, "a failed installation counts as done"


@pytest.mark.parametrize("installer", INSTALLERS)
def test_an_interrupted_installation_is_finished_by_the_next_run(
    installer: str, task: Callable[..., dict[str, Any]], node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while files were written: nothing torn counts as installed, whatever its dist-info says."""
    args = task("alpha==1.0", installer=installer)
    real: dict[type[installers.Installer], Any] = {cls: cls.install for cls in (installers.Uv, installers.Pip)}

    def torn(self: installers.Installer, path: str, work: installers.Work) -> None:
        real[type(self)](self, path, work)
        site = sitepackages.look(path)
        assert site is not None
        os.unlink(os.path.join(site.folders[0], "beta", "__init__.py"))
        raise KeyboardInterrupt

    for cls in real:
        monkeypatch.setattr(cls, "install", torn)
    with pytest.raises(KeyboardInterrupt):
        run("venv", args, node)
    monkeypatch.undo()
    change = look("venv", args)
    assert change is not None and "finish an interrupted installation" in change.msg
    twice("venv", args, node)
    assert (tmp_path / "env/bin/python").exists()
    assert node.run([str(tmp_path / "env/bin/python"), "-c", "import beta; beta.version"]).rc == 0


def test_a_lock_file_is_the_whole_truth(task: Callable[..., dict[str, Any]], node: Node, tmp_path: Path) -> None:
    """Exactly the listed packages: dependencies are not resolved, what is not listed goes."""
    run("venv", task("alpha[more]"), node)
    args = task(lock="lock.txt")
    extra = {"lock_content": "# made by a tool\nalpha==1.0 \\\n    # via nothing\ngamma==0.5  # kept\n"}
    done = twice("venv", args, node, extra=extra)
    assert versions(tmp_path / "env") == {"alpha": "1.0", "gamma": "0.5+local.1"}
    assert done.change is not None and "remove beta" in done.change.msg


def test_a_requirements_file_of_the_node_is_followed_with_what_it_includes(
    task: Callable[..., dict[str, Any]], node: Node, tmp_path: Path
) -> None:
    (tmp_path / "r.txt").write_text("-r more.txt\nbeta==1.0\n")
    (tmp_path / "more.txt").write_text("gamma ; python_version >= '3'\nghost ; python_version < '3'\n")
    args = task("clash", requirements=str(tmp_path / "r.txt"), remote_src=True)
    twice("venv", args, node)
    assert versions(tmp_path / "env") == {"beta": "1.0", "gamma": "0.5+local.1", "clash": "1.0"}
    (tmp_path / "more.txt").write_text("gamma\nalpha\n")
    assert run("venv", args, node).changed
    (tmp_path / "more.txt").unlink()
    with pytest.raises(Fail, match=r"more\.txt"):
        run("venv", args, node)


def test_constraints_of_the_controllers_file_are_kept(
    task: Callable[..., dict[str, Any]], node: Node, tmp_path: Path
) -> None:
    extra = {"requirements_content": "alpha\n", "constraints_content": "beta<2\n"}
    twice("venv", task(requirements="r.txt"), node, extra=extra)
    assert versions(tmp_path / "env")["beta"] == "1.0"


def test_a_package_that_somebody_removed_comes_back(
    task: Callable[..., dict[str, Any]], node: Node, tmp_path: Path
) -> None:
    """What a package needs counts too: an environment without a dependency is not done."""
    args = task("alpha==1.0")
    run("venv", args, node)
    site = sitepackages.look(str(tmp_path / "env"))
    assert site is not None
    for path in Path(site.folders[0]).glob("beta*"):
        shutil.rmtree(path)
    change = look("venv", args)
    assert change is not None and change.msg == "install beta>=1"
    twice("venv", args, node)
    assert not run("venv", task("alpha==1.0", no_deps=True), node).changed


def test_a_wheel_of_the_node_is_known_by_where_it_came_from(
    task: Callable[..., dict[str, Any]], node: Node, tmp_path: Path, wheels: Path
) -> None:
    twice("venv", task(str(wheels / "beta-1.0-py3-none-any.whl")), node)
    assert run("venv", task(str(wheels / "beta-2.0-py3-none-any.whl")), node).changed
    assert versions(tmp_path / "env") == {"beta": "2.0"}


def test_an_environment_whose_python_is_gone_is_made_anew(
    task: Callable[..., dict[str, Any]], node: Node, tmp_path: Path
) -> None:
    args = task("beta==1.0")
    run("venv", args, node)
    for name in os.listdir(tmp_path / "env/bin"):
        if name.startswith("python"):
            os.unlink(tmp_path / "env/bin" / name)
    (tmp_path / "env/bin/python").symlink_to(tmp_path / "no-python")
    change = look("venv", args)
    assert change is not None and "anew" in change.msg and "beta==1.0" in change.msg
    twice("venv", args, node)


def test_another_python_makes_the_environment_anew_and_a_failure_brings_the_old_one_back(
    task: Callable[..., dict[str, Any]], node: Node, tmp_path: Path
) -> None:
    run("venv", task("beta==1.0"), node)
    with pytest.raises(Fail):
        run("venv", task("beta==77", python=f"{sys.version_info[0]}.{sys.version_info[1] + 40}"), node)
    assert versions(tmp_path / "env") == {"beta": "1.0"} and not (tmp_path / "env.opsctl-old").exists()
    # The same when a kill left both of them.
    shutil.copytree(tmp_path / "env", tmp_path / "env.opsctl-old", symlinks=True)
    (tmp_path / "env" / MARKER).write_text('{"state": "inst')
    with pytest.raises(Fail):
        run("venv", task("beta==77"), node)
    assert versions(tmp_path / "env") == {"beta": "1.0"}
    assert not run("venv", task("beta==1.0"), node).changed
    marker = json.loads((tmp_path / "env" / MARKER).read_text())
    assert marker["state"] == "done"
    (tmp_path / "env" / MARKER).unlink()
    with pytest.raises(Fail, match="opsctl did not make it"):
        run("venv", task("beta", python="3.99"), node)


def test_absent_removes_environments_and_nothing_else(
    task: Callable[..., dict[str, Any]], node: Node, tmp_path: Path
) -> None:
    path = tmp_path / "env"
    assert not run("venv", {"path": str(path), "state": "absent"}, node).changed
    run("venv", task(), node)
    twice("venv", {"path": str(path), "state": "absent"}, node)
    assert not path.exists()
    (path / "data").mkdir(parents=True)
    before = snapshot(path)
    for args in ({"path": str(path), "state": "absent"}, task("beta")):
        with pytest.raises(Fail, match="no Python environment"):
            run("venv", args, node)
    assert snapshot(path) == before


def test_an_environment_that_somebody_else_made_is_taken_as_it_is(
    task: Callable[..., dict[str, Any]], node: Node, tmp_path: Path
) -> None:
    node.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")])
    assert not run("venv", {"path": str(tmp_path / "env")}, node).changed
    twice("venv", task("beta"), node)


def test_parents_are_made(task: Callable[..., dict[str, Any]], node: Node, tmp_path: Path) -> None:
    twice("venv", task("beta", path=str(tmp_path / "a/b/env")), node)
    assert versions(tmp_path / "a/b/env") == {"beta": "2.0"}


def test_a_place_that_cannot_be_written_fails_in_check_mode_as_in_an_apply(
    task: Callable[..., dict[str, Any]], node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write everywhere, so that the system's answer is made up here. What is there already is fine."""
    run("venv", task("beta"), node)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK | os.X_OK)
    assert not run("venv", task("beta"), node).changed
    for args in (task("gamma"), task("beta", path=str(tmp_path / "other/env"))):
        with pytest.raises(Fail, match="cannot write in"):
            look("venv", args)


def test_pip_without_that_python_fails_in_check_mode_as_in_an_apply(tmp_path: Path, node: Node) -> None:
    args = {"path": str(tmp_path / "env"), "python": "3.99", "installer": "pip"}
    for one in (Node(check=True), node):
        with pytest.raises(Fail, match=r"no Python 3\.99"):
            run("venv", args, one)


def test_addresses_with_credentials_are_never_arguments(
    task: Callable[..., dict[str, Any]], node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They reach the installer in its environment."""
    run("venv", task(), node)
    calls: list[tuple[list[str], dict[str, str]]] = []

    def record(argv: list[str], **kw: Any) -> process.Completed:
        calls.append((argv, kw["env"]))
        done = process.Completed(argv, 0.0)
        done.rc = 1 if "install" in argv else 0
        return done

    monkeypatch.setattr(process, "run", record)
    for installer in INSTALLERS:
        address = f"https://me:hunter2@{installer}.example/simple"
        with pytest.raises(Fail):
            run("venv", task("beta", installer=installer, index_url=address, extra_index_url=[address]), node)
        assert "hunter2" in str(calls[-1][1]) and "install" in calls[-1][0]
    assert all("hunter2" not in " ".join(argv) for argv, _ in calls)


def test_uv_takes_what_pip_is_configured_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://mirror.example/simple\nfind-links = /srv/wheels\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    node = Node()
    uv = installers.Uv(node, Sources(), "uv")
    assert uv.where["UV_DEFAULT_INDEX"] == "https://mirror.example/simple"
    assert uv.where["UV_FIND_LINKS"] == "/srv/wheels"
    own = installers.Uv(node, Sources(index_url="https://other.example"), "uv")
    assert own.where["UV_DEFAULT_INDEX"] == "https://other.example"


def test_a_look_starts_no_program_and_takes_milliseconds(
    task: Callable[..., dict[str, Any]], node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Convergence of an environment with 300 packages is read from its files alone."""
    run("venv", task("alpha[more]"), node)
    site = sitepackages.look(str(tmp_path / "env"))
    assert site is not None
    for number in range(300):
        info = Path(site.folders[0]) / f"many{number}-1.{number}.dist-info"
        info.mkdir()
        head = f"Name: many{number}\nVersion: 1.{number}\n"
        (info / "METADATA").write_text(head + f"Requires-Dist: many{max(0, number - 1)}\n")
    monkeypatch.setattr(process, "run", lambda *_, **__: pytest.fail("a program was started"))
    started = time.perf_counter()
    assert look("venv", task("alpha[more]", "many299")) is None
    print(f"300 packages: {1000 * (time.perf_counter() - started):.0f} ms")


@pytest.mark.parametrize("installer", INSTALLERS)
def test_from_the_index(installer: str, tools: Path, tmp_path: Path) -> None:
    """The same with PyPI, as the machine is configured for it."""
    args = {"path": str(tmp_path / "env"), "packages": "six==1.16.0", "installer": installer, "python": sys.executable}
    node = Node(state_dir=str(tools))
    twice("venv", args, node)
    assert versions(tmp_path / "env")["six"] == "1.16.0"


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"packages": ["vllm = 1"]}, "version clause"),
        ({"packages": ["two words"]}, "version clause"),
        ({"packages": [{"a": 1}]}, "no package"),
        ({"python": ">=3.10"}, "cannot be"),
        ({"lock": "uv.lock"}, "uv export"),
        ({"lock": "a.txt", "packages": "b"}, "either"),
        ({"no_index": True}, "find_links"),
        ({"state": "absent", "packages": "x"}, "takes no packages"),
        ({"installer": "pip", "torch_backend": "auto"}, "needs uv"),
        ({"installer": "conda"}, "must be one of"),
        ({"virtualenv": "/x"}, "is not supported"),
    ],
)
def test_bad_arguments_are_refused(bad: dict[str, Any], says: str) -> None:
    with pytest.raises(BadArgs) as caught:
        wire("venv", {"path": "/x", **bad})
    text = " ".join(f"{problem.what} {problem.hint}" for problem in caught.value.problems)
    assert says in text


UV_OLD = """\
Using Python 3.12.1 environment at: /tmp/e
  \u00d7 No solution found when resolving dependencies:
  ╰─▶ Because there is no version of foo==9 and you require foo==9, we can
      conclude that your requirements are unsatisfiable.

      hint: `foo` was found on the default index, but not at the requested version.
"""
UV_NEW = """\
Using Python 3.11.7 environment at: /tmp/e
error: No solution found when resolving dependencies
  cause: Because nothing-like-it was not found in the package registry and you require nothing-like-it, we can conclude
"""
PIP = """\
WARNING: Location 'file:///srv/simple/foo/' is ignored: it is neither a file nor a directory.
ERROR: Could not find a version that satisfies the requirement foo==9 (from versions: 1.0, 1.1)
ERROR: No matching distribution found for foo==9
"""


@pytest.mark.parametrize(("text", "package", "why"), [
    (UV_OLD, "foo==9", "there is no version of foo==9"),
    (UV_NEW, "nothing-like-it", "not found in the package registry"),
    (PIP, "foo==9", "from versions: 1.0, 1.1"),
    ("error: Failed to build `bar==1.0`\n  cause: the backend failed\n", "bar", "the backend failed"),
])  # fmt: skip
def test_reasons_are_read_from_what_the_installers_say(text: str, package: str, why: str) -> None:
    cause, hint = reason("", text)
    assert why in cause and culprit(cause).startswith(package.partition("==")[0])
    assert "hint" not in cause and (text is not UV_OLD or "default index" in hint)


@pytest.mark.parametrize(("line", "text"), [
    ("Resolved 120 packages in 3.2s", "resolved 120 packages"),
    ("Downloading torch (170.0MiB)", "downloading torch (170.0MiB)"),
    ("  Downloading torch-2.9-cp312-none-linux_x86_64.whl (899 MB)",
     "downloading torch-2.9-cp312-none-linux_x86_64.whl (899 MB)"),
    ("Installing collected packages: a, b, c", "installing 3 packages"),
    ("Collecting torch==2.9", "resolving torch==2.9"),
    ("   Building flash-attn==2.8", "building flash-attn"),
    ("Using Python 3.12 environment", ""),
])  # fmt: skip
def test_progress_is_what_the_line_means(line: str, text: str) -> None:
    assert meaning(line) == text


@pytest.fixture(autouse=True)
def _no_leftovers(tmp_path: Path) -> Iterator[None]:
    yield
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".opsctl-old")]
