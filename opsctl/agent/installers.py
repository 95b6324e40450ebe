"""uv and pip: find one (or fetch it), make environments, install into them, and say why it failed."""

import os
import re
import shutil
import sys
import tempfile
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Sequence

from . import process, pypi, sitepackages
from .installer_words import Follow, failed
from .kinds import Fail
from .pypi import Sources
from .temporary import Folder

if TYPE_CHECKING:
    from .node import Node

#: Where uv may be beside PATH.
UV_PLACES = ("~/.local/bin/uv", "~/.cargo/bin/uv", "/usr/local/bin/uv", "/opt/uv/uv")
#: Variables that would make an installer look at another environment.
_FOREIGN = ("VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH", "CONDA_PREFIX", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")
_QUIET = {"NO_COLOR": "1", "PYTHONUNBUFFERED": "1", "LC_ALL": "C.UTF-8"}


class Work(NamedTuple):
    """What is installed: a requirements file, and how."""

    file: str
    deps: bool = True
    upgrade: bool = False
    extra: Sequence[str] = ()


class Installer(ABC):
    """One of the two. ``name`` is `uv` or `pip`; all methods raise `Fail` with the program's own reason."""

    name = ""

    def __init__(self, node: "Node", sources: Sources) -> None:
        self.node = node
        self.sources = sources
        self.env = environment(node)

    @abstractmethod
    def create(self, path: str, python: str, site_packages: bool) -> None:
        """Make an environment at ``path``, whose directory exists."""

    @abstractmethod
    def install(self, path: str, work: Work) -> None:
        """Install into the environment at ``path``."""

    @abstractmethod
    def uninstall(self, path: str, names: Sequence[str]) -> None:
        """Remove packages from the environment at ``path``."""

    @abstractmethod
    def newer(self, path: str, work: Work) -> List[str]:
        """What `install` with ``upgrade`` would install: `name==version` each. Changes nothing."""

    def _run(self, argv: Sequence[str], env: Dict[str, str]) -> "process.Completed":
        follow = Follow(self.node.progress)
        merged = {**self.env, **_QUIET, **env}
        return process.run(list(argv), env=merged, deadline=self.node.deadline, output=follow)

    def _must(self, argv: Sequence[str], env: Dict[str, str], doing: str) -> "process.Completed":
        done = self._run(argv, env)
        if done.timed_out:
            raise Fail("%s: the task's `timeout` has passed" % doing, timed_out=True)
        if done.rc != 0:
            raise failed(done, self.name, doing)
        return done


def environment(node: "Node") -> Dict[str, str]:
    """The environment of installers on this node."""
    merged = dict(os.environ)
    merged.update({name: str(value) for name, value in node.env.items()})
    for name in _FOREIGN:
        merged.pop(name, None)
    return merged


class Uv(Installer):
    """uv, the program at ``program``."""

    name = "uv"

    def __init__(self, node: "Node", sources: Sources, program: str) -> None:
        super().__init__(node, sources)
        self.program = program
        self.where = sources.for_uv(pypi.pip_config(self.env))

    def create(self, path: str, python: str, site_packages: bool) -> None:
        argv = [self.program, "venv", "--allow-existing", "--no-project"]
        argv += ["--python", python] if python else []
        argv += ["--system-site-packages"] if site_packages else []
        self._must([*argv, path], self.where, "make the environment %s" % path)

    def install(self, path: str, work: Work) -> None:
        self._must(self._argv(path, work), self.where, "install into %s" % path)

    def _argv(self, path: str, work: Work) -> List[str]:
        argv = [self.program, "pip", "install", "--python", os.path.join(path, "bin", "python")]
        argv += ["--no-index"] if self.sources.no_index else []
        argv += [] if work.deps else ["--no-deps"]
        argv += ["--upgrade"] if work.upgrade else []
        return [*argv, *work.extra, "-r", work.file]

    def uninstall(self, path: str, names: Sequence[str]) -> None:
        argv = [self.program, "pip", "uninstall", "--python", os.path.join(path, "bin", "python"), *names]
        self._must(argv, self.where, "remove packages from %s" % path)

    def newer(self, path: str, work: Work) -> List[str]:
        argv = [*self._argv(path, work._replace(upgrade=True)), "--dry-run"]
        done = self._must(argv, self.where, "look for newer packages for %s" % path)
        return re.findall(r"^ \+ (\S+==\S+)", done.stderr + done.stdout, re.MULTILINE)


class Pip(Installer):
    """pip: the environment's own, else one outside that is told the environment's interpreter."""

    name = "pip"

    def __init__(self, node: "Node", sources: Sources) -> None:
        super().__init__(node, sources)
        self.where = {
            **sources.for_pip(), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_PROGRESS_BAR": "off",
            "PIP_ROOT_USER_ACTION": "ignore", "PIP_REQUIRE_VIRTUALENV": "0",
        }  # fmt: skip

    def create(self, path: str, python: str, site_packages: bool) -> None:
        program = find_python(python, self.env)
        if program is None:
            raise no_python(python)
        doing = "make the environment %s" % path
        options = ["--system-site-packages"] if site_packages else []
        done = self._run([program, "-m", "venv", *options, path], {})
        if done.rc != 0:  # Debian ships venv without ensurepip
            done = self._run([program, "-m", "venv", "--without-pip", *options, path], {})
        if done.rc != 0:
            self._virtualenv(program, path, options, doing)

    def _virtualenv(self, program: str, path: str, options: List[str], doing: str) -> None:
        with Folder(self.node.state_dir, "virtualenv-") as folder:
            argv = [*any_pip(self.node, self.sources, program), "install", "--target", folder, "virtualenv"]
            self._must(argv, self.where, doing)
            env = {"PYTHONPATH": folder}
            self._must([program, "-m", "virtualenv", *options, path], env, doing)

    def _pip(self, path: str) -> List[str]:
        inside = os.path.join(path, "bin", "python")
        site = sitepackages.look(path)
        if site is not None and "pip" in sitepackages.installed(site.folders):
            return [inside, "-m", "pip"]
        return [*any_pip(self.node, self.sources, inside), "--python", inside]

    def install(self, path: str, work: Work) -> None:
        self._must([*self._pip(path), *self._words(work)], self.where, "install into %s" % path)

    @staticmethod
    def _words(work: Work) -> List[str]:
        argv = ["install", *([] if work.deps else ["--no-deps"]), *(["--upgrade"] if work.upgrade else [])]
        return [*argv, *work.extra, "-r", work.file]

    def uninstall(self, path: str, names: Sequence[str]) -> None:
        self._must([*self._pip(path), "uninstall", "--yes", *names], self.where, "remove packages from %s" % path)

    def newer(self, path: str, work: Work) -> List[str]:
        argv = [*self._pip(path), *self._words(work._replace(upgrade=True)), "--dry-run"]
        done = self._must(argv, self.where, "look for newer packages for %s" % path)
        found = re.search(r"^Would install (.+)$", done.stdout, re.MULTILINE)
        words = found.group(1).split() if found else []
        return ["==".join(word.rsplit("-", 1)) for word in words]


# Finding them


def choose(wanted: str, node: "Node", sources: Sources) -> Installer:
    """The installer that the task wants: `uv` and `auto` fetch uv if the node has none. Raises `Fail`."""
    if wanted == "pip":
        if sources.torch_backend == "auto":
            raise Fail(
                "`torch_backend: auto` needs uv, which looks at the node's driver",
                hint="name the backend (`cpu`, `cu128`), or leave `installer` to uv",
            )
        return Pip(node, sources)
    program = find_uv(node)
    reason = ""
    if program is None:
        try:
            program = fetch_uv(node, sources)
        except Fail as exc:
            reason = str(exc)
    if program is not None:
        return Uv(node, sources, program)
    if wanted == "uv" or sources.torch_backend == "auto":
        raise Fail(
            "uv is not on this node and could not be fetched", needs=[("package", "uv")], cause=reason,
            hint="install it (https://docs.astral.sh/uv), or use `installer: pip`",
        )  # fmt: skip
    return Pip(node, sources)


def find_uv(node: "Node") -> Optional[str]:
    """uv on this node: in PATH, in the usual places, or where `fetch_uv` put it."""
    env = environment(node)
    places = [shutil.which("uv", path=env.get("PATH")), *(os.path.expanduser(place) for place in UV_PLACES)]
    places.append(_private(node))
    return next((place for place in places if place and os.access(place, os.X_OK)), None)


def _private(node: "Node") -> str:
    return os.path.join(node.state_dir, "tools", "uv", "bin", "uv") if node.state_dir else ""


def fetch_uv(node: "Node", sources: Sources) -> str:
    """Install uv into opsctl's own directory with any pip; its path. Raises `Fail`."""
    place = _private(node)
    if not place:
        raise Fail("there is no place for uv on this node")
    node.progress("fetching uv")
    folder = os.path.dirname(os.path.dirname(place))
    os.makedirs(os.path.dirname(folder), 0o700, exist_ok=True)
    staged = tempfile.mkdtemp(prefix="uv-", dir=os.path.dirname(folder))
    try:
        pip = Pip(node, sources._replace(torch_backend=""))
        argv = [*any_pip(node, sources), "install", "--target", staged, "--no-deps", "--only-binary", ":all:", "uv"]
        done = pip._run(argv, pip.where)
        program = os.path.join(staged, "bin", "uv")
        if done.rc != 0:
            raise failed(done, "pip", "fetch uv")
        if process.run([program, "--version"], env=pip.env, timeout=60).rc != 0:
            raise Fail("the uv of the package index does not run on this node")
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(staged, folder)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return place


def any_pip(node: "Node", sources: Sources, python: str = "") -> List[str]:
    """The start of a command line for some pip: of ``python``, of another Python, or fetched. Raises `Fail`."""
    env = {**environment(node), **_QUIET}
    for program in (python, sys.executable, shutil.which("python3", path=env.get("PATH"))):
        if program and process.run([program, "-m", "pip", "--version"], env=env, timeout=60).rc == 0:
            return [program, "-m", "pip"]
    program = python or sys.executable
    folder = os.path.join(node.state_dir or tempfile.gettempdir(), "tools", "pip")
    os.makedirs(folder, 0o700, exist_ok=True)
    wheels = sorted(name for name in os.listdir(folder) if name.endswith(".whl"))
    if wheels:
        return [program, os.path.join(folder, wheels[-1], "pip")]
    node.progress("fetching pip")
    done = process.run([program, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], env=env, timeout=60)
    wheel = pypi.fetch_wheel("pip", done.stdout.strip() or "3.8", sources, pypi.pip_config(env), folder)
    return [program, os.path.join(wheel, "pip")]


def find_python(wanted: str, env: Dict[str, str]) -> Optional[str]:
    """The interpreter that ``wanted`` means: a path, a name, or a version (`3.12`); '' is any."""
    path = env.get("PATH")
    if "/" in wanted:
        place = os.path.expanduser(wanted)
        return place if os.access(place, os.X_OK) and not os.path.isdir(place) else None
    if not wanted:
        names = ["python3", sys.executable]
    elif re.match(r"\d+(\.\d+)*$", wanted):
        names = ["python" + ".".join(wanted.split(".")[:2]), "python3"]
    else:
        names = [wanted]
    places = [os.path.expanduser(p) for p in ("~/.local/bin", "/usr/local/bin", "/usr/bin", "/opt/python/bin")]
    for name in names:
        for folder in ("", *places):
            found = os.path.join(folder, name) if folder else shutil.which(name, path=path)
            if found and os.access(found, os.X_OK) and (not wanted[:1].isdigit() or _is(found, wanted, env)):
                return found
    return None


def _is(program: str, version: str, env: Dict[str, str]) -> bool:
    """Whether an interpreter runs, and is of that version."""
    code = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
    done = process.run([program, "-I", "-c", code], env=env, timeout=30)
    return done.rc == 0 and (done.stdout.strip() + ".").startswith(version + ".")


def no_python(wanted: str) -> Fail:
    """The failure that there is no interpreter."""
    return Fail(
        "there is no Python %s on this node" % wanted if wanted else "there is no Python for environments on this node",
        needs=[("package", ""), ("path", wanted)] if "/" in wanted else [("package", "")],
        hint="install it, name another one with `python`, or use `installer: uv`, which can fetch Pythons",
    )
