"""A machine with nothing but Python, pip and git can make the environment and run tests: as root and as a user."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.lab import FRESH, image

ROOT = Path(__file__).parents[2]

#: How pip and TLS find their way on this machine: a fresh one in the same network needs the same.
CONFIGURATION = (
    "/etc/pip.conf",
    "/etc/xdg/pip",
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/ssl/certs/ca-certificates.crt",
)


class Machine:
    """A fresh Debian tree, entered by chroot, with the network of this machine."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        for name in ("upper", "work", "root"):
            (directory / name).mkdir(parents=True)
        options = f"lowerdir={image(FRESH)},upperdir={directory}/upper,workdir={directory}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, self.root], check=True)
        try:
            subprocess.run(["mount", "-t", "proc", "proc", self.root / "proc"], check=True)
            subprocess.run(["mount", "--bind", "/dev", self.root / "dev"], check=True)
            self._configure()
        except BaseException:
            self.close()
            raise

    def _configure(self) -> None:
        for name in CONFIGURATION:
            self._bring(Path(name), name)
        self._bring(Path(pwd.getpwuid(os.getuid()).pw_dir, ".config/pip"), "/etc/xdg/pip")
        for variable in ("PIP_FIND_LINKS", "PIP_CERT", "PIP_CONSTRAINT", "PIP_CONFIG_FILE"):
            for word in os.environ.get(variable, "").split():
                if word.startswith("/"):
                    self._bring(Path(word), word)

    def _bring(self, source: Path, name: str) -> None:
        target = self.root / name.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif source.exists():
            target.unlink(missing_ok=True)
            shutil.copy(source, target)

    def run(self, *command: str, user: str = "root", timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """Run a command as ``user`` in the user's home, with pip's variables of this machine and no others."""
        pip = [f"{key}={value}" for key, value in os.environ.items() if key.startswith("PIP_")]
        home = "/root" if user == "root" else f"/home/{user}"
        env = ["env", "-i", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", f"HOME={home}", "LANG=C.UTF-8", *pip]
        enter = ["chroot", f"--userspec={user}:{user}", str(self.root), *env]
        full = [*enter, "sh", "-c", 'cd "$HOME" && exec "$@"', "sh", *command]
        return subprocess.run(full, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)

    def close(self) -> None:
        for place in ("dev", "proc", "."):
            if os.path.ismount(self.root / place):
                subprocess.run(["umount", self.root / place], check=True)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    made = Machine(tmp_path_factory.mktemp("fresh"))
    yield made
    made.close()


def copy_checkout(target: Path) -> None:
    """What git knows of the checkout, as it lies there now."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0"):
        source = ROOT / name
        if name and source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("user", ["root", "somebody"])
def test_a_fresh_machine_runs_the_tests(machine: Machine, user: str) -> None:
    """``git clone`` (here: a copy), ``./scripts/test unit -k smoke``: the environment is made, tests run and pass, a
    second run does not make it again."""
    missing = machine.run("python3", "-c", "import ensurepip; ensurepip._bootstrap")
    assert missing.returncode != 0, "this proof is about a machine without ensurepip"
    if user != "root":
        assert machine.run("useradd", "--create-home", user).returncode == 0
    home = machine.root / ("root" if user == "root" else f"home/{user}")
    copy_checkout(home / "opsctl")
    if user != "root":
        owner = home.stat()
        subprocess.run(["chown", "-R", f"{owner.st_uid}:{owner.st_gid}", home / "opsctl"], check=True)
    assert machine.run("git", "init", "--quiet", "opsctl", user=user).returncode == 0
    command: Sequence[str] = ("./opsctl/scripts/test", "unit", "-m", "smoke")
    first = machine.run(*command, user=user)
    said = first.stderr[-1500:] + first.stdout
    assert first.returncode == 0, said[-8000:]
    passed, failed = first.stdout.splitlines()[-1].split(", ")[:2]
    assert int(passed.split()[0]) > 0 and failed == "0 failed", said[-2000:]
    assert "making" in first.stderr
    again = machine.run(*command, user=user)
    assert again.returncode == 0 and "making" not in again.stderr
    version = machine.run("./opsctl/.venv/bin/opsctl", "--version", user=user)
    assert version.stdout.startswith("opsctl "), version.stderr


@pytest.mark.timeout(900)
@pytest.mark.parametrize("user", ["root", "somebody"])
def test_a_fresh_machine_runs_the_demo(machine: Machine, user: str) -> None:
    """`./scripts/demo --engine rehearsal` in that checkout: root gets the SSH server that is missing, an ordinary user
    needs nothing else; nothing of it runs afterwards."""
    done = machine.run("./opsctl/scripts/demo", "--engine", "rehearsal", user=user)
    assert done.returncode == 0, done.stderr[-4000:]
    assert ("Installed openssh-server." in done.stderr) == (user == "root"), done.stderr
    assert "nothing to change on 1 host" in done.stderr and "stopped: " in done.stdout
    mine = f"{'/root' if user == 'root' else '/home/somebody'}/.cache/opsctl/demo"
    left = machine.run("sh", "-c", f"cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -c '^{mine}/[s]'")
    assert left.stdout.strip() == "0"
