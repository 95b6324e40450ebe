"""Diagnosis: one cause, with evidence, from any log.

`diagnose_files` is the way in for files; `watch` gives a matcher for a log that grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from opsctl.diagnose.report import Evidence, Finding, Report

if TYPE_CHECKING:
    from opsctl.diagnose.live import LiveMatcher

__all__ = ["Evidence", "Finding", "Report", "diagnose_blocks", "diagnose_files", "watch"]


def diagnose_files(names: Sequence[str], *, signatures: Sequence[Path] = ()) -> Report:
    """The report for the logs ``names`` taken together as one incident (``-`` is standard input).

    ``signatures`` are folders of the project whose entries override the shipped ones. Raises InputUnreadable.
    """
    from opsctl.diagnose.inputs import read_blocks
    from opsctl.diagnose.scan import Matcher, scan
    from opsctl.diagnose.signatures import load_signatures
    from opsctl.diagnose.verdict import judge

    matcher = Matcher(load_signatures(signatures))
    analysis = matcher.analysis()
    for name in names:
        scan(matcher, read_blocks(name), analysis, _display(name))
    return judge(analysis, ", ".join(_display(name) for name in names))


def diagnose_blocks(blocks: Sequence[bytes], source: str = "log") -> Report:
    """The report for bytes that are already in memory."""
    from opsctl.diagnose.scan import Matcher, scan
    from opsctl.diagnose.signatures import load_signatures
    from opsctl.diagnose.verdict import judge

    matcher = Matcher(load_signatures())
    analysis = matcher.analysis()
    scan(matcher, blocks, analysis, source)
    return judge(analysis, source)


def watch(source: str, *, signatures: Sequence[Path] = ()) -> LiveMatcher:
    """A matcher for a log that grows; ``source`` names it in findings. `feed` it lines, ask `verdict` at the end."""
    from opsctl.diagnose.live import LiveMatcher
    from opsctl.diagnose.scan import Matcher
    from opsctl.diagnose.signatures import load_signatures

    return LiveMatcher(Matcher(load_signatures(signatures)), source)


def _display(name: str) -> str:
    return "standard input" if name == "-" else name
