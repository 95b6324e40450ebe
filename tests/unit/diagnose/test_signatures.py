"""The catalogue is whole, and a mistake in one's own signatures is told with its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from opsctl.diagnose import diagnose_files
from opsctl.diagnose.scan import Matcher, scan
from opsctl.diagnose.siglint import lint_signatures
from opsctl.diagnose.signatures import (
    find_signature,
    load_signatures,
    required_literals,
    signature_as_dict,
    signature_files,
)
from opsctl.diagnose.verdict import judge
from opsctl.errors import ConfigError, UsageError

SIGNATURES = load_signatures()


def test_the_shipped_catalogue_is_clean() -> None:
    """Every shipped file passes the lint, and there are enough entries, one file a component."""
    assert not [problem.as_dict() for problem in lint_signatures(signature_files())]
    assert len(SIGNATURES) >= 215
    for path in signature_files():
        assert {s.component for s in SIGNATURES if s.file == path.name} == {path.stem}


def test_references_between_signatures_exist() -> None:
    """What a signature beats is a signature."""
    known = {s.id for s in SIGNATURES}
    assert not [(s.id, name) for s in SIGNATURES for name in s.supersedes if name not in known]
    assert not [s.id for s in SIGNATURES if s.id in s.supersedes]


def test_causes_say_what_to_do() -> None:
    """Every cause has a cause and a remedy in whole sentences."""
    assert not [s.id for s in SIGNATURES if s.role == "cause" and not (s.cause.endswith(".") and s.fix.endswith("."))]


CAUSES = [
    (s.id, text)
    for s in SIGNATURES
    if s.role == "cause" and not (s.when.trace or s.when.kernel or s.when.seen or s.when.min_count > 1)
    for text in s.literals
]


@pytest.mark.parametrize(("name", "text"), CAUSES, ids=[f"{name}-{text[:24]}" for name, text in CAUSES])
def test_each_text_leads_to_its_signature(name: str, text: str) -> None:
    """A line with this text, in an engine's traceback, has this signature as its only finding."""
    prefix = "(EngineCore pid=2) ERROR 11-20 10:00:09 [core.py:708] "
    line = text if re.match(r"[\w.]+Error\b", text) else f"RuntimeError: it says {text} and more"
    trace = [
        "EngineCore failed to start.",
        "Traceback (most recent call last):",
        '  File "/x/y.py", line 1, in f',
        "    f()",
        line,
    ]
    data = "\n".join(["INFO 11-20 10:00:00 [a.py:1] x", *(prefix + part for part in trace)]) + "\n"
    analysis = MATCHER.analysis()
    scan(MATCHER, [data.encode()], analysis, "log")
    assert [(f.id, f.line) for f in judge(analysis, "log").findings] == [(name, 6)]


MATCHER = Matcher(SIGNATURES)

OWN = """\
- id: port-in-use-api
  component: mine
  title: Our own word for it
  severity: error
  literals: ["Address already in use"]
  cause: Ours.
  fix: Do it our way.
"""


def test_a_project_overrides_by_id(tmp_path: Path) -> None:
    """A signature of the project replaces the shipped one of the same id."""
    (tmp_path / "own.yml").write_text(OWN)
    log = tmp_path / "x.log"
    log.write_text("OSError: [Errno 98] Address already in use\n")
    (finding,) = diagnose_files([str(log)], signatures=[tmp_path]).findings
    assert (finding.id, finding.title, finding.component) == ("port-in-use-api", "Our own word for it", "mine")


