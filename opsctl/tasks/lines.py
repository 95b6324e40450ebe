"""`lineinfile`: one line of a text file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import model_validator

from .base import Args, Kind, arg
from .files import UNSUPPORTED
from .words import Mode, NodePath, Str, YesNo


class LineInFileArgs(Args):
    """One line of a text file: there, replaced, or not there."""

    unsupported: ClassVar[Mapping[str, str]] = UNSUPPORTED

    path: NodePath = arg("The file; a link is followed.", aliases=("dest", "destfile", "name"))
    state: Literal["absent", "present"] = arg("Whether the line shall be there.", "present")
    line: Str | None = arg("The line, without its end.", None, ("value",))
    regexp: Str | None = arg(
        "A regular expression, searched in every line. For `present` the last line that matches is replaced; for "
        "`absent` all that match are removed. It should match `line` too, so that a second run finds it.",
        None,
        ("regex",),
    )
    search_string: Str | None = arg("A plain text instead of `regexp`.", None)
    backrefs: YesNo = arg("Whether `line` may hold `\\1`, `\\g<name>`; without a match nothing is added.", False)
    insertafter: Str | None = arg(
        "`EOF`, or a regular expression: a new line goes behind the last line that matches.", None
    )
    insertbefore: Str | None = arg(
        "`BOF`, or a regular expression: a new line goes before the last line that matches.", None
    )
    firstmatch: YesNo = arg("Whether the first line that matches counts, not the last.", False)
    create: YesNo = arg("Whether a file that does not exist is made.", False)
    backup: YesNo = arg("Whether the old file is kept beside the new one.", False)
    validate_: Str | None = arg(
        "A command with `%s` for the new file's path; the file is put in place only if it succeeds.",
        None,
        alias="validate",
    )
    mode: Mode | None = arg("Permissions of the file.", None)
    owner: Str | None = arg("Owner, by name or number.", None)
    group: Str | None = arg("Group, by name or number.", None)

    @model_validator(mode="after")
    def _together(self) -> LineInFileArgs:
        if self.regexp is not None and self.search_string is not None:
            raise ValueError("takes either `regexp` or `search_string`")
        if self.insertafter is not None and self.insertbefore is not None:
            raise ValueError("takes either `insertafter` or `insertbefore`")
        if self.state == "present":
            if self.line is None:
                raise ValueError("needs `line`")
            if "\n" in self.line.rstrip("\n"):
                raise ValueError("takes one line, not several\nuse `copy` or `template` for a block of lines")
            if self.backrefs and self.regexp is None:
                raise ValueError("needs `regexp` for `backrefs`")
        elif self.line is None and self.regexp is None and self.search_string is None:
            raise ValueError("needs one of `line`, `regexp`, `search_string`")
        return self


KINDS: dict[str, Kind] = {
    "lineinfile": Kind(
        name="lineinfile",
        model=LineInFileArgs,
        doc="One line of a text file.",
        examples="""\
- lineinfile:
    path: /etc/sysctl.d/99-gpu.conf
    regexp: '^vm\\.swappiness'
    line: vm.swappiness = 10
    create: true
    mode: "0644"
""",
    )
}
