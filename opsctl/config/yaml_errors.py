"""What is said about YAML that cannot be parsed: in the words of somebody who writes playbooks."""

from __future__ import annotations

import re
from typing import Any

import yaml

from ..errors import ConfigError, Span

#: No value of a playbook is nested deeper than this.
MAX_DEPTH = 200

_UNQUOTED = re.compile(r"^\s*(?:- +)*(?:(?:[\w.-]+|\"[^\"]*\"|'[^']*') *: +)?(?=\{\{|\{%)")
_TAB = re.compile(r"^ *(\t)")


def too_deep(span: Span) -> ConfigError:
    """The complaint about absurd nesting."""
    return ConfigError(
        f"values are nested more than {MAX_DEPTH} deep",
        span=span,
        hint="no playbook needs that; is this the right file?",
    )


def unquoted(span: Span) -> ConfigError:
    """The complaint about `{{ x }}` without quotes."""
    return ConfigError(
        "a value that begins with `{{` or `{%` must be quoted",
        span=span,
        cause="YAML reads an unquoted `{` as the start of a mapping",
        hint='write it in quotes: "{{ name }}"',
    )


def syntax_error(error: yaml.YAMLError, text: str, name: str) -> ConfigError:
    """A parser's complaint in the words of somebody who writes playbooks."""
    lines = text.split("\n")
    if isinstance(error, yaml.reader.ReaderError):
        before = text[: error.position] if isinstance(error.position, int) else ""
        line = before.count("\n") + 1
        return ConfigError(
            "the file contains a character that YAML does not allow",
            span=Span(name, line),
            cause=f"character U+{error.character:04X}" if isinstance(error.character, int) else None,
            hint="remove it, or write it as an escape in double quotes",
        )
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = str(getattr(error, "problem", None) or getattr(error, "context", None) or error).strip()
    context = getattr(error, "context", None)
    context_mark = getattr(error, "context_mark", None)
    span = Span(name, mark.line + 1, mark.column + 1) if mark is not None else Span(name, 1)
    if "nesting depth" in problem:
        return too_deep(span)
    for number in dict.fromkeys((span.line, span.line - 1)):
        if 1 <= number <= len(lines):
            found = _UNQUOTED.match(lines[number - 1])
            if found:
                return unquoted(Span(name, number, found.end() + 1))
    if span.line <= len(lines):
        tab = _TAB.match(lines[span.line - 1])
        if tab:
            return ConfigError(
                "a tab cannot be used for indentation",
                span=Span(name, span.line, tab.start(1) + 1),
                cause="YAML indents with spaces only",
                hint="replace the tab by spaces",
            )
    if "another document" in problem:
        return ConfigError(
            "the file holds more than one YAML document",
            span=span,
            hint="put what comes after `---` into a file of its own",
        )
    if "undefined alias" in problem:
        return ConfigError(
            problem.replace("found ", "", 1),
            span=span,
            hint="an anchor `&name` must stand before `*name`; quote the value if the `*` is text",
        )
    return _explained(problem, context, context_mark, span, lines)


def _explained(problem: str, context: Any, context_mark: Any, span: Span, lines: list[str]) -> ConfigError:
    opened = str(context or "")
    if context_mark is not None and ("quoted scalar" in opened or "flow" in opened) and "escape" not in problem:
        # The mistake is where it opens; the parser noticed it somewhere below.
        noticed, span = span.line, Span(span.file, context_mark.line + 1, context_mark.column + 1)
        if "quoted scalar" in opened:
            return ConfigError(
                "the quote that opens here is not closed",
                span=span,
                cause=problem,
                hint="close it, or put the value into the other kind of quotes",
            )
        return ConfigError(
            "the bracket that opens here is not closed",
            span=span,
            cause=f"in line {noticed}: {problem}",
            hint="add the missing `,`, `]` or `}`; quote text that contains brackets",
        )
    cause: str | None = problem
    if context and context_mark is not None:
        cause = f"{problem}, {str(context).strip()} that starts in line {context_mark.line + 1}"
    line = lines[span.line - 1] if span.line <= len(lines) else ""
    what = "this is not valid YAML"
    hint = "compare the indentation with the lines above; quote values with : or # in them"
    if "mapping values are not allowed" in problem:
        if re.match(r"[ -]*[^\s:]+\Z", line[: span.col - 1]):
            what, hint = "this line is indented too far", "keys of one mapping start in the same column"
            span = Span(span.file, span.line, len(line) - len(line.lstrip(" -")) + 1)
        else:
            what = "a second `:` in one line"
            hint = "quote the value, or bring the key to a line of its own with the right indentation"
    elif "cannot start any token" in problem:
        char = line[span.col - 1 : span.col]
        what, hint = f"a value cannot begin with `{char}`", "put the value in quotes"
    elif "did not find expected key" in problem or "expected <block end>" in problem:
        what = "the indentation does not fit, or a quote or bracket is not closed"
        hint = "keys of one mapping start in the same column; after a closing quote nothing may follow"
    elif "end of stream" in problem or "could not find expected ':'" in problem:
        what = "a `:` or a closing quote is missing"
        hint = "a key is followed by `: `; close what the line named in the cause opens"
    elif "unknown escape" in problem:
        what, hint = "this escape does not exist in double quotes", "double the backslash, or use single quotes"
    elif "tag" in problem:
        hint = "quote the value if it only begins with `!`"
    elif "duplicate anchor" in problem:
        what, hint = "an anchor is defined twice", "rename one of the two"
    return ConfigError(what, span=span, cause=cause, hint=hint)
