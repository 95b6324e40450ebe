"""Versions, requirements and markers, against `packaging`, which pip and uv follow."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from packaging.markers import Marker
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from opsctl.agent import requirements
from opsctl.agent.requirements import BadRequirement, Requirement, parse, satisfies, version_key
from opsctl.agent.sitepackages import Dist, find, installed, look, unmet

RELEASES = st.lists(st.integers(0, 12), min_size=1, max_size=4).map(lambda ns: ".".join(map(str, ns)))
VERSIONS = st.builds(
    lambda epoch, release, pre, post, dev, local: epoch + release + pre + post + dev + local,
    st.sampled_from(["", "", "", "1!"]),
    RELEASES,
    st.sampled_from(["", "", "", "a1", "b2", "rc1", ".alpha3", "-preview4", "c"]),
    st.sampled_from(["", "", "", ".post1", "-2", "r3", "post"]),
    st.sampled_from(["", "", "", ".dev1", "dev0"]),
    st.sampled_from(["", "", "", "+cpu", "+cu128", "+local.7", "+7.local"]),
)


@given(VERSIONS, VERSIONS)
def test_versions_are_ordered_as_everywhere(one: str, other: str) -> None:
    assert (version_key(one) < version_key(other)) == (Version(one) < Version(other))
    assert (version_key(one) == version_key(other)) == (Version(one) == Version(other))


@given(VERSIONS, st.sampled_from(["==", "!=", "<=", ">=", "~=", "<", ">"]), VERSIONS, st.booleans())
def test_clauses_hold_as_everywhere(version: str, operator: str, wanted: str, prefix: bool) -> None:
    """For installed versions, so pre-releases count. Left out: a post-release of the right side of `<` beside
    pre-releases, where `packaging` itself has changed its mind."""
    if prefix and operator in ("==", "!="):
        wanted = ".".join(str(n) for n in Version(wanted).release) + ".*"
    elif Version(wanted).local and operator not in ("==", "!="):
        wanted = Version(wanted).public
    try:
        theirs = SpecifierSet(operator + wanted)
    except InvalidSpecifier:
        assume(False)
        raise
    if operator == "<":
        right = Version(wanted)
        assume(not (right.is_postrelease and Version(version).base_version == right.base_version))
    assert satisfies(version, operator + wanted) == theirs.contains(version, prereleases=True)


@pytest.mark.parametrize(("text", "wanted"), [
    ("vllm", ("vllm", (), "", "", "")),
    ("Foo.Bar_baz[B, a] >= 1.0 , < 2", ("foo-bar-baz", ("a", "b"), ">=1.0,<2", "", "")),
    ("torch (>=2,<3) ; python_version >= '3.9'", ("torch", (), ">=2,<3", "", "python_version >= '3.9'")),
    ("torch==2.13.0+cpu --hash=sha256:abc --hash=sha256:def", ("torch", (), "==2.13.0+cpu", "", "")),
    ("a @ https://x.example/a-1.0.whl ; sys_platform == 'linux'",
     ("a", (), "", "https://x.example/a-1.0.whl", "sys_platform == 'linux'")),
    ("/srv/w/alpha_x-1.0-py3-none-any.whl", ("alpha-x", (), "", "file:///srv/w/alpha_x-1.0-py3-none-any.whl", "")),
    ("git+https://x.example/r.git@v1#egg=thing", ("thing", (), "", "git+https://x.example/r.git@v1#egg=thing", "")),
    ("-e /srv/src[dev]", ("", ("dev",), "", "file:///srv/src", "")),
])  # fmt: skip
def test_requirements_are_taken_apart(text: str, wanted: tuple[object, ...]) -> None:
    assert parse(text)[:5] == wanted


@pytest.mark.parametrize("text", ["", "two words", "a=1", "a=>1", "a==1 ; python_versoin > '3'", "[x]", "a ; (", "@ x"])
def test_what_is_no_requirement_is_refused(text: str) -> None:
    with pytest.raises(BadRequirement):
        parse(text)


def test_lists_are_taken_as_people_write_them() -> None:
    assert requirements.as_list("a, b c") == ["a", "b", "c"]
    assert requirements.as_list("torch>=2,<3") == ["torch>=2,<3"]
    assert requirements.as_list([" a ", "b"]) == ["a", "b"] and requirements.as_list(None) == []
    for bad in ({"a": 1}, [1], [""]):
        with pytest.raises(BadRequirement):
            requirements.as_list(bad)


def test_files_are_taken_apart() -> None:
    text = "# head\n--index-url https://x\n-r more.txt\nflask==1 \\\n    --hash=sha256:a  # why\n\n-e ./src\nb#c\n"
    assert requirements.lines_of(text) == (
        ["flask==1      --hash=sha256:a", "-e ./src", "b#c"], ["--index-url https://x", "-r more.txt"],
    )  # fmt: skip


MARKERS = [
    "python_version >= '3.9'", "python_version < '3.10' or extra == 'More_of'", "sys_platform == 'win32'",
    "(os_name == 'posix' and platform_machine != 'nope') or python_version < '2'", "'linux' in sys_platform",
    "platform_system not in 'Windows Darwin'", "python_full_version >= '3.9.7'", "implementation_name == 'cpython'",
    "extra == 'x' and python_version > '3'", "python_version == '3.11.*'", "platform_python_implementation != 'PyPy'",
]  # fmt: skip


@pytest.mark.parametrize("marker", MARKERS)
@pytest.mark.parametrize("python", ["3.8.1", "3.9.7", "3.11.4", "3.13.0"])
@pytest.mark.parametrize("extra", ["", "x", "more-of"])
def test_markers_hold_as_everywhere(marker: str, python: str, extra: str) -> None:
    values = {**requirements.environment(python, "x86_64"), "extra": extra}
    assert requirements.evaluate(marker, values) == Marker(marker).evaluate(values)


def dist(folder: Path, name: str, version: str, *headers: str, **files: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("\n".join([f"Name: {name}", f"Version: {version}", *headers, "", "Requires-Dist: no"]))
    for file, text in files.items():
        (info / file.replace("__", ".")).write_text(text)


def needs(folder: Path, *texts: str, deep: bool = True) -> list[str]:
    found = unmet([parse(text) for text in texts], installed([str(folder)]), requirements.environment("3.11.4"), deep)
    return [need.requirement.name or need.requirement.url for need in found]


def test_what_is_there_meets_what_is_asked(tmp_path: Path) -> None:
    """Names in any spelling, extras, markers, dependencies of dependencies, circles."""
    dist(tmp_path, "Alpha_One", "2.0+cpu", "Requires-Dist: beta>=9", "Requires-Dist: gone ; extra == 'all'",
         "Requires-Dist: other ; sys_platform == 'win32'")  # fmt: skip
    dist(tmp_path, "beta", "1.0", "Requires-Dist: alpha.one", "Requires-Dist: deep")
    (tmp_path / "gamma-1.5-py3.11.egg-info").write_text("Name: gamma\nVersion: 1.5\n")
    assert needs(tmp_path, "alpha-one==2.0") == ["deep"]
    assert needs(tmp_path, "alpha-one==2.0", deep=False) == []
    assert needs(tmp_path, "alpha-one[all]>=2", "gamma~=1.4", "x ; python_version < '3'") == ["gone", "deep"]
    assert needs(tmp_path, "alpha.one==2.1", "gamma>2", "missing") == ["alpha-one", "gamma", "missing"]


def test_where_something_came_from_counts_for_addresses(tmp_path: Path) -> None:
    dist(tmp_path, "one", "1.0", direct_url__json='{"url": "file:///srv/one", "dir_info": {"editable": true}}')
    git = '{"url": "https://x.example/r.git", "vcs_info": {"vcs": "git", "requested_revision": "v1", "commit_id": "abc"}}'
    dist(tmp_path, "two", "1.0", direct_url__json=git)
    assert needs(tmp_path, "-e /srv/one", "two @ git+https://x.example/r.git@v1", "git+https://x.example/r.git@abc") == []
    assert needs(tmp_path, "/srv/one") == ["file:///srv/one"]
    assert needs(tmp_path, "two @ git+https://x.example/r.git@v2", "two @ https://x.example/two.whl") == ["two", "two"]
    assert find(Requirement("", url="file:///no"), installed([str(tmp_path)])) is None


def test_a_distribution_is_complete_when_all_of_its_record_is_there(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("12345")
    record = 'm.py,sha256=x,5\n"with, comma.py",,\n__pycache__/m.pyc,,\none-1.dist-info/RECORD,,\n'
    dist(tmp_path, "one", "1", RECORD=record)
    found = Dist("one", "1", str(tmp_path / "one-1.dist-info"))
    assert not found.complete()
    (tmp_path / "with, comma.py").write_text("")
    assert found.complete()
    (tmp_path / "m.py").write_text("1")
    assert not found.complete(), "cut short"
    dist(tmp_path, "two", "1")
    assert not Dist("two", "1", str(tmp_path / "two-1.dist-info")).complete(), "without RECORD"


def test_a_directory_that_is_no_environment_is_none(tmp_path: Path) -> None:
    assert look(str(tmp_path)) is None and look(str(tmp_path / "no")) is None
    (tmp_path / "pyvenv.cfg").write_text("home = /nowhere\nversion_info = 3.12.1.final.0\n")
    found = look(str(tmp_path))
    assert found is not None and found.python == "3.12.1" and not found.working


def test_credentials_are_masked() -> None:
    assert requirements.masked("a @ git+https://me:tok@x.example/r and https://tok@y/z") == (
        "a @ git+https://***@x.example/r and https://***@y/z"
    )
