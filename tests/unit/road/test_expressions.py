"""One suite of expressions, run by the controller and by the node's interpreters: both give the same."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from opsctl.agent import yamltext
from opsctl.agent.expr import Engine
from opsctl.agent.values import ExprError, Expression, Template, from_wire, lift, to_wire
from opsctl.remote import bootstrap

VARS: dict[str, Any] = {
    "n": 3, "f": 0.5, "s": "text", "empty": "", "yes_text": "yes", "none": None, "t": True, "umlaut": "größe €",
    "l": [3, 1, 2], "words": ["b", "a", "c"], "d": {"a": 1, "b": {"c": 2}}, "users": [{"name": "x", "keys": ["k1", "k2"]}, {"name": "y", "keys": []}],
    "rc": {"rc": 0, "stdout": "line 1\nline 2", "stdout_lines": ["line 1", "line 2"], "changed": True, "failed": False},
    "skipped": {"skipped": True, "changed": False}, "bad": {"failed": True, "rc": 2},
    "derived": "{{ n + 1 }}", "chain": "{{ derived * 2 }}", "deep": {"x": ["{{ s }}", {"y": "{{ l }}"}]}, "loop_a": "{{ loop_b }}", "loop_b": "{{ loop_a }}",
    "broken": "{{ nothing_here }}", "text_with_braces": "not a template: {x}",
}  # fmt: skip

#: template -> value, or the start of an error.
TEMPLATES: list[tuple[str, Any]] = [
    ("{{ n }}", 3),
    ("{{ n }}\n", "3\n"),
    (" {{ n }}", " 3"),
    ("{{ n }}{{ n }}", "33"),
    ("{{ f }}", 0.5),
    ("{{ t }}", True),
    ("{{ none }}", None),
    ("{{ l }}", [3, 1, 2]),
    ("{{ d }}", {"a": 1, "b": {"c": 2}}),
    ("{{ d.b.c }}", 2),
    ("{{ d['b']['c'] + n }}", 5),
    ("n is {{ n }}", "n is 3"),
    ("{{ umlaut }}!", "größe €!"),
    ("{{ derived }}", 4),
    ("{{ chain }}", 8),
    ("{{ deep }}", {"x": ["text", {"y": [3, 1, 2]}]}),
    ("{{ '1' + '2' }}", "12"),
    ("{{ '0644' }}", "0644"),
    ("{{ 'yes' }}", "yes"),
    ("{{ '[1, 2]' }}", "[1, 2]"),
    ("{{ l | sort }}", [1, 2, 3]),
    ("{{ l | max }}", 3),
    ("{{ l | map('string') | list }}", ["3", "1", "2"]),
    ("{{ l | map('string') | join('-') }}", "3-1-2"),
    ("{{ users | map(attribute='name') | list }}", ["x", "y"]),
    ("{{ users | selectattr('name', 'equalto', 'y') | list }}", [{"name": "y", "keys": []}]),
    ("{{ users | subelements('keys') | map('last') | list }}", ["k1", "k2"]),
    ("{{ d | dict2items | length }}", 2),
    ("{{ d | dict2items | items2dict }}", {"a": 1, "b": {"c": 2}}),
    ("{{ d | combine({'a': 2}) }}", {"a": 2, "b": {"c": 2}}),
    ("{{ d | combine({'b': {'e': 5}}, recursive=True) }}", {"a": 1, "b": {"c": 2, "e": 5}}),
    ("{{ [1, [2, [3]]] | flatten }}", [1, 2, 3]),
    ("{{ [1, [2, [3]]] | flatten(levels=1) }}", [1, 2, [3]]),
    ("{{ [1, 2] | zip(words) | list }}", [[1, "b"], [2, "a"]]),
    ("{{ [1, 2] | product([3]) | list }}", [[1, 3], [2, 3]]),
    ("{{ [1, 2, 2] | unique }}", [1, 2]),
    ("{{ [1, 2] | union([2, 3]) }}", [1, 2, 3]),
    ("{{ [1, 2] | difference([2]) }}", [1]),
    ("{{ [1, 2] | intersect([2]) }}", [2]),
    ("{{ [1, 2] | symmetric_difference([2, 3]) }}", [1, 3]),
    ("{{ nope | default('d') }}", "d"),
    ("{{ d.x.y.z | default('d') }}", "d"),
    ("{{ empty | default('d', true) }}", "d"),
    ("{{ broken | default('d') }}", "d"),
    ("{{ 'a' if t else 'b' }}", "a"),
    ("{{ t | ternary('a', 'b') }}", "a"),
    ("{{ '5' | int + 1 }}", 6),
    ("{{ '1.5' | float }}", 1.5),
    ("{{ 'no' | bool }}", False),
    ("{{ 'On' | bool }}", True),
    ("{{ s | upper }}", "TEXT"),
    ("{{ s | regex_replace('x', 'y') }}", "teyt"),
    ("{{ 'v1.2' | regex_search('[0-9.]+') }}", "1.2"),
    ("{{ 'v1.2' | regex_search('(\\d)\\.(\\d)', '\\1', '\\2') }}", ["1", "2"]),
    # a backslash in a value stands for itself, as in Ansible; in statements Jinja2's escapes count
    ("{{ 'abc' | regex_replace('b(.)', '\\1X') }}", "acX"),
    ("{{ 'abc' | regex_replace('b(.)', '\\\\1X') }}", "a\\1X"),
    ("a{{ 'a\\nb' }}", "aa\\nb"),
    ("{{ 'it\\'s' }} {{ \"\\\"\" }}", "it\\'s \\\""),
    ("{{ 'C:\\\\dir\\\\' }}", "C:\\\\dir\\\\"),
    ("{{ '\\u00e9' ~ '\\x41' }}", "\\u00e9\\x41"),
    ("{% set x = 'a\\nb' %}{{ x }}", "a\nb"),
    ("{% if true %}{{ 'a\\nb' }}{% endif %}\\n", "a\\nb\\n"),
    ("{% raw %}{{ '\\d' }}{% endraw %}{# '\\d' #}", "{{ '\\d' }}"),
    ("{{ {'a\\n': '\\t'} }}", {"a\\n": "\\t"}),
    # none is nothing in a text, and none where it is all there is
    ("a{{ none }}b{{ {'k': none}.k }}", "ab"),
    ("{{ none ~ 'x' }};{{ [none] }};{{ none | string }};{% if none %}y{% endif %}", "Nonex;[None];None;"),
    # lists are lists in a text too
    ("{{ ['b', 'a', 'b'] | unique }};{{ l | map('string') }};{{ l | select('gt', 1) }}", "['b', 'a'];['3', '1', '2'];[3, 2]"),
    ("{{ (1, 2) }};{{ {'k': (1, 2)} }};{{ [1, 2, 3] | batch(2) }};{{ d | dictsort | first }}", "[1, 2];{'k': [1, 2]};[[1, 2], [3]];['a', 1]"),
    ("{% set x = l | map('string') %}{{ x | length }}{{ x | first }}{{ x | first }}", "333"),
    ("{{ umlaut | to_json }} {{ {'b': umlaut, 'a': 1} | to_nice_json(indent=0) }}",
     '"gr\\u00f6\\u00dfe \\u20ac" {\n"a": 1,\n"b": "gr\\u00f6\\u00dfe \\u20ac"\n}'),
    ("{{ umlaut | to_json(ensure_ascii=false) }}", '"größe €"'),
    ("{{ {'b': {'x': [1, 2], 'a': {}}, 'a': [{'k': 1}]} | to_nice_yaml(indent=2) }}",
     "a:\n- k: 1\nb:\n  a: {}\n  x:\n  - 1\n  - 2\n"),
    ("{{ {'b': {'x': 1}, 'a': [1, 'two', none], 'c': [[1], 2]} | to_yaml }}",
     "a: [1, two, null]\nb: {x: 1}\nc:\n- [1]\n- 2\n"),
    ("{{ {'b': 1, 'a': {'x': [1]}} | to_yaml(default_flow_style=true, sort_keys=false) }}", "{b: 1, a: {x: [1]}}\n"),
    ("{{ {'b': {'x': 1}, 'a': 2} | to_nice_yaml }}", "a: 2\nb:\n    x: 1\n"),
    ("{{ ['yes', '', 'a: b', '# x', '2020-01-01', '*a', 'a:b', 'http://x/y?z=1', ' x', 'a:', '-1', 'it\u2019s', \"it's\"] | to_yaml }}",
     "['yes', '', 'a: b', '# x', '2020-01-01', '*a', a:b, http://x/y?z=1, ' x', 'a:', '-1', 'it\u2019s', 'it''s']\n"),
    ("{% set x = 'a\nb' %}{{ [x] | to_nice_yaml }}", '- "a\\nb"\n'),
    ("{{ 60 | random(seed='node-1') }} {{ words | random(seed=1) }} {{ 60 | random(start=10, step=10, seed=3) }}", "14 b 20"),
    ("{{ 60 | random < 60 and words | random in words }}", True),
    ("{{ [1, 2, 3, 4] | shuffle(seed=7) }} {{ [1, 2, 3] | shuffle | sort }}", "[4, 2, 1, 3] [1, 2, 3]"),
    ("{{ 2 | pow(3) }} {{ 9 | root }} {{ 8 | root(3) }} {{ 100 | log(10) }}", "8.0 3.0 2.0 2.0"),
    ("{{ 'x' | to_uuid }}", "66b2f013-1baa-5313-9c8c-e6f1182e0e90"),
    ("{{ 'http://u@h:80/p?q#f' | urlsplit('hostname') }} {{ ('http://h/p' | urlsplit).path }}", "h /p"),
    ("{{ [{'n': 'a', 'v': 1}] | rekey_on_member('n') }}", {"a": {"n": "a", "v": 1}}),
    ("{{ [{'n': 'a'}, {'n': 'a'}] | rekey_on_member('n') }}", "!`rekey_on_member` found 'a' twice"),
    ("{{ (('2026-01-03 00:00:00' | to_datetime) - ('2026-01-02' | to_datetime('%Y-%m-%d'))).days }}", 1),
    ("{{ ['/a/b/c', '/a/b/d'] | commonpath }}", "/a/b"),
    ("{{ 'http://x/' is url and 'urn:a' is urn and 'a' is not uri and bad is reachable and [1] is issubset([1, 2]) }}", True),    ("{{ 'a1b2' | regex_findall('[0-9]') }}", ["1", "2"]),
    ("{{ 'a.b' | regex_escape }}", "a\\.b"),
    ("{{ 'a,b' | split(',') }}", ["a", "b"]),
    ("{{ 'a b' | quote }}", "'a b'"),
    ("{{ d | to_json }}", '{"a": 1, "b": {"c": 2}}'),
    ("{{ '{\"x\": [1]}' | from_json }}", {"x": [1]}),
    ("{{ {'k': [1, 'two', none], 'm': {}} | to_nice_yaml }}", "k:\n- 1\n- two\n- null\nm: {}\n"),
    ("{{ 'hello' | b64encode }}", "aGVsbG8="),
    ("{{ 'aGVsbG8=' | b64decode }}", "hello"),
    ("{{ 'x' | hash('sha256') | length }}", 64),
    ("{{ '/a/b.txt' | basename }}", "b.txt"),
    ("{{ '/a/b.txt' | dirname }}", "/a"),
    ("{{ '/a/b.txt' | splitext }}", ["/a/b", ".txt"]),
    ("{{ ['/a', 'b'] | path_join }}", "/a/b"),
    ("{{ 1610612736 | human_readable }}", "1.50 GB"),
    ("{{ '2G' | human_to_bytes }}", 2147483648),
    ("{{ rc.stdout_lines[-1] }}", "line 2"),
    ("{{ rc.stdout.split('\n')[0] }}", "line 1"),
    ("{{ range(3) | list }}", [0, 1, 2]),
    ("{{ dict(a=1) }}", {"a": 1}),
    ("{{ vars['n'] }}", 3),
    ("{{ text_with_braces }}", "not a template: {x}"),
    ("{% for w in words %}{{ w }}{% if not loop.last %},{% endif %}{% endfor %}", "b,a,c"),
    ("{% set x = 4 %}{{ x + n }}", "7"),
    ("{{ '{{ n }}' }}", "{{ n }}"),
    ("{# comment #}", ""),
    ("{{ l | type_debug }}", "list"),
    ("{{ 'a' in words }}", True),
    ("{{ n in l and not (n > 5) }}", True),
    ("{{ 7 // 2 }} {{ 7 % 2 }} {{ 2 ** 3 }}", "3 1 8"),
    ("{{ nope }}", "!`nope` is undefined"),
    ("{{ {'a': [nope]} | to_json }}{{ 1 }}", "!`nope` is undefined"),
    ("{{ {'a': [nope]} | to_nice_json }}", "!`nope` is undefined"),
    ("{{ [now] | to_json }}", "!evaluating `{{ [now] | to_json }}` failed: function has no form in JSON"),
    ("{{ d.missing }}", "!a mapping with `a`, `b` has no `missing`"),
    ("{{ broken }}", "!`nothing_here` is undefined"),
    ("{{ loop_a }}", "!the variable `loop_a` is defined by itself"),
    ("{{ 1 / 0 }}", "!evaluating `{{ 1 / 0 }}` failed: ZeroDivisionError"),
    ("{{ 'maybe' | bool }}", "!`bool` cannot tell"),
    ("{{ n | no_such_filter }}", "!the template has a mistake"),
    ("{{ s.__class__ }", "!the template has a mistake"),
    ("{% if n %}", "!the template has a mistake"),
]

#: condition -> truth, or the start of an error.
CONDITIONS: list[tuple[str, Any]] = [
    ("n == 3", True),
    ("n is defined and n > 2", True),
    ("nope is defined", False),
    ("nope is not defined or nope.x", True),
    ("rc is changed", True),
    ("rc is succeeded", True),
    ("bad is failed", True),
    ("skipped is skipped", True),
    ("rc.rc != 0", False),
    ("'line 1' in rc.stdout", True),
    ("rc.stdout is search('line \\d')", True),
    ("s is match('t.x')", True),
    ("'1.10.0' is version('1.9', '>')", True),
    ("'580.126' is version('580', '>=')", True),
    ("'1.0' is version('1', '==')", True),
    ("'1.0.post1' is version('1.0', '>')", True),
    ("'1.0rc1' is version('1.0', '<')", True),
    ("[1] is subset([1, 2])", True),
    ("l is contains(2)", True),
    ("yes_text | bool", True),
    ("yes_text", "!`when` yields the string 'yes', not a boolean"),
    ("l", "!`when` yields a list"),
    ("n", "!`when` yields the number 3"),
    ("nope", "!`nope` is undefined"),
    ("rc.nothing == 1", "!a mapping with `rc`"),
]

ON_NODE = """
import json, sys
from opsctl_agent.expr import Engine
from opsctl_agent.values import ExprError, Expression, Template, from_wire
given = json.load(sys.stdin)
engine = Engine()
out = []
for condition, source in given["cases"]:
    scope = engine.scope(from_wire(given["vars"]))
    try:
        out.append(engine.test(Expression(source), scope) if condition else engine.evaluate(Template(source), scope))
    except ExprError as exc:
        out.append("!" + exc.message)
