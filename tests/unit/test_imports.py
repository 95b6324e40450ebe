"""The directions of docs/architecture.md, kept by walking every import of the package."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "opsctl"
SOURCES = sorted(PACKAGE.rglob("*.py"))
AGENT = sorted((PACKAGE / "agent").rglob("*.py"))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports anywhere in it, absolute, with the line."""
    package = name_of(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, node.module] if node.module else base)
            yield module, node.lineno
            for alias in node.names:
                yield f"{module}.{alias.name}", node.lineno


def within(module: str, *rooms: str) -> bool:
    return any(module == room or module.startswith(room + ".") for room in rooms)


def offences(paths: list[Path], allowed: object) -> list[str]:
    assert callable(allowed)
    return [
        f"{path.relative_to(PACKAGE.parent)}:{line} imports {module}"
        for path in paths
        for module, line in imports(path)
        if not allowed(module)
    ]


def room(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else path.stem


@pytest.mark.smoke
def test_the_package_has_sources() -> None:
    """The other tests here are about something."""
    assert len(SOURCES) > 10 and len(AGENT) > 3


def test_only_remote_knows_ssh() -> None:
    """Nothing outside ``remote/`` imports paramiko, fabric or invoke."""
    others = [path for path in SOURCES if room(path) != "remote"]
    assert not offences(others, lambda module: not within(module, "paramiko", "fabric", "invoke"))


def test_config_never_connects() -> None:
    """``config/``, ``tasks/`` and ``plan`` import nothing of ``remote/``, the executor, the journal or the UI."""
    rooms = [path for path in SOURCES if room(path) in ("config", "tasks", "plan", "model", "errors", "events")]
    above = ("opsctl.remote", "opsctl.executor", "opsctl.journal", "opsctl.ui", "opsctl.cli")
    assert not offences(rooms, lambda module: not within(module, *above))


def test_nothing_below_the_ui_imports_it() -> None:
    """Only ``cli/`` imports ``ui/``; nothing imports ``cli/`` but ``__main__``."""
    below = [path for path in SOURCES if room(path) not in ("ui", "cli", "__main__")]
    assert not offences(below, lambda module: not within(module, "opsctl.ui", "opsctl.cli"))
    ui = [path for path in SOURCES if room(path) == "ui"]
    assert not offences(ui, lambda module: not within(module, "opsctl.cli", "opsctl.remote", "opsctl.executor"))


def test_nothing_below_the_ui_prints() -> None:
    """Below ``ui/`` and ``cli/`` there is no print and no writing to the standard streams; the agent's own main
    program, whose standard output is the wire, uses the descriptor."""
    found = []
    for path in SOURCES:
        if room(path) in ("ui", "cli", "__main__"):
            continue
        for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
            printing = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            stream = (
                isinstance(node, ast.Attribute)
                and node.attr in ("stdout", "stderr")
                and isinstance(node.value, ast.Name)
                and node.value.id == "sys"
                and room(path) != "agent"
            )
            if printing or stream:
                found.append(f"{path.relative_to(PACKAGE.parent)}:{node.lineno}")  # type: ignore[attr-defined]
    assert not found


def test_the_agent_stands_alone() -> None:
    """``agent/`` imports the standard library, itself and, inside functions only, Jinja2 and MarkupSafe."""
    stdlib = tuple(sys.stdlib_module_names)

    def allowed(module: str) -> bool:
        return within(module, "opsctl.agent", "opsctl_agent", "jinja2", "markupsafe", *stdlib)  # its name on the node

    assert not offences(AGENT, allowed)
    eager = []
    for path in AGENT:
        for node in ast.parse(path.read_bytes(), str(path)).body:
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            eager += [f"{path.name}:{node.lineno}" for name in names if within(name, "jinja2", "markupsafe")]
    assert not eager, "Jinja2 may be missing on the node: import it where it is needed"


#: Standard modules newer than 3.8, and those that newer Pythons dropped: the agent meets both ends.
TOO_NEW = ("tomllib", "zoneinfo", "graphlib")
GONE = (
    "aifc asynchat asyncore audioop cgi cgitb chunk crypt distutils imghdr imp lib2to3 mailcap msilib nis nntplib "
    "ossaudiodev pipes smtpd sndhdr spwd sunau telnetlib uu xdrlib"
).split()


def test_the_agent_runs_on_every_python() -> None:
    """The agent's syntax is that of Python 3.8, and it imports nothing that came later or has gone since (an import
    under ``try`` is a fallback and may)."""
    for path in AGENT:
        tree = ast.parse(path.read_bytes(), str(path), feature_version=(3, 8))
        guarded = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.Try)
            for statement in node.body
            for inner in ast.walk(statement)
        }
        for node in ast.walk(tree):
            if id(node) in guarded:
                continue
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name.split(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [(node.module or "").split(".")[0]]
            for name in names:
                assert name not in TOO_NEW and name not in GONE, f"{path}:{node.lineno} imports {name}"  # type: ignore[attr-defined]


def test_what_is_for_type_checkers_is_not_used_when_the_agent_runs() -> None:
    """Names imported under ``TYPE_CHECKING`` stand in annotations only, which are never evaluated."""
    for path in AGENT:
        tree = ast.parse(path.read_bytes(), str(path))
        checked = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        names = {name for node in checked for statement in node.body for name in bound(statement)}
        names -= {name for node in checked for statement in node.orelse for name in bound(statement)}
        for node in checked:
            node.body = []
        for inner in ast.walk(tree):
            for field in ("annotation", "returns"):
                if getattr(inner, field, None) is not None:
                    setattr(inner, field, None if field == "returns" else ast.Constant(None))
        used = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in names]
        assert not used, f"{path}:{used[0].lineno} uses {used[0].id}"


