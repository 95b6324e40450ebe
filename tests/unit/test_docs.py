"""What README and docs say exists: links, commands, options, variables, tables; and every playbook in them is sound."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import pytest

from opsctl import tasks
from opsctl.agent.facts import FACT_NAMES
from opsctl.agent.filters import FILTERS, TESTS
from opsctl.cli._stop import QUESTION
from opsctl.cli._verbs import VERBS, root
from opsctl.config import refused
from opsctl.config.connection import SUPPORTED
from opsctl.config.lint import lint
from opsctl.config.lookups import REFUSED_LOOKUPS, known_lookups
from opsctl.config.source import Map
from opsctl.config.yaml import load_yaml

ROOT = Path(__file__).parents[2]
#: All pages; for these the links must lead somewhere.
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
#: Pages written by hand for users; their commands, options and playbooks are tried.
GUIDES = [ROOT / "README.md", ROOT / "docs/guide.md", ROOT / "docs/ansible.md"]
#: Options of other programs that the pages speak of.
FOREIGN = set("--branch --system --host --list --syntax-check --start-at-task --force-handlers --vault-password-file".split())
INVENTORY = "all: {children: {gpu: {hosts: {gpu-01: {}, gpu-02: {}}}}}\n"

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def fences(path: Path) -> Iterator[tuple[str, str, int]]:
    """Language, text and line of each code block."""
    text = path.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        indent = len(found[1])
        body = "".join(line[indent:] if line.strip() else line for line in found[3].splitlines(keepends=True))
        yield found[2], body, text.count("\n", 0, found.start()) + 2


def prose(path: Path) -> str:
    """The text without code blocks, on one line, so that spans of code which are wrapped are whole."""
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def spans(path: Path) -> list[str]:
    return [" ".join(span.split()) for span in _SPAN.findall(re.sub(r"(?<=\S)\n(?=\S)", " ", prose(path)))]


def anchors(path: Path) -> set[str]:
    """The anchors of a page: its headings as GitHub names them, and explicit ones."""
    text = path.read_text(encoding="utf-8")
    out = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for heading in re.findall(r"^#+ +(.+?) *$", _FENCE.sub("", text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        out.add(re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-"))
    return out


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    """A relative link names a file that is there and, if it has one, an anchor of that file."""
    broken = []
    for target in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors(there)):
            broken.append(target)
    assert not broken


def command_lines(page: Path) -> Iterator[str]:
    """Every `opsctl ...` that a page shows: in shell blocks, after a `$`, and in spans of code."""
    for language, body, _ in fences(page):
        for line in body.splitlines():
            if language == "sh":
                yield from re.findall(r"(?:^|[<(]\()\s*(?:\S*/)?(opsctl [^#>)]*)", line)
            elif line.startswith("$ opsctl "):
                yield line[2:]
    for span in spans(page):
        if span.startswith("opsctl "):
            yield span


def fault_of(line: str) -> str | None:
    """What is wrong with a command line: an unknown verb or option; None if nothing is."""
    words = shlex.split(line)[1:]
    if "--" in words:
        words = words[: words.index("--")]
    context = click.Context(root, info_name="opsctl")
    command: click.Command = root
    while isinstance(command, click.Group) and words and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        inner = command.get_command(context, words[0])
        if inner is None:
            return f"no command {words[0]}"
        command, words = inner, words[1:]
    known = {option for parameter in command.params for option in parameter.opts} | {"-h", "--help"}
    for word in words:
        option = word.split("=")[0]
        if re.fullmatch(r"--?[A-Za-z][\w-]*", option) and option not in known:
            letters = [f"-{letter}" for letter in option[1:]]
            if option.startswith("--") or not set(letters) <= known:
                return f"no option {option}"
    return None


@pytest.mark.parametrize("page", GUIDES, ids=name)
def test_commands_exist(page: Path) -> None:
    """Every command line that is shown has a verb and options which opsctl has."""
    # `opsctl COMMAND --help` and the like stand for any verb.
    shown = [line for line in command_lines(page) if not re.match(r"opsctl (COMMAND|HOST)\b", line)]
    assert shown
    assert [f"{line}: {fault}" for line in shown if (fault := fault_of(line))] == []


def test_a_wrong_command_is_noticed() -> None:
    """The test above can fail."""
    assert fault_of("opsctl deploi site.yml") == "no command deploi"
    assert fault_of("opsctl deploy site.yml --chek") == "no option --chek"
    assert fault_of("opsctl history show RUN --nope") == "no option --nope"
    assert fault_of("opsctl run gpu-01 -- ls --anything") is None


def options_of(command: click.Command) -> set[str]:
    out = {option for parameter in command.params for option in parameter.opts}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for verb in command.list_commands(context):
            inner = command.get_command(context, verb)
            assert inner is not None
            out |= options_of(inner)
    return out


@pytest.mark.parametrize("page", GUIDES, ids=name)
def test_options_exist(page: Path) -> None:
    """Every long option in a span of code is one of opsctl's."""
    known = options_of(root) | FOREIGN | {"--help"}
    named = {word for span in spans(page) for word in re.findall(r"(?<!\S)--[a-z][\w-]*", span)}
    assert named
    assert sorted(named - known) == []


