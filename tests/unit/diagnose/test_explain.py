"""Where a message is raised, what guards it, and who satisfies the guard: from syntax trees alone."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent import sources
from opsctl.diagnose.explain import explain, explain_report, involved_classes, render_explanation
from opsctl.diagnose.report import Evidence, Finding, Report
from opsctl.errors import InputUnreadable, UsageError

FILES = {
    "__init__.py": "",
    "models/__init__.py": "from .interfaces import supports_drafts as supports_drafts\n",
    "models/interfaces.py": """
from typing import ClassVar, Literal, Protocol, overload, runtime_checkable

class SupportsDraftBase(Protocol):
    own_head: bool = False

@runtime_checkable
class SupportsDraft(SupportsDraftBase, Protocol):
    supports_draft: ClassVar[Literal[True]] = True

@runtime_checkable
class SupportsDraft3(SupportsDraftBase, Protocol):
    supports_draft3: ClassVar[Literal[True]] = True

    def set_layers(self, layers: tuple) -> None: ...

@overload
def supports_drafts(model: type) -> bool: ...

def supports_drafts(model):
    return _check(model)

def _check(model):
    return isinstance(model, SupportsDraft3)
""",
    "models/good.py": """
from .interfaces import SupportsDraft, SupportsDraft3 as Draft3

class GoodModel(object, SupportsDraft,
                Draft3):
    pass

class ChildModel(GoodModel):
    pass
""",
    "models/other.py": "from .interfaces import SupportsDraft\n\nclass OtherModel(SupportsDraft):\n    pass\n",
    "runner.py": """
import logging
from pkg.models import supports_drafts

logger = logging.getLogger(__name__)

class Runner:
    def load(self, size, kind):
        if self.draft:
            if not supports_drafts(self.model):
                raise RuntimeError(
                    "Model has no draft interface but "
                    "draft layers were requested"
                )
        if size > self.limit:
            msg = f"Size {size} of {kind} is larger than the limit ({self.limit:.2f} GiB). "
            msg += "Lower it."
            raise ValueError(msg)
        elif kind == "x":
            logger.error("Kind %s cannot be combined with size %d on this device", kind, size)
        assert size % 2 == 0, "The number " + str(size) + " of layers must be even for this model"
        try:
            self.go()
        except KeyError as error:
            raise OSError("The table of {} could not be opened: {}".format(kind, error)) from error