print(json.dumps(out))
"""

CASES = [(False, source, want) for source, want in TEMPLATES] + [(True, source, want) for source, want in CONDITIONS]


def interpreters() -> dict[str, str]:
    """The Pythons of this machine that a node may have: every release from 3.8 on that is there."""
    found: dict[str, str] = {}
    places = [path for part in os.environ.get("PATH", "").split(os.pathsep) for path in [Path(part)] if part]
    # The tests have a HOME of their own; a person's pyenv lies in the real one.
    places += sorted((Path(pwd.getpwuid(os.getuid()).pw_dir) / ".pyenv" / "versions").glob("*/bin"))
    for minor in range(8, 15):
        for place in places:
            python = place / f"python3.{minor}"
            if python.is_file() and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
                found.setdefault(f"3.{minor}", str(python))
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    found.setdefault(own, sys.executable)
    return found


PYTHONS = interpreters()


VERSIONS = [version for _, version in sorted((int(name.split(".")[1]), name) for name in PYTHONS)]


def judge(got: Any, want: Any) -> bool:
    if isinstance(want, str) and want.startswith("!"):
        return isinstance(got, str) and got.startswith(want)
    return type(got) is type(want) and bool(got == want)


@pytest.mark.parametrize(("condition", "source", "want"), CASES, ids=[source[:60] for _, source, _ in CASES])
def test_the_controller_evaluates(condition: bool, source: str, want: Any) -> None:
    """Every expression of the suite has its value, or its error, on the controller."""
    engine = Engine()
    scope = engine.scope(lift(VARS))
    got: Any
    try:
        got = engine.test(Expression(source), scope) if condition else engine.evaluate(Template(source), scope)
    except ExprError as exc:
        got = "!" + exc.message
    assert judge(got, want), got


@pytest.fixture(scope="session")
def node_tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The agent and the expression bundle as they lie on a node."""
    root = tmp_path_factory.mktemp("node")
    import zlib

    for _, packed in (bootstrap.bundle(), bootstrap.jinja_bundle()):
        for name, text in json.loads(zlib.decompress(packed)).items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    yield root
    shutil.rmtree(root)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_node_evaluates_the_same(version: str, node_tree: Path) -> None:
    """The whole suite gives the same values with the node's interpreter and the Jinja2 that travelled there."""
    given = {"vars": to_wire(lift(VARS)), "cases": [(condition, source) for condition, source, _ in CASES]}
    code = f"import sys; sys.path.insert(0, {str(node_tree)!r})\n{ON_NODE}"
    done = subprocess.run(
        [PYTHONS[version], "-I", "-S", "-c", code], input=json.dumps(given), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    wrong = {source: value for (_, source, want), value in zip(CASES, got, strict=True) if not judge(value, want)}
    assert not wrong


def test_values_survive_the_wire() -> None:
    """What is sent comes back as it was: templates as templates, and a user's keys that look like ours as keys."""
    value = lift({"a": "{{ n }}", "$t": "no template", "l": [1, None, "x", {"$e": {"$d": 1}}], "s": "größe"})
    back = from_wire(json.loads(json.dumps(to_wire(value))))
    assert back == value
    assert isinstance(back["a"], Template)
    assert isinstance(from_wire(to_wire(Expression("a == 1"))), Expression)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES, st.sampled_from([None, True, False]))
def test_yaml_that_is_written_is_read_again(value: Any, flow: bool | None) -> None:
    """Every value comes back from `to_yaml` and `to_nice_yaml` as it was, whatever its texts look like."""
    assert yaml.safe_load(yamltext.to_yaml(value, default_flow_style=flow)) == value
    assert yaml.safe_load(yamltext.to_nice_yaml(value)) == value