def test_every_verb_is_in_the_readme() -> None:
    """The tour of README names each verb of `opsctl --help`."""
    shown = {line.split()[1] for line in command_lines(ROOT / "README.md") if len(line.split()) > 1}
    assert sorted(set(VERBS) - shown) == [], "add a line and an example to README.md, The verbs"


def blocks() -> Iterator[tuple[str, str]]:
    for page in GUIDES:
        for language, body, line in fences(page):
            if language == "yaml":
                yield f"{name(page)}:{line}", body


BLOCKS = dict(blocks())


@pytest.mark.parametrize("where", BLOCKS)
def test_yaml_examples_pass_lint(where: str, tmp_path: Path) -> None:
    """A YAML example is a playbook or an inventory without an error."""
    body = BLOCKS[where]
    source, playbook = tmp_path / "inventory.yml", tmp_path / "site.yml"
    (tmp_path / "site.yml").write_text(body, encoding="utf-8")
    if isinstance(load_yaml(playbook), Map):
        playbook.rename(source)
        problems = lint([], [str(source)])
    else:
        source.write_text(INVENTORY, encoding="utf-8")
        problems = lint([str(playbook)], [str(source)])
    assert [str(one.error) for one in problems if one.severity == "error"] == []


def test_a_wrong_example_is_noticed(tmp_path: Path) -> None:
    """The test above can fail."""
    (tmp_path / "site.yml").write_text("- hosts: all\n  roles: [x]\n", encoding="utf-8")
    assert [one.severity for one in lint([str(tmp_path / "site.yml")])] == ["error"]


def rows(page: str, heading: str) -> dict[str, str]:
    """The first column's code -> the second column, of the table below a heading."""
    text = (ROOT / page).read_text(encoding="utf-8")
    section = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None, heading
    found = re.findall(r"^\| `(.+?)` \| (.*) \|$", section[1], re.MULTILINE)
    return {key: value.replace("\\|", "|") for key, value in found}


def _prefixed(prefix: str, words: Mapping[str, str]) -> dict[str, str]:
    return {prefix + key: value for key, value in words.items()}


REFUSED = {
    "Keywords of a play": {**refused.REFUSED, **refused.REFUSED_PLAY},
    "Keywords of tasks and blocks": {**refused.REFUSED, **refused.REFUSED_TASK},
    "Loops": {**_prefixed("loop_control.", refused.REFUSED_LOOP_CONTROL), **refused.REFUSED_WITH},
    "meta": _prefixed("meta: ", refused.REFUSED_META),
    "Modules": {key: value for key, value in refused.REFUSED_KINDS.items() if tasks.kind(key) is None},
    "Filters, tests, lookups": REFUSED_LOOKUPS,
    "Facts": dict(FACT_NAMES),
}


@pytest.mark.parametrize("heading", REFUSED)
def test_tables_of_the_ansible_page(heading: str) -> None:
    """docs/ansible.md lists exactly what is refused, with the same advice, and the facts that there are."""
    assert rows("docs/ansible.md", heading) == REFUSED[heading]


def test_names_of_the_ansible_page() -> None:
    """docs/ansible.md names every filter, test and lookup."""
    named = set(spans(ROOT / "docs/ansible.md"))
    assert sorted({*FILTERS, *TESTS, *known_lookups()} - named) == []


def test_connection_variables_of_the_guide() -> None:
    """The guide's table has every connection variable, and no other."""
    assert sorted(rows("docs/guide.md", "Connection variables")) == sorted(SUPPORTED)


def test_environment_of_the_guide() -> None:
    """Every variable that opsctl reads from the environment is in the guide: there is no hidden configuration."""
    read = set()
    for path in ROOT.glob("opsctl/**/*.py"):
        read |= set(re.findall(r'env(?:iron)?(?:\.get\(|\[)"(OPSCTL_\w+)', path.read_text(encoding="utf-8")))
    assert len(read) >= 4
    assert sorted(read - set(rows("docs/guide.md", "A project"))) == []


def test_exit_statuses_of_the_guide() -> None:
    """The guide's table of exit statuses is that of `opsctl --help`."""
    from opsctl.cli._verbs import EXIT_CODES

    text = (ROOT / "docs/guide.md").read_text(encoding="utf-8")
    section = text[text.index("### Exit status") :]
    assert re.findall(r"^\| (\d+) \|", section, re.MULTILINE) == re.findall(r"(?<!\S)(\d+) ", EXIT_CODES)


def test_the_question_of_the_guide() -> None:
    """The guide quotes the question of Ctrl-C as it is asked."""
    assert QUESTION.strip() in (ROOT / "docs/guide.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("room", ["agent", "remote"])
def test_modules_of_the_architecture(room: str) -> None:
    """The two rooms that nobody finds his way in by names alone have each of their modules on the page."""
    words = set(re.findall(r"\w+", (ROOT / "docs/architecture.md").read_text(encoding="utf-8")))
    modules = {path.stem for path in (ROOT / "opsctl" / room).glob("*.py")} - {"__init__"}
    assert len(modules) > 5
    assert sorted(modules - words) == []
