"""Nodes with an environment to patch, and ways to stop, break or kill what patches it at any of its steps."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from opsctl.patching.sets import dump_yaml
from tests.support.project import Project, Run, TestNode
from tests.support.running import wait_for
from tests.unit.patching.support import FIX

PKG = ("--package", "pkg")


def inventory(project: Project, *nodes: TestNode, **more: Any) -> None:
    """The nodes, each with its environment; and the patch set in the project. ``more`` are variables of all."""
    hosts = {node.name: {**node.variables, "opsctl_env": "{{ files }}/env", **more} for node in nodes}
    project.write("inventory/hosts.yml", json.dumps({"all": {"hosts": hosts}}))
    project.write("playbooks/patches/fix.yml", dump_yaml(FIX.dump()))


def patch(project: Project, verb: str, *args: str) -> Run:
    """`opsctl patch-vllm VERB` on the test's package."""
    return project.opsctl("patch-vllm", verb, *args, *PKG)


def hosts(run: Run) -> dict[str, dict[str, Any]]:
    """The entries of its ``--json``, by host."""
    return {entry["host"]: entry for entry in run.events[0]["hosts"]}


def entry(run: Run) -> dict[str, Any]:
    """The entry of the one node."""
    return hosts(run)["n1"]


def whole(site: Path) -> None:
    """Every patch is there, and nothing that passes by is left."""
    assert "def stop" in (site / "pkg/two.py").read_text() and '"c"' in (site / "pkg/one.py").read_text()
    assert not leftovers(site)


def leftovers(site: Path) -> list[Path]:
    """Files of a commit that should be gone."""
    return list(site.rglob("*opsctl*"))


WRAPPER = """\
#!/bin/bash
# The environment's Python, which waits at a gate: `find` looks for the package, `check` parses, `compile` comes last.
case "$2" in
    *opsctl-find*) step=find ;;
    *py_compile*) step=compile ;;
    *b64decode*) step=check ;;
    *) step=run ;;
esac
touch "GATES/came.$step.$$"
while [ -e "GATES/hold.$step" ]; do sleep 0.05; done
exec -a "$0" REAL "$@"
"""


class Gates:
    """Holds the acts on a node at one step each: its environment's interpreter waits."""

    def __init__(self, node: TestNode) -> None:
        self.folder = node.files / "gates"
        self.folder.mkdir()
        python = node.files / "env/bin/python"
        real = python.resolve()
        for name in python.parent.glob("python*"):
            name.unlink()
        python.write_text(WRAPPER.replace("GATES", str(self.folder)).replace("REAL", str(real)))
        python.chmod(0o755)

    def hold(self, step: str) -> None:
        """Let nobody pass this step."""
        (self.folder / f"hold.{step}").touch()

    def go(self) -> None:
        """Let everybody pass."""
        for path in self.folder.glob("hold.*"):
            path.unlink()

    def came(self, step: str) -> int:
        """How many have come to this step."""
        return len(list(self.folder.glob(f"came.{step}.*")))

    def wait(self, step: str, times: int = 1) -> None:
        """Until so many have come."""
        wait_for(lambda: self.came(step) >= times, f"{step} does not come")


AGENT = """\
#!{python} -IS
# The node's Python. A rename to a file that `fault` names goes wrong there once: the process is killed, an error is
# raised, it waits while `hold` exists, or another hand writes a file first.
import errno, os, signal, sys, time

at = sys.argv.index("-c")
code, sys.argv = sys.argv[at + 1], ["-c", *sys.argv[at + 2:]]
real, folder = os.rename, {folder!r}


def rename(source, dest, *args, **named):
    try:
        what, name, count = open(folder + "/fault").read().split()
    except OSError:
        return real(source, dest, *args, **named)
    if os.path.basename(os.fspath(dest)) == name:
        if int(count) > 1:
            with open(folder + "/fault", "w") as file:
                file.write("%s %s %d" % (what, name, int(count) - 1))
            return real(source, dest, *args, **named)
        os.unlink(folder + "/fault")
        open(folder + "/came", "w").close()
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "hold":
            while os.path.exists(folder + "/hold"):
                time.sleep(0.05)
        elif what == "edit":
            with open(os.path.join(os.path.dirname(dest), "two.py"), "a") as file:
                file.write("# another hand\\n")
        else:
            raise OSError(getattr(errno, what), os.strerror(getattr(errno, what)), dest)
    return real(source, dest, *args, **named)


os.rename = rename
exec(code)
"""


class Faults:
    """The node's own Python, in which a rename goes wrong: use ``python`` as its ansible_python_interpreter."""

    def __init__(self, node: TestNode) -> None:
        self.folder = node.files / "faults"
        self.folder.mkdir()
        self.python = self.folder / "python3"
        self.python.write_text(AGENT.format(python=sys.executable, folder=str(self.folder)))
        self.python.chmod(0o755)

    def at(self, what: str, name: str, count: int = 1) -> None:
        """At the ``count``-th rename to a file ``name``: `kill`, `hold`, `edit`, or the name of an error."""
        (self.folder / "hold").touch()
        (self.folder / "fault").write_text(f"{what} {name} {count}")

    def wait(self) -> None:
        """Until it has come to that."""
        wait_for((self.folder / "came").exists, "the rename does not come")

    def go(self) -> None:
        """Let the one that waits go on."""
        (self.folder / "hold").unlink()
