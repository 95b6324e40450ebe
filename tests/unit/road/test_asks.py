"""What a node may ask for: what its part of the plan has a use for. A node may be in other hands."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from opsctl.asks import Answers
from opsctl.errors import OpsError


def answers(body: dict[str, Any], **tasks: Any) -> Answers:
    """Those of a host that was sent ``body``; every allowed ask ends in ``LookupError``."""

    class Nothing:
        def __getattr__(self, name: str) -> Any:
            raise LookupError(name)

    run: Any = SimpleNamespace(tasks=tasks, variables=Nothing(), inventory=Nothing(), states=Nothing())
    play: Any = SimpleNamespace(segments={"n1": SimpleNamespace(body=body)}, play=None)
    state: Any = SimpleNamespace(host=SimpleNamespace(name="n1"))
    return Answers(run, play, SimpleNamespace(), state)  # type: ignore[arg-type]


PLAIN = {"nodes": [{"id": "t", "kind": "command", "args": {"cmd": "echo {{ secret }}"}}]}
LOOKS = {"nodes": [{"id": "t", "kind": "debug", "args": {"msg": {"$t": "{{ lookup('file', r.stdout) }}"}}}]}
OTHERS = {"nodes": [{"id": "t", "kind": "debug", "args": {"msg": {"$t": "{{ hostvars[r.stdout].x }}"}}}]}
AWAY = SimpleNamespace(delegate_to="n2", kind="command")
HERE = SimpleNamespace(delegate_to=None, kind="command")


def request(kind: str) -> dict[str, Any]:
    return {"to": "n2", "request": {"kind": kind, "args": {"cmd": "id"}}, "become": "root", "name": "r/p0.b0/n1.1"}


@pytest.mark.parametrize(
    "body, task, what, data",
    [
        (PLAIN, HERE, "lookup", {"args": ["file", "/root/.ssh/id_ed25519"], "kw": {}}),
        (OTHERS, HERE, "lookup", {"args": ["env", "HF_TOKEN"], "kw": {}}),
        (PLAIN, HERE, "hostvars", {"host": "n2"}),
        (LOOKS, HERE, "hostvars", {"host": "n2"}),
        (PLAIN, HERE, "delegate", request("command")),
        (PLAIN, AWAY, "delegate", request("copy")),
    ],
)
def test_what_the_plan_does_not_use_is_refused(body: Any, task: Any, what: str, data: Any) -> None:
    """Files and variables of the controller, other hosts' variables, commands on other hosts."""
    with pytest.raises(OpsError, match=f"n1 asks for `{what}`, which its part of the plan does not use"):
        answers(body, t=task).answer("t", what, data)


@pytest.mark.parametrize(
    "body, task, what, data",
    [
        (LOOKS, HERE, "lookup", {"args": ["file", "x"], "kw": {}}),
        (OTHERS, HERE, "hostvars", {"host": "n2"}),
        (PLAIN, AWAY, "delegate", request("command")),
    ],
)
def test_what_the_plan_uses_is_looked_for(body: Any, task: Any, what: str, data: Any) -> None:
    with pytest.raises(LookupError):
        answers(body, t=task).answer("t", what, data)
