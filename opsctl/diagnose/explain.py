"""Ask the installed source about a message: where it is raised, under which condition, and who satisfies it.

The search itself is `opsctl.agent.sources`, which also runs on a node; here its result becomes words and evidence.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opsctl.diagnose.render import Plain, Style, clean
from opsctl.diagnose.report import Evidence, Finding, Report
from opsctl.errors import InputUnreadable, UsageError

_SHOWN = 12
_FIRST_BLOCKS = 8
_CLASS = re.compile(rb"Resolved architecture: (\w+)|Load weight end\. (?:elapsed=\S+, )?type=(\w+)")
_FRAME = re.compile(r"raised in \S+ at (?P<file>\S+):(?P<line>\d+)")


def explain(
    message: str, *, root: str | None = None, package: str | None = None, classes: Sequence[str] = ()
) -> dict[str, Any]:
    """The search result of `opsctl.agent.sources.search` on this machine.

    Without ``root`` the active virtual environment, the environment of the engine in PATH and this interpreter's are
    tried. Raises UsageError when there is no such package.
    """
    from opsctl.agent import sources

    if not message.strip():
        raise UsageError(
            "there is no message to look for", hint='give the error text: `opsctl explain "text of the error"`'
        )
    if root is not None and not os.path.isdir(root):
        raise InputUnreadable(
            f"there is no folder {root}", hint="--root names an environment, site-packages or the package"
        )
    last = ""
    for place in [root] if root is not None else _environments(package):
        try:
            return sources.search(place, message, package, list(classes))
        except LookupError as error:
            last = str(error)
    raise UsageError(
        f"the package {package or 'vllm or sglang'} was not found",
        cause=last or "no environment was found",
        hint="name its environment with --root DIR and the package with --package NAME",
    )


def _environments(package: str | None) -> Iterator[str]:
    seen: set[str] = set()
    program = shutil.which(package or "vllm") or shutil.which("sglang")
    for place in (
        os.environ.get("VIRTUAL_ENV"),
        str(Path(program).resolve().parent.parent) if program else None,
        sys.prefix,
    ):
        if place and place not in seen:
            seen.add(place)
            yield place


def render_explanation(found: Mapping[str, Any], style: Style | None = None) -> str:
    """The result as text, ending with a newline."""
    marks = style or Plain()
    name = f"{found['package']} {found['version']}" if found.get("version") else str(found["package"])
    lines = [f"{marks.bold(name)}  {found['files']} files of {found['root']} searched in {found['seconds']:.1f}s"]
    if not found["sites"]:
        lines += [
            "",
            "This message is not raised in that package, or its text is built from parts that are not in the source.",
        ]
    for site in found["sites"]:
        lines += ["", *_site(site, marks)]
        for predicate in site["predicates"]:
            lines += ["", *_predicate(predicate, marks)]
    if found.get("unparsed"):
        lines += ["", f"not read (newer Python): {', '.join(found['unparsed'][:5])}"]
    return "\n".join(lines) + "\n"


def _site(site: Mapping[str, Any], style: Style) -> Iterator[str]:
    verb = {"raise": "raised", "log": "logged", "assert": "asserted"}[site["kind"]]
    inside = f" in {site['function']}" if site["function"] else ""
    yield f"{verb} at {style.cyan(site['file'] + ':' + str(site['line']))}{inside}"
    yield f"  {site['exception']}: {clean(site['template'])}"
    word = "when"
    for condition in site["conditions"]:
        text = clean(condition["text"])
        asked = text if condition["holds"] else f"not ({text})"
        yield f"  {word:<6} {asked}  {style.dim('line ' + str(condition['line']))}"
        word = "and"


def _predicate(predicate: Mapping[str, Any], style: Style) -> Iterator[str]:
    yield f"`{predicate['name']}` is defined at {style.cyan(predicate['file'] + ':' + str(predicate['line']))}"
    for line in predicate["source"].splitlines()[:14]:
        yield f"  {style.dim(clean(line))}"
    for cls in predicate["classes"]:
        yield ""
        yield from _interface(cls, style)


def _interface(cls: Mapping[str, Any], style: Style) -> Iterator[str]:
    kind = "protocol" if cls["protocol"] else "class"
    yield f"`{cls['name']}` ({kind}) at {style.cyan(cls['file'] + ':' + str(cls['line']))} asks for"
    for member in cls["members"]:
        origin = style.dim(f"of {member['of']}, line {member['line']}")
        yield f"  {member['kind']:<9} {member['name']}  {origin}"
    direct = [item for item in cls["implementers"] if item["direct"]]
    inherited = [item for item in cls["implementers"] if not item["direct"]]
    yield f"  have it ({len(direct)} themselves, {len(inherited)} by inheritance):"
    yield from _names([item["name"] for item in direct], "    ")
    if inherited:
        yield from _names([item["name"] for item in inherited], "    by inheritance: ")
    near = cls["near"]
    if near:
        yield "  have something like it, but not this:"
    for item in near[:_SHOWN]:
        has = ", ".join(item["has"]) or "neither"
        place = style.dim(f"{item['file']}:{item['line']}")
        mark = style.red("involved  ") if item["involved"] else ""
        yield f"    {item['name']}  {mark}has {has}, lacks {item['lacks']}  {place}"
    if len(near) > _SHOWN:
        yield f"    and {len(near) - _SHOWN} more (--json lists all)"


def _names(names: Sequence[str], first: str) -> Iterator[str]:
    import textwrap

    yield from textwrap.wrap(", ".join(names) or "none", 100, initial_indent=first, subsequent_indent="    ")


def involved_classes(logs: Sequence[str]) -> list[str]:
    """Model classes that the logs name as the ones that are served, from their first megabytes."""
    from opsctl.diagnose.inputs import read_blocks

    found: dict[str, None] = {}
    for name in logs:
        if name == "-":
            continue
        for count, block in enumerate(read_blocks(name)):
            for match in _CLASS.finditer(block):
                found[(match[1] or match[2]).decode("ascii")] = None
            if count >= _FIRST_BLOCKS or len(found) >= 8:
                break
    return list(found)


def explain_report(report: Report, classes: Sequence[str] = ()) -> None:
    """Add to each unknown finding where the installed source raises it, if that source is on this machine.

    The place comes from the traceback; a file that is not here is left alone.
    """
    for finding in report.findings:
        if finding.id == "unknown":
            _explain_finding(finding, classes)


def question(finding: Finding) -> tuple[str, str] | None:
    """The file and the message to ask the installed source about, for an unknown finding with a traceback."""
    told = [*(item.text for item in finding.evidence), finding.cause]
    file = next((match["file"] for text in told if (match := _FRAME.search(text))), None)
    message = finding.title.partition(": ")[2] or finding.title
    return (file, message) if finding.id == "unknown" and file and len(message) >= 12 else None


def add_answer(finding: Finding, found: Mapping[str, Any]) -> None:
    """Put the place and its condition, as `sources.search` found them, into the evidence."""
    for site in list(found.get("sites") or ())[:1]:
        conditions = " and ".join(
            c["text"] if c["holds"] else f"not ({c['text']})" for c in site["conditions"]
        )  # the guard, outermost first
        text = f"{site['kind']} in {site['function']}" + (f" when {conditions}" if conditions else "")
        finding.evidence.append(Evidence(site["file"], site["line"], text))
        for predicate in site["predicates"][:1]:
            finding.evidence.append(
                Evidence(predicate["file"], predicate["line"], f"`{predicate['name']}` is defined here")
            )


def _explain_finding(finding: Finding, classes: Sequence[str]) -> None:
    from opsctl.agent import sources

    asked = question(finding)
    top = _package_of(asked[0]) if asked else None
    if asked is None or top is None:
        return
    try:
        add_answer(finding, sources.search(str(top), asked[1], top.name, list(classes), 2, 5.0))
    except LookupError:
        return


def _package_of(file: str) -> Path | None:
    """The package folder that a frame's file lies in, if it is on this machine."""
    path = Path(file)
    if not path.is_absolute() or not path.is_file():
        return None
    top = path.parent
    while (top.parent / "__init__.py").exists():
        top = top.parent
    return top if (top / "__init__.py").exists() else None
