"""Templates on the controller: places of errors, lookups, the cache of compiled templates."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from opsctl.config.bytecode import ByteCode, default_folder
from opsctl.config.lookups import REFUSED_LOOKUPS
from opsctl.config.templates import Templates, locate
from opsctl.config.yaml import load_yaml
from opsctl.errors import ConfigError, Span


@pytest.fixture
def templates(tmp_path: Path) -> Templates:
    """Templates of a project in ``tmp_path``."""
    return Templates(str(tmp_path), environ={"HOME": "/home/me"})


def failing(templates: Templates, path: Path, text: str, **names: Any) -> ConfigError:
    """The error of evaluating `x` of a file with ``text``."""
    path.write_text(text)
    scope = templates.scope(load_yaml(path), names)
    with pytest.raises(ConfigError) as caught:
        templates.evaluate(load_yaml(path)["x"], scope)
    return caught.value


@pytest.mark.parametrize(
    ("text", "line", "col"),
    [
        ('x: "{{ nme }}"\n', 1, 8),
        ("x: a {{ nme }}\n", 1, 9),
        ("x: >-\n  a {{ 1 }}\n  b {{ nme }}\n", 3, 8),
        ("x: |\n  a\n  {{ name }}\n  b {{ nme }}\n", 4, 8),
        ("x: |\n\n  a\n\n  b {{ nme }}\n", 5, 8),
        ('x: "a\n  b {{ nme }}"\n', 2, 8),
        ('x: "{{ other }}"\nother: "{{ nme }}"\n', 2, 12),
        ("x: [1, 'a {{ nme }}']\n", 1, 14),
        ("x: '{{ name.nme }}'\n", 1, 13),
    ],
)
def test_undefined_names_are_found_in_the_file(
    templates: Templates, tmp_path: Path, text: str, line: int, col: int
) -> None:
    """The caret stands under the name, in every style of scalar and through variables."""
    error = failing(templates, tmp_path / "f.yml", text, name={"name": 1})
    assert error.span == Span(str(tmp_path / "f.yml"), line, col)
    assert error.hint == "did you mean `name`?"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('x: "{{ 1 + }}"\n', 1),
        ("x: |\n  a\n  {{ 1 + }}\n  b\n", 3),
        ('x: "{{ (1 }}"\ny: 1\n', 1),
        ("x: |\n  {% if true %}\n  a\ny: 1\n", 2),
        ("x: '{{ 1 / 0 }}'\n", 1),
        ("x: |\n  a\n  {{ 1 / 0 }}\n", 3),
    ],
)
def test_other_errors_have_a_line(templates: Templates, tmp_path: Path, text: str, line: int) -> None:
    """Syntax errors and failures have a line within the scalar."""
    error = failing(templates, tmp_path / "f.yml", text)
    assert error.span is not None and error.span.line == line


def test_template_files(templates: Templates, tmp_path: Path) -> None:
    """Errors of a template file point into it; values render as text."""
    path = tmp_path / "t.j2"
    path.write_text("a\n  b {{ nme }}\n")
    with pytest.raises(ConfigError) as caught:
        templates.render_file(path.read_text(), str(path), templates.scope({"name": 1}))
    assert caught.value.span == Span(str(path), 2, 8)
    assert templates.render_file("{{ n }}\n", str(path), templates.scope({"n": 1})) == "1\n"


def test_conditions_must_be_boolean(templates: Templates, tmp_path: Path) -> None:
    """A string as a condition is an error at the condition, with the filter that helps."""
    raw = load_yaml(text="when: answer\n", file="f.yml")["when"]
    scope = templates.scope({"answer": "no"})
    with pytest.raises(ConfigError, match="not a boolean") as caught:
        templates.test(raw, scope)
    assert caught.value.span == Span("f.yml", 1, 7) and "| bool" in str(caught.value.hint)
    assert templates.test("answer == 'no'", scope) is True


def test_unsafe_text_is_not_evaluated(templates: Templates) -> None:
    """`!unsafe` text stays as it is."""
    assert (
        templates.evaluate(load_yaml(text="x: !unsafe '{{ nme }}'\n", file="f")["x"], templates.scope()) == "{{ nme }}"
    )


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("ansible_hostnam", "did you mean `ansible_hostname`?"),
        ("ansible_quantum_state", "opsctl has no such fact: `opsctl facts HOST` lists those of a host"),
        ("table.nineth", "did you mean `ninth`?"),
        ("table.zzz", "if it may be absent, add `| default('...')`"),
    ],
)
def test_hints_at_names_that_there_are(templates: Templates, source: str, hint: str) -> None:
    """A fact that does not exist is answered with facts, a missing key with any of the keys there are."""
    words = "first second third fourth fifth sixth seventh eighth ninth tenth".split()
    scope = templates.scope({"table": dict.fromkeys(words, 1), "ansible_connection": "ssh"})
    with pytest.raises(ConfigError) as caught:
        templates.evaluate(load_yaml(text=f"x: '{{{{ {source} }}}}'\n", file="f")["x"], scope)
    assert caught.value.hint == hint


def test_an_error_without_a_place_gets_the_callers(templates: Templates) -> None:
    """``fallback`` is where an error without a place stands."""
    from opsctl.agent.values import ExprError

    assert locate(ExprError("x"), Span("f", 3)).span == Span("f", 3)
    assert locate(ExprError("x", ["gone.yml", 3, 5])).span == Span("gone.yml", 3, 5)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("lookup('env', 'HOME')", "/home/me"),
        ("lookup('env', 'NONE')", ""),
        ("lookup('env', 'NONE', default='d')", "d"),
        ("lookup('ansible.builtin.file', 'a.txt')", "text {{ x }}"),
        ("lookup('file', 'a.txt', rstrip=false)", "text {{ x }}\n"),
        ("lookup('file', 'b.txt', 'a.txt')", "in files,text {{ x }}"),
        ("query('file', 'b.txt', 'a.txt')", ["in files", "text {{ x }}"]),
        ("lookup('vars', 'n' ~ '1')", 5),
        ("lookup('vars', 'none', default=3)", 3),
        ("q('vars', 'n1')", [5]),
        ("lookup('first_found', ['none', 'a.txt']) | basename", "a.txt"),
        ("lookup('first_found', {'files': ['b.txt'], 'paths': ['none', 'files']}) | basename", "b.txt"),
        ("query('first_found', 'none', skip=true)", []),
    ],
)
def test_lookups(templates: Templates, tmp_path: Path, source: str, value: Any) -> None:
    """Lookups read the environment, files and variables; what they read is data."""
    (tmp_path / "a.txt").write_text("text {{ x }}\n")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "b.txt").write_text("in files\n")
    assert templates.evaluate("{{ " + source + " }}", templates.scope({"n1": 5})) == value


def test_a_pipe_is_read_and_a_directory_is_not(templates: Templates, tmp_path: Path) -> None:
    """`lookup('file', ...)` takes what a shell hands over as `<(command)`; a directory of that name is passed over."""
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=("piped\n",))
    writer.start()
    assert templates.evaluate("{{ lookup('file', 'pipe') }}", templates.scope()) == "piped"
    writer.join()
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="`folder` does not exist"):
        templates.evaluate("{{ lookup('file', 'folder') }}", templates.scope())


@pytest.mark.parametrize("name", [*REFUSED_LOOKUPS, "no.such.lookup"])
def test_other_lookups_are_refused_by_name(templates: Templates, name: str) -> None:
    """Each lookup of Ansible's that does not exist says what to use."""
    with pytest.raises(ConfigError, match="is not supported") as caught:
        templates.evaluate("{{ lookup('" + name + "', 'x') }}", templates.scope())
    assert caught.value.hint