BROKEN = [
    ("- id: a\n  component: x\n  title: t\n  cause: c.\n  fix: f.\n  literal: [abcdefgh]\n", "unknown key `literal`", 6, "did you mean `literals`?"),
    ("- id: Bad Id\n  component: x\n  title: t\n  cause: c.\n  fix: f.\n  literals: [abcdefgh]\n", "not a valid id", 1, None),
    ("- id: a\n  component: x\n  title: t\n  cause: c.\n  fix: f.\n  regexes: ['(abcde']\n", "not a regular expression", 6, None),
    ("- id: a\n  component: x\n  title: t\n  cause: c.\n  fix: f.\n  regexes: ['(a+)+bcdef']\n", "nested repetition", 6, None),
    ("- id: a\n  component: x\n  title: t\n  cause: c.\n  fix: f.\n  regexes: ['[0-9]+']\n", "a fixed text", 6, None),
    ("- id: a\n  component: x\n  title: t\n  cause: c.\n  fix: f.\n", "can never match", 1, None),
    ("- id: a\n  component: x\n  title: t\n  cause: c.\n  fix: f.\n  role: reason\n  literals: [abcdefgh]\n", "`role` is one of", 6, None),
    ("- id: a\n  component: x\n  title: t\n  cause: c.\n  fix: f.\n  literals: [ab]\n", "too short", 6, None),
    ("- id: a\n  component: x\n  literals: [abcdefgh]\n  cause: c.\n  fix: f.\n", "needs `title`", 1, None),
    ("- id: a\n  component: x\n  title: t\n  cause: c.\n  fix: f.\n  literals: [abcdefgh]\n  when: {redy: true}\n", "unknown condition `redy`", 7, "did you mean `ready`?"),
    ("- id: a\n  component: x\n  title: t\n  cause: c.\n  fix: f.\n  regexes: ['((ab)+c)*defgh']\n", "nested repetition", 6, None),
    ("- id: a\n  component: x\n  title: t\n  cause: c.\n  fix: f.\n  regexes: ['abcd(x|y+)+']\n", "nested repetition", 6, None),
    ("- id: a\n  component: x\n  title: t\n  cause: c.\n  fix: f.\n  literals: [abcdefgh]\n  when: [ready]\n", "`when` is a mapping", 7, None),
    ("- id: a\n  component: x\n  title: t\n  cause: c.\n  fix: f.\n  literals: [abcdefgh]\n  when: {min_count: many}\n", "`min_count` is a whole number", 7, None),
    ("- id: a\n  component: x\n  title: t\n  cause: c.\n  fix: f.\n  literals: [abcdefgh]\n  when: {ready: soon}\n", "`ready` is true or false", 7, None),
    ("- id: a\n  component: x\n  title: t\n  cause: c.\n  fix: f.\n  literals: [abcdefgh]\n  when: {phase: nowhere}\n", "`nowhere` is no phase", 7, None),
    ("- id: a\n  component: x\n  title: t\n  cause: c.\n  fix: f.\n  literals: [abcdefgh]\n  when: {text: [[a]]}\n", "`text` is a text or a list", 7, None),
    ("- id: a\n  component: x\n  title: [t]\n  cause: c.\n  fix: f.\n  literals: [abcdefgh]\n", "`title` is a text", 3, None),
    ("a: b\n", "is a list of signatures", 1, None),
    ("- [1\n", "not valid YAML", 2, None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "what", "line", "hint"), BROKEN, ids=[case[1] for case in BROKEN])
def test_mistakes_have_a_place(tmp_path: Path, text: str, what: str, line: int, hint: str | None) -> None:
    """Each mistake names what is wrong, the line, and what was probably meant."""
    path = tmp_path / "own.yml"
    path.write_text(text)
    problems = lint_signatures([path])
    found = next(problem for problem in problems if what in problem.what)
    assert found.span is not None and (found.span.file, found.span.line) == (str(path), line)
    if hint:
        assert found.hint == hint


def test_a_broken_project_file_stops_with_its_place(tmp_path: Path) -> None:
    """diagnose does not go on with half a catalogue, nor with a mistake that it could read over."""
    misspelt = "- id: a\n  component: x\n  title: t\n  cause: c.\n  fix: f.\n  literals: [abcdefgh]\n  severty: error\n"
    for text in (misspelt, "- id: a\n  literals: 3\n"):
        (tmp_path / "own.yml").write_text(text)
        with pytest.raises(ConfigError) as error:
            load_signatures([tmp_path])
        assert error.value.span is not None and error.value.span.file.endswith("own.yml")


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("x{2,}long text", ["long text"]),
        ("(?:alpha|beta) go", ["alpha", "beta"]),
        ("abc+efgh", ["efgh"]),
        ("(?:a|beta)", []),
        ("[a-z]+", []),
        ("a?optional", ["optional"]),
    ],
)
def test_required_texts(pattern: str, texts: list[str]) -> None:
    """Whatever a pattern matches holds one of its required texts."""
    assert sorted(required_literals(pattern)) == sorted(texts)


def test_looking_one_up() -> None:
    """An entry can be had by id as JSON values; a wrong id suggests the right one."""
    assert signature_as_dict(find_signature(SIGNATURES, "cuda-oom"))["component"] == "cuda"
    with pytest.raises(UsageError) as error:
        find_signature(SIGNATURES, "cuda-oomm")
    assert error.value.hint == "did you mean `cuda-oom`?"