def bound(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name for alias in statement.names)
    elif isinstance(statement, ast.Assign):
        yield from (target.id for target in statement.targets if isinstance(target, ast.Name))


def test_the_controller_uses_only_the_shared_part_of_the_agent() -> None:
    """Of the agent the controller imports expressions, frames and pure helpers; never what acts on a node."""
    names = "expr values outcome filters facts wire coerce modes boot sources hidden requirements engines".split()
    shared = tuple(f"opsctl.agent.{name}" for name in names)
    # `--root DIR` works on a local tree by the same code that works on a node.
    local = {"diagnose": ("opsctl.agent.sources", "opsctl.agent.logpack", "opsctl.agent.unpack"), "patching": ("opsctl.agent.patchops",)}
    # On a node without Python the agent's runner works from here.
    local["pythonless"] = ("opsctl.agent.runner", "opsctl.agent.kinds", "opsctl.agent.process")
    others = [path for path in SOURCES if room(path) != "agent"]

    def allowed_in(name: str) -> Callable[[str], bool]:
        def allowed(module: str) -> bool:
            if not within(module, "opsctl.agent"):
                return True
            return module == "opsctl.agent" or within(module, *shared, *local.get(name, ()))

        return allowed

    for name in {room(path) for path in others}:
        assert not offences([path for path in others if room(path) == name], allowed_in(name))


def modules_after(*argv: str) -> set[str]:
    """The modules that ``opsctl ARGV`` has loaded when it ends."""
    program = (
        "import atexit, json, os, sys\n"
        "atexit.register(lambda: os.write(2, json.dumps(sorted(sys.modules)).encode()))\n"
        "sys.argv[0] = 'opsctl'\n"
        "from opsctl.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *argv], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "opsctl" in done.stdout
    return set(json.loads(done.stderr[done.stderr.index("[") :]))


@pytest.mark.smoke
@pytest.mark.parametrize("argv", [("--help",), ("--version",), ("deploy", "--help")])
def test_help_is_light(argv: tuple[str, ...]) -> None:
    """Help costs no heavy import: fabric, paramiko, pydantic, jinja2, rich and yaml stay unloaded."""
    heavy = {"fabric", "paramiko", "cryptography", "pydantic", "jinja2", "rich", "yaml", "asyncio", "libcst"}
    assert not heavy & modules_after(*argv)