@pytest.mark.parametrize(
    "source",
    [
        "lookup('file', 'none')",
        "lookup('vars', 'none')",
        "lookup('first_found', 'none')",
        "lookup('env', 'A', colour=1)",
    ],
)
def test_failing_lookups(templates: Templates, source: str) -> None:
    """What a lookup does not find is an error, not an empty value."""
    with pytest.raises(ConfigError, match="lookup"):
        templates.evaluate("{{ " + source + " }}", templates.scope())


def run(folder: Path, source: str = "{{ a + 1 }}") -> Any:
    """Evaluate with a cache in ``folder``."""
    templates = Templates(cache=ByteCode(str(folder)))
    return templates.evaluate(source, templates.scope({"a": 1}))


def files(folder: Path) -> list[Path]:
    """The files of the cache."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_compiled_templates_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run compiles nothing."""
    assert run(tmp_path / "c") == 2
    assert len(files(tmp_path / "c")) == 1
    import jinja2

    def compiled(*args: Any, **kw: Any) -> Any:
        raise AssertionError("compiled again")

    monkeypatch.setattr(jinja2.Environment, "_generate", compiled)
    assert run(tmp_path / "c") == 2


def test_damaged_files_are_compiled_again(tmp_path: Path) -> None:
    """A torn file is as if it were not there."""
    run(tmp_path / "c")
    path = files(tmp_path / "c")[0]
    for data in (b"", b"rubbish", path.read_bytes()[:-10]):
        path.write_bytes(data)
        assert run(tmp_path / "c") == 2


def test_files_of_others_are_not_read(tmp_path: Path) -> None:
    """A folder or file that others may write, or a link, is not trusted; the value is right all the same."""
    run(tmp_path / "c")
    path = files(tmp_path / "c")[0]
    store = ByteCode(str(tmp_path / "c"))
    assert store.read(path.name)
    path.chmod(0o666)
    assert store.read(path.name) is None
    path.chmod(0o600)
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    assert store.read(path.name) is None
    path.parent.chmod(0o777)
    assert not ByteCode(str(tmp_path / "c")).usable()
    assert run(tmp_path / "c") == 2


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """Without a place for the cache everything works."""
    (tmp_path / "file").write_text("")
    assert run(tmp_path / "file" / "c") == 2


def test_writers_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Many writers of one file leave one whole file."""
    store = ByteCode(str(tmp_path))
    data = [bytes([number]) * 100_000 for number in range(8)]
    threads = [threading.Thread(target=store.write, args=("ab", one)) for one in data for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.read("ab") in data
    assert [path.name for path in files(tmp_path)] == ["ab"]


def test_place_of_the_cache() -> None:
    """XDG_CACHE_HOME, else ~/.cache, else none."""
    assert default_folder({"XDG_CACHE_HOME": "/x", "HOME": "/h"}) == os.path.join("/x", "opsctl", "templates")
    assert default_folder({"HOME": "/h"}) == "/h/.cache/opsctl/templates"
    assert default_folder({}) is None