""",
}  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "lib" / "python3.12" / "site-packages" / "pkg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "lib/python3.12/site-packages/pkg-1.2.3.dist-info").mkdir()
    return tmp_path


def one(root: Path, message: str, **options: Any) -> dict[str, Any]:
    found = explain(message, root=str(root), package="pkg", **options)
    assert found["sites"], message
    site: dict[str, Any] = found["sites"][0]
    return site


def test_the_hunt(root: Path) -> None:
    """Guard, predicate (through a re-export, an overload and a helper), protocol, members, who has it and who not."""
    site = one(root, "Model has no draft interface", classes=["OtherModel"])
    assert (site["file"], site["line"], site["function"], site["kind"]) == ("pkg/runner.py", 11, "Runner.load", "raise")
    assert [c["text"] for c in site["conditions"]] == ["self.draft", "not supports_drafts(self.model)"]
    (predicate,) = site["predicates"]
    assert (predicate["name"], predicate["file"], predicate["line"]) == (
        "supports_drafts",
        "pkg/models/interfaces.py",
        20,
    )
    (protocol,) = predicate["classes"]
    assert protocol["name"] == "SupportsDraft3" and protocol["protocol"]
    assert [m["name"] for m in protocol["members"]] == ["own_head", "supports_draft3", "set_layers"]
    assert [(i["name"], i["direct"]) for i in protocol["implementers"]] == [("ChildModel", False), ("GoodModel", True)]
    (near,) = protocol["near"]
    assert (near["name"], near["has"], near["involved"]) == ("OtherModel", ["SupportsDraft"], True)


MESSAGES = [
    ("Size 7 of cache is larger than the limit (3.50 GiB). Lower it.", 18, "raise"),
    ("is larger than the limit (", 18, "raise"),
    ("Kind y cannot be combined with size 9 on this device", 20, "log"),
    ("The number 7 of layers must be even for this model", 21, "assert"),
    ("The table of tokens could not be opened: 'a'", 25, "raise"),
    ("RuntimeError: Model has no draft interface but draft layers were requested", 11, "raise"),
]


@pytest.mark.parametrize(("message", "line", "kind"), MESSAGES)
def test_messages_built_at_run_time(root: Path, message: str, line: int, kind: str) -> None:
    """f-strings, concatenation, %, format, variables, and messages that are cut or lead by a class name."""
    site = one(root, message)
    assert (site["line"], site["kind"]) == (line, kind)


def test_else_branches_and_handlers_are_conditions(root: Path) -> None:
    """An elif holds because the if did not; an except clause is the condition inside it."""
    site = one(root, "Kind y cannot be combined with size 9 on this device")
    assert [(c["text"], c["holds"]) for c in site["conditions"]] == [
        ("size > self.limit", False),
        ('kind == "x"', True),
    ]
    assert one(root, "The table of x could not be opened")["conditions"][0]["text"] == "except KeyError"


def test_version_and_words(root: Path) -> None:
    """The page names package, version, place, condition and the classes."""
    found = explain("Model has no draft interface", root=str(root), package="pkg", classes=["OtherModel"])
    assert found["version"] == "1.2.3"
    text = render_explanation(found)
    for words in (
        "pkg 1.2.3",
        "pkg/runner.py:11",
        "not supports_drafts(self.model)",
        "SupportsDraft3",
        "GoodModel",
        "OtherModel  involved  has SupportsDraft, lacks SupportsDraft3",
    ):
        assert words in text


def test_nothing_found(root: Path) -> None:
    """A message that is nowhere gives no place rather than a wrong one."""
    assert explain("completely different words about nothing", root=str(root), package="pkg")["sites"] == []


def test_wrong_places_are_errors(root: Path) -> None:
    """A folder that is not there and a package that is not in it are told apart, with what to do."""
    with pytest.raises(InputUnreadable):
        explain("some message", root=str(root / "nope"))
    with pytest.raises(UsageError, match="other"):
        explain("some message", root=str(root), package="other")
    with pytest.raises(UsageError, match="no message"):
        explain("  ")


def test_an_unknown_failure_is_explained_by_itself(root: Path) -> None:
    """Where the traceback's file is on this machine, diagnose adds the place and the condition."""
    file = root / "lib/python3.12/site-packages/pkg/runner.py"
    finding = Finding(
        "unknown",
        "unknown",
        "fatal",
        "unknown",
        "RuntimeError: Model has no draft interface but draft layers were requested",
        0.6,
        "log",
        9,
    )
    finding.evidence = [Evidence("log", 3, f"raised in load at {file}:11")]
    explain_report(Report("log", "crashed", None, [finding]))
    assert [(e.source, e.line) for e in finding.evidence[1:]] == [
        ("pkg/runner.py", 11),
        ("pkg/models/interfaces.py", 20),
    ]
    assert "not supports_drafts(self.model)" in finding.evidence[1].text


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14"])
def test_it_runs_bare_on_every_python(root: Path, version: str) -> None:
    """The search runs on any Python from 3.8 on without anything installed."""
    built = sorted(Path(pwd.getpwuid(os.getuid()).pw_dir).glob(f".pyenv/versions/{version}.*/bin/python"))
    python = str(built[-1]) if built else shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", "pass"], capture_output=True).returncode:
        pytest.skip(f"python{version} is not installed")
    start = "import sys; sys.path.insert(0, sys.argv.pop(1)); from opsctl.agent import sources; sources.main(sys.argv[1:])"
    here = str(Path(sources.__file__).parents[2])
    argv = [python, "-I", "-S", "-c", start, here, str(root), "pkg", "Model has no draft interface", "OtherModel"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout)["sites"][0]["predicates"][0]["classes"][0]["near"][0]["name"] == "OtherModel"


def test_files_for_a_newer_python_are_named(root: Path) -> None:
    """A file that this interpreter cannot parse is reported, not ignored in silence."""
    path = root / "lib/python3.12/site-packages/pkg/new.py"
    path.write_text('def f():\n    raise RuntimeError("Some words of a newer kind of file") ???\n')
    found = explain("Some words of a newer kind of file", root=str(root), package="pkg")
    assert found["unparsed"] == ["pkg/new.py"]


def test_the_log_names_the_involved_class(tmp_path: Path) -> None:
    """The class that is served is taken from the log of either engine."""
    for name, line in (
        ("a", "INFO 11-21 10:00:00 [model.py:5] Resolved architecture: FooForCausalLM"),
        ("b", "[2026-11-21 10:00:00 TP0] Load weight end. type=BarForCausalLM, dtype=torch.bfloat16"),
    ):
        (tmp_path / name).write_text(line + "\n")
    assert involved_classes([str(tmp_path / "a"), str(tmp_path / "b"), "-"]) == ["FooForCausalLM", "BarForCausalLM"]
