"""One host's way through a batch: its segment over its session, and what the node says about it.

A lost link is the session's business. An agent that dies (killed, node rebooted) is handled here: what was done is not
done again, kinds that describe a state are looked at again, and a command that was under way is the user's decision
(contracts 3).
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import __version__, findings
from .agent.values import Unknown, kept
from .asks import Answers
from .batch import Batch
from .errors import ConnectError, HostKeyChanged, Interrupted, OpsError, TaskFailed, UsageError, lock_held
from .hosts import HostState, task_error
from .ledger import VALUES
from .model import Task

if TYPE_CHECKING:
    from .executor import Run
    from .ledger import SegmentRecord
    from .model import Play
    from .plan import Segment
    from .playrun import PlayRun

Body = dict[str, Any]

#: Kinds whose effect cannot be seen: whether an interrupted one has done its work, nobody can tell (as `agent.outcome`).
SINGULAR = frozenset({"command", "shell", "script", "raw", "uri"})
#: How often a segment is taken up again after its agent died.
LIVES = 5


class HostRun:
    """One host in one batch of one play."""

    def __init__(self, play: PlayRun, batch: Batch, host: str) -> None:
        self.play = play
        self.run: Run = play.owner
        self.batch = batch
        self.host = host
        self.state: HostState = self.run.states[host]
        self.segment: Segment = play.segments[host]
        self.names = {task: name for task, name, _ in self.segment.tasks}
        self.past: list[Body] = []  # the node's events before the agent of now
        self.record: SegmentRecord | None = None

    def go(self) -> None:
        """The host's segment, to its end or until the host is lost."""
        try:
            if self.run.stopped is None and not self.run.left:
                self._segment()
        except ConnectError as exc:
            if not self.run.left:
                self._lost(exc)
        except OpsError as exc:
            self.state.failed, self.state.error = True, exc
            if exc.host is None:
                exc.host = self.host
            self.run.bus.emit("host_failed", host=self.host, error=exc.as_dict())
        finally:
            self.batch.leave(self.host, self.state.out)

    def _lost(self, exc: ConnectError) -> None:
        if self.play.play.ignore_unreachable and self.state.session is None and not isinstance(exc, HostKeyChanged):
            # Nothing was begun there. (After a link that broke, the node may still be at work.)
            self._event({"ev": "segment_finished", "ok": True})
            self.run.sessions.again(self.state)
            self.state.counts["ignored"] += 1
            text = "; ".join(part for part in (exc.what, exc.cause) if part)
            self.run.bus.emit("warning", host=self.host, message=f"{text}; the play has `ignore_unreachable`")
            return
        self.state.unreachable, self.state.error = True, exc
        self.state.counts["unreachable"] += 1
        self.run.bus.emit("host_unreachable", host=self.host, error=exc.as_dict())

    # -- the segment --------------------------------------------------------------------------------------------------

    def _segment(self) -> None:
        from .remote.session import AgentDied

        over: list[str] = []
        for life in range(LIVES):
            segment_id = self.segment.body["id"] + (f"~{life}" if life else "")
            record = self.run.ledger.segments.get(segment_id)
            if record is not None:
                self._same_plan(record)
                for body in record.events:
                    self._said(body, again=True)
                later = f"{self.segment.body['id']}~{life + 1}" in self.run.ledger.segments
                if later:
                    self.past += record.events
                    over.append(segment_id)
                    continue
                if record.finished:
                    self._ended(record.events[-1])
                    return
            self.record = record or self.run.ledger.sent(segment_id, self.segment.hash, self.segment.tasks)
            try:
                done = self._follow(segment_id, over)
                if done is None:
                    self.past += self.record.events
                    continue
                self._ended(done)
                return
            except AgentDied as exc:
                self.past += self.record.events
                over.append(segment_id)
                if self.state.session is not None:
                    self.state.session.forget(segment_id)
                self._choose(exc)
        raise TaskFailed(
            f"the agent on {self.host} died {LIVES} times", hint="`opsctl diagnose` looks at the node", host=self.host
        )

    def _follow(self, segment_id: str, over: Sequence[str]) -> Body | None:
        """The end of a segment; None when only its leading `raw` tasks were done, and the rest is yet to be sent.

        ``over`` are the segments that it takes up: what the node still has of them can go.
        """
        run, state = self.run, self.state
        fresh = state.session is None
        assert self.record is not None
        body = {**self.segment.body, "id": segment_id, **self._around()}
        session = run.sessions.get(state)
        prepared = None
        if body["nodes"] and body["nodes"][0].get("kind") == "raw":
            from .pythonless import run_raw_first

            prepared = run_raw_first(self, session, body)
        if prepared is False:
            self._event({"ev": "segment_finished", "ok": False})
            return self.record.events[-1]
        if prepared:
            return None
        if fresh:
            run.bus.emit("host_connected", host=self.host, duration_s=round(run.sessions.took(state), 3))
        if self.past:
            body["replay"] = self._replay()
        if over:
            body["over"] = list(over)
        secrets = self.run.masker.within(json.dumps(body, ensure_ascii=False, default=str))
        if secrets:
            body["secrets"] = secrets
        answers = Answers(run, self.play, self.batch, state)
        return session.run_segment(
            body,
            blobs=self.play.blob_sources(self.host),
            on_event=self._event,
            on_output=self._output,
            on_ask=answers.answer,
            on_secret=self.run.keep_secret,
            from_seq=len(self.record.events),
        )

    def _around(self) -> Body:
        """What goes with every segment and is no part of its plan."""
        run, spec = self.run, self.state.spec
        out: Body = {"opsctl": __version__}
        if not run.options.check:
            out["lock"] = {
                "run": run.bus.run,
                "who": f"{_user()}@{socket.gethostname()}",
                "since": time.time(),
                "why": f"deploy {run.playbook.path}",
            }
            out["lock_wait"] = run.options.lock_wait
            out["more"] = self.play.more(self.host)
        if run.options.verbosity > 0:
            out["verbosity"] = run.options.verbosity
        if self.play.play.handlers:
            out["project"] = [os.path.basename(run.playbook.path), _label(self.play.play)]
        if self.host in run.refused:
            out["become_refused"] = True
        elif spec.become_password is not None:
            out["become_password"] = spec.become_password.reveal()
        return out

    def _same_plan(self, record: SegmentRecord) -> None:
        """Raises UsageError with the first difference if what is planned now is not what was begun."""
        if record.hash == self.segment.hash:
            return
        difference = "variables of the host or options of the run"
        for old, new in zip([*record.tasks, None], [*self.segment.tasks, None], strict=False):
            if old != new:
                one = new or old
                assert one is not None
                task = self.run.tasks.get(one[0])
                where = f" ({task.span.file}:{task.span.line})" if task is not None else ""
                what = "is new" if old is None else "is gone" if new is None else "is not what it was"
                difference = f"task `{one[1]}`{where} {what}"
                break
        raise UsageError(
            f"run {self.run.bus.run} cannot be resumed on {self.host}: the plan has changed",
            cause=f"first difference: {difference}",
            hint="deploy again: what is true already changes nothing",
        )

    def _replay(self) -> dict[str, list[Body]]:
        """The results that the new agent takes over, by task, in their order."""
        out: dict[str, list[Body]] = {}
        for body in self.past:
            if body.get("ev") == "decided" or (body.get("ev") == "finished" and body.get("outcome") != "unknown"):
                out.setdefault(body["task"], []).append(body)
        return out

    def _choose(self, died: OpsError) -> None:
        """After an agent's death: go on by itself if that is safe, else raise with the choice there is."""
        started = {body["task"] for body in self.past if body.get("ev") == "started"}
        done = {body["task"] for body in self.past if body.get("ev") == "finished"}
        for task_id in started - done:
            task = self.run.tasks.get(task_id)
            name = str(task.name) if task is not None and task.name is not None else task_id
            if task is None or not singular(task):
                continue
            if {name, task_id} & set(self.run.options.rerun):
                continue
            if {name, task_id} & set(self.run.options.skip):
                skipped: Body = {"ev": "finished", "task": task_id, "outcome": "skipped", "changed": False}
                skipped["reason"] = "interrupted before, and --skip goes on without it"
                skipped |= {"duration_s": 0.0, "result": {"changed": False, "skipped": True}}
                self.past.append(skipped)
                self._finished(skipped)
                continue
            reason = "interrupted: its agent ended, and whether it has done its work cannot be seen"
            self._finished(
                {"task": task_id, "outcome": "unknown", "changed": False, "duration_s": 0.0, "reason": reason}
            )
            raise TaskFailed(
                f"`{name}` on {self.host} was interrupted",
                cause=died.cause,
                hint=f"look at the node, then `opsctl deploy --resume {self.run.bus.run} --rerun '{name}'` runs it again, "
                f"`--skip '{name}'` goes on without it",
                span=task.span,
                host=self.host,
            )
        self.run.bus.emit(
            "warning", host=self.host, message=f"{died.what}: {died.cause}; what is left is taken up again"
        )

    def _ended(self, done: Body) -> None:
        if done.get("locked"):
            raise lock_held(self.host, done["locked"])
        if done.get("error"):
            error = done["error"]
            raise OpsError(error["what"], cause=error.get("cause"), hint=error.get("hint"), host=self.host)
        if done.get("cancelled"):
            self.state.failed = True
            if self.run.stopped is None:
                raise Interrupted(f"the run was stopped on {self.host}", cause=done["cancelled"], host=self.host)
        if not done.get("ok"):
            self.state.failed = True
        if done.get("ended") == "play":
            self.batch.ended = True
        if done.get("pending_handlers"):
            self.run.bus.emit(
                "handlers_pending", host=self.host, handlers=self._handler_names(done["pending_handlers"])
            )

    def _handler_names(self, ids: Sequence[str]) -> list[str]:
        return [str(self.run.tasks[one].name) if one in self.run.tasks else one for one in dict.fromkeys(ids)]

    # -- what the node says ---------------------------------------------------------------------------------------------

    def _event(self, body: Body) -> None:
        assert self.record is not None
        if body.get("ev") == "taint":
            self.run.keep_secret(body.get("values") or ())
            body = {"ev": "taint"}
        elif body.get("ev") == "facts":
            self.run.masker.add_environment((body.get("facts") or {}).get("ansible_env") or {})
        task = self.run.tasks.get(body.get("task", ""))
        self.run.ledger.event(self.record.id, body, hidden=task is not None and task.no_log is not False)
        self._said(body)

    def _said(self, body: Body, again: bool = False) -> None:
        """An event of the node; ``again`` when it was told to the world before (resume)."""
        kind = body.get("ev")
        task = self.run.tasks.get(body.get("task", ""))
        emit = (lambda *_, **__: None) if again else self.run.bus.emit
        if kind == "finished":
            self._finished(body, again)
        elif kind == "started":
            emit("task_started", host=self.host, task=self._task(body))
        elif kind == "facts":
            if body.get("error"):
                error = task_error(body)
                self.state.error = OpsError(error["what"], cause=error.get("cause"), host=self.host)
                emit("host_failed", host=self.host, error=self.state.error.as_dict())
            else:
                self.state.learn(kept(body["facts"]) if again else body["facts"])
                emit("host_facts", host=self.host, duration_s=body.get("duration_s", 0.0))
        elif kind == "adopted":
            self._keep(task, _as_it_was(body) if again else body, bool(body.get("unknown")))
        elif kind == "decided":
            self.batch.done(body["task"], self.host, {"value": body["value"]})
        elif kind == "password_refused":
            self.run.refused.add(self.host)
        elif kind == "owed":
            emit("handlers_pending", host=self.host, handlers=[body["name"]], since=body.get("run"))
        elif kind == "warning":
            emit("warning", host=self.host, message=body["message"])
        elif kind == "waiting":
            holder = body.get("holder") or {}
            what = f"{body['what']}, held by run {holder.get('run')} of {holder.get('who')}"
            emit("host_waiting", host=self.host, what=what, seconds=body.get("seconds", 0.0))

    def _output(self, task: str, stream: str, text: str) -> None:
        found = self.run.tasks.get(task)
        if found is not None and found.no_log is not False:
            return
        shown = self._task({"task": task})
        if stream == "progress":
            self.run.bus.emit("task_progress", host=self.host, task=shown, text=text)
        else:
            self.run.bus.emit("task_output", host=self.host, task=shown, stream=stream, text=text)

    def _task(self, body: Mapping[str, Any]) -> Body:
        task = self.run.tasks.get(body["task"])
        if task is None:
            return {"id": body["task"], "name": body.get("name") or body["task"], "path": None, "line": None}
        name = body.get("name") or self.names.get(task.id) or task.kind
        return {"id": task.id, "name": name, "kind": task.kind, "path": task.span.file, "line": task.span.line}

    def _finished(self, body: Body, again: bool = False) -> None:
        task = self.run.tasks.get(body["task"])
        outcome = body["outcome"]
        if outcome in ("failed", "rescued", "ignored"):
            findings.attach(body)
        self._remember(task, _as_it_was(body) if again else body)
        self.state.counts[outcome] += 1
        if again:
            return
        out: Body = {
            "host": self.host,
            "task": self._task(body),
            "outcome": outcome,
            "changed": body["changed"],
            "duration_s": body["duration_s"],
            "handler": bool(body.get("handler")),
        }
        out.update({key: body[key] for key in ("result", "items", "effect", "diff", "reason") if body.get(key) is not None})
        if body.get("notified"):
            out["notified"] = self._handler_names(body["notified"])
        if outcome in ("failed", "rescued", "ignored"):
            out["error"] = task_error(body)
        if task is not None and task.no_log is not False:
            censor(out)
        self.run.bus.emit("task_finished", **out)

    def _keep(self, task: Task | None, body: Mapping[str, Any], unknown: bool) -> None:
        """What a task has registered and set on this host, also if it ran on another one (`run_once`)."""
        known = self.state.set
        if task is not None and task.register:
            label = f"`{task.name}`" if task.name is not None else task.id
            known[task.register] = Unknown(label) if unknown else body.get("result")
        if task is not None and unknown and task.kind == "set_fact":
            known.update((str(name), Unknown(task.id)) for name in task.args if name != "cacheable")
        known.update(body.get("set") or {})

    def _remember(self, task: Task | None, body: Mapping[str, Any]) -> None:
        """Keep what later plays, other hosts and `run_once` need to know."""
        unknown = body["outcome"] == "unknown" or bool(body.get("pending"))
        if body.get("facts"):
            self.state.learn(body["facts"])
        self._keep(task, body, unknown)
        if task is not None and task.run_once is not False:
            answer: Body = {
                "set": body.get("set") or {},
                "failed": body["outcome"] in ("failed", "rescued"),
                "unknown": unknown,
            }
            if "result" in body:
                answer["value"] = body["result"]
            self.batch.done(task.id, self.host, answer)


def _as_it_was(body: Body) -> Body:
    """An event of the ledger with its values as the node sent them."""
    return {**body, **{key: kept(body[key]) for key in VALUES if key in body}}


def singular(task: Task) -> bool:
    """Whether nobody can see if an interrupted ``task`` has done its work, so that it must not be repeated unasked."""
    if task.kind not in SINGULAR or {"creates", "removes"} & set(task.args):
        return False
    return task.kind != "uri" or str(task.args.get("method", "GET")).upper() not in ("GET", "HEAD", "OPTIONS")


def censor(event: Body) -> None:
    """`no_log`: what happened stays, what it was about goes."""
    text = "hidden: the task has `no_log: true`"
    for key in ("items", "diff", "reason"):
        event.pop(key, None)
    if "result" in event:
        event["result"] = {"censored": text}
    if "error" in event:
        event["error"] = {"what": "the task failed", "cause": text}


def _label(play: Play) -> str:
    """What a play is called as it is written: its name, else its hosts."""
    words = play.name if play.name is not None else play.hosts
    return ", ".join(str(getattr(word, "src", word)) for word in (words if isinstance(words, (list, tuple)) else [words]))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
