"""A failed start gets its cause: the log that came with the failure, judged by the catalogue of `opsctl diagnose`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The key of a failed result that holds the log; it is for this module and goes no further.
WINDOW = "window"
_BAD = ("fatal", "error")


def attach(event: dict[str, Any]) -> None:
    """Put the verdict on the log of a failed `server` task into the event's error, and the log itself away.

    ``error.finding`` has id, title, cause, fix and commands. Without a log, or a verdict, nothing changes.
    """
    _one(event)
    for item in event.get("items") or ():
        _one(item)


def _one(event: dict[str, Any]) -> None:
    result = event.get("result")
    if not isinstance(result, dict) or not isinstance(result.get(WINDOW), str):
        return
    window = result.pop(WINDOW)
    error = event.get("error")
    if not isinstance(error, dict) or not window.strip():
        return
    found = _verdict(window, str(result.get("log") or "log"))
    if found is None:
        return
    result["finding"] = error["finding"] = found
    said = [
        f"{found['title']}  [{found['id']}]",
        *([found["cause"]] if found["cause"] else []),
        "",
        error.get("cause") or "",
    ]
    error["cause"] = "\n".join(said).rstrip("\n")
    hints = [found["fix"].rstrip(". ") if found["fix"] else "", error.get("hint") or ""]
    error["hint"] = "; ".join(hint for hint in hints if hint) or None


def _verdict(window: str, source: str) -> Mapping[str, Any] | None:
    try:
        from .diagnose import diagnose_blocks

        report = diagnose_blocks([window.encode("utf-8", "surrogatepass")], source)
    except Exception:  # the failure itself must be reported whatever the catalogue does
        return None
    for finding in report.findings[:1]:
        if finding.role != "warning" and finding.severity in _BAD:
            keys = ("id", "title", "severity", "cause", "fix", "commands", "references")
            return {key: getattr(finding, key) for key in keys}
    return None
