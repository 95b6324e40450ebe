"""The session with one node: segments in, events out, across broken links.

`open` connects and sends the start command without waiting for the agent; frames follow at once. When the link
breaks, the node goes on by itself; the session comes back with growing pauses and continues at the next event.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..agent import wire
from ..errors import AuthRefused, ConnectionLost, OpsError, TaskFailed, Unreachable
from . import bootstrap
from .blobs import BlobSource, BytesBlob, FileBlob
from .dial import backoff
from .link import Link, LinkDown, OnWait, blob_error
from .transport import Transport

__all__ = ["AgentDied", "BlobSource", "BytesBlob", "FileBlob", "LinkLost", "Session"]

Body = dict[str, Any]
OnEvent = Callable[[Body], None]
OnOutput = Callable[[str, str, str], None]
OnAsk = Callable[[str, str, Any], Any]
OnSecret = Callable[[list[str]], None]
OnLink = Callable[[str | None, float], None]

#: Seconds for which a broken link is tried again unless told otherwise.
RECONNECT_FOR = 600.0
#: The longest pause between two tries, in seconds.
PAUSE_MOST = 20.0


class LinkLost(ConnectionLost):
    """The link broke and did not come back. ``segment`` goes on at ``last_seq`` + 1 (`Session.attach`)."""

    def __init__(self, what: str, *, segment: str | None, last_seq: int, **kw: str | None) -> None:
        super().__init__(what, **kw)  # type: ignore[arg-type]
        self.segment = segment
        self.last_seq = last_seq


class AgentDied(LinkLost):
    """The agent on the node ended in the middle of a segment (killed, rebooted): tasks without result are unknown."""


@dataclass
class _Following:
    """A segment that is being read, over any number of links."""

    segment: str
    body: Body | None
    blobs: Mapping[str, BlobSource]
    on_event: OnEvent
    on_output: OnOutput
    on_ask: OnAsk
    on_secret: OnSecret
    last_seq: int
    asks: dict[int, bytes | None] = field(default_factory=dict)
    accepted: bool = False
    dead: bool = False


def _nothing(*_: Any) -> None:
    return None


def _no_asks(task: str, what: str, data: Any) -> Any:
    raise OpsError(f"the agent asks for {what}, but nobody answers here")


class Session:
    """One agent on one node. Methods that wait for it are for one thread at a time; `cancel` and `close` for any."""

    def __init__(
        self,
        transport: Transport,
        *,
        host: str = "",
        interpreter: str | None = None,
        reconnect_for: float = RECONNECT_FOR,
        on_wait: OnWait = _nothing,
        on_link: OnLink = _nothing,
        nonce: str | None = None,
    ) -> None:
        """``interpreter`` is `ansible_python_interpreter`; ``on_wait`` hears what is waited for, and for how long;
        ``on_link`` that the link broke (why), and that it is there again (None), after how many seconds."""
        self._transport = transport
        self._host = host or transport.describe()
        self._candidates = bootstrap.pythons(interpreter)
        self._reconnect_for = reconnect_for
        self._on_wait = on_wait
        self._on_link = on_link
        self._nonce = nonce
        self._link: Link | None = None
        self._reading = threading.RLock()
        self._closed = threading.Event()
        self._cancelled: str | None = None
        self._following: _Following | None = None
        self._calls = 0
        #: The agent's first frame: python, uid, user, home, boot_id, machine_id, ... None before it came.
        self.ready: Body | None = None

    @property
    def transport(self) -> Transport:
        """What carries the session."""
        return self._transport

    # opening and closing

    def open(self) -> None:
        """Connect and start the agent, without waiting for it. Raises ConnectError."""
        if self._link is None:
            self._transport.connect()
            self._start()

    def _start(self) -> None:
        nonce = self._nonce or secrets.token_hex(8)
        command = bootstrap.start_command(nonce, bootstrap.agent_hash(), self._candidates)
        channel = self._transport.exec(command)
        where = self._transport.describe()
        self._link = Link(channel, nonce, host=self._host, where=where, candidates=self._candidates)

    def wait_ready(self, timeout: float = 60.0) -> Body:
        """Wait until the agent runs; its first frame. Raises ConnectError."""
        with self._reading:
            self.open()
            until = time.monotonic() + timeout
            while self.ready is None:
                try:
                    self._dispatch(*self._live().next(until))
                except LinkDown as exc:
                    raise self._lost(str(exc)) from exc
                except TimeoutError as exc:
                    raise Unreachable(f"the agent on {self._host} says nothing", host=self._host) from exc
            return self.ready

    @property
    def noise(self) -> bytes:
        """What the login printed before the agent's first word: banners, .bashrc, warnings."""
        return self._link.noise if self._link is not None else b""

    def close(self) -> None:
        """End the session. What runs on the node goes on; see `cancel`."""
        self._closed.set()
        link, self._link = self._link, None
        if link is not None:
            link.close(goodbye=True)
        self._transport.close()

    def cancel(self, why: str) -> None:
        """Stop the running segment (or the next, if none runs yet): its task, with all its processes.

        It holds for the rest of the session, also when the link is down just now.
        """
        self._cancelled = why
        link = self._link
        if link is not None:
            link.send({"t": "cancel", "why": why})

    # work

    def run_segment(
        self,
        segment: Body,
        *,
        blobs: Mapping[str, BlobSource] | None = None,
        on_event: OnEvent = _nothing,
        on_output: OnOutput = _nothing,
        on_ask: OnAsk = _no_asks,
        on_secret: OnSecret = _nothing,
        from_seq: int = 0,
    ) -> Body:
        """Run a segment and return the body of its ``segment_finished``.

        Events up to ``from_seq`` are known already. ``on_ask(task, what, data)`` runs on a thread of its own and may
        take its time; what it raises becomes the answer's error. ``on_secret`` hears of strings that nobody may see, before
        anything comes in which they may stand. Raises LinkLost, AgentDied or another ConnectError.
        """
        return self._follow(
            _Following(segment["id"], segment, blobs or {}, on_event, on_output, on_ask, on_secret, from_seq),
            attach=from_seq > 0,
        )

    def attach(
        self,
        segment_id: str,
        from_seq: int,
        *,
        blobs: Mapping[str, BlobSource] | None = None,
        on_event: OnEvent = _nothing,
        on_output: OnOutput = _nothing,
        on_ask: OnAsk = _no_asks,
        on_secret: OnSecret = _nothing,
    ) -> Body:
        """Go on reading a segment that was submitted before, at event ``from_seq`` + 1; else as `run_segment`."""
        return self._follow(
            _Following(segment_id, None, blobs or {}, on_event, on_output, on_ask, on_secret, from_seq), attach=True
        )

    def call(
        self, op: str, args: Mapping[str, Any] | None = None, *, timeout: float = 60.0, on_output: OnOutput = _nothing
    ) -> Any:
        """One request outside a segment (ping, facts, run, clean). Raises TaskFailed when the node says no.

        It is sent once: when the link breaks meanwhile, LinkLost is raised.
        """
        with self._reading:
            if self._link is None:
                self.open()
            self._calls += 1
            number = self._calls
            until = time.monotonic() + timeout
            self._live().send({"t": "call", "n": number, "op": op, "args": dict(args or {})})
            while True:
                try:
                    header, payload = self._live().next(until)
                except LinkDown as exc:
                    raise self._lost(str(exc)) from exc
                except TimeoutError as exc:
                    raise Unreachable(
                        f"{op} on {self._host} gave no answer within {timeout:g} s", host=self._host
                    ) from exc
                if header["t"] == "result" and header.get("n") == number:
                    if header.get("error"):
                        raise _error(TaskFailed, header["error"], self._host)
                    return header.get("value")
                if header["t"] == "output":
                    on_output(header.get("task", ""), header.get("stream", ""), header.get("text", ""))
                else:
                    self._dispatch(header, payload)

    def forget(self, segment_id: str) -> None:
        """Let the node drop what a dead agent left of a segment: everything of it is known here."""
        if self._link is not None:
            self._link.send({"t": "forget", "segment": segment_id})

    # following a segment

    def _follow(self, following: _Following, *, attach: bool) -> Body:
        with self._reading:
            self._following = following
            try:
                if self._link is None:
                    self.open()
                self._announce(attach)
                while True:
                    try:
                        done = self._dispatch(*self._live().next())
                    except LinkDown as exc:
                        self._reconnect(str(exc))
                        self._announce(attach=True)
                        continue
                    if done is not None:
                        return done
            finally:
                self._following = None

    def _announce(self, attach: bool) -> None:
        following, link = self._following, self._live()
        assert following is not None
        following.accepted = False
        if attach:
            link.send({"t": "attach", "segment": following.segment, "from": following.last_seq + 1})
        elif following.body is not None:
            link.send({"t": "submit"}, wire.squeeze(following.body))
        if self._cancelled is not None:
            link.send({"t": "cancel", "why": self._cancelled})

    def _live(self) -> Link:
        if self._link is None:
            raise self._lost("the session is closed")
        return self._link

    def _dispatch(self, header: Body, payload: bytes) -> Body | None:
        """Handle one frame; returns the body of ``segment_finished`` when it came."""
        kind = header["t"]
        if kind == "event":
            return self._event(header)
        if kind == "output" and self._following is not None:
            self._following.on_output(header.get("task", ""), header.get("stream", ""), header.get("text", ""))
        elif kind == "taint" and self._following is not None:
            self._following.on_secret(header.get("values") or [])
        elif kind == "ready":
            self.ready = header
        elif kind == "need-agent":
            agent_hash, bundle = bootstrap.bundle()
            self._live().send({"t": "agent", "hash": agent_hash}, bundle)
        elif kind == "need":
            self._need(header)
        elif kind == "ask":
            self._asked(header)
        elif kind == "accepted":
            self._accepted(header)
        elif kind == "gone":
            self._gone()
        elif kind == "fatal":
            raise _error(ConnectionLost if self.ready else Unreachable, header.get("error") or {}, self._host)
        return None  # beats and pongs have done their work by arriving

    def _event(self, header: Body) -> Body | None:
        following, seq, body = self._following, header["seq"], header["ev"]
        if following is None or seq <= following.last_seq:
            return None
        following.on_event(body)
        following.last_seq = seq
        if body.get("ev") != "segment_finished":
            return None
        # Everything was handed on (and is in the journal): the node may forget it.
        self._live().send({"t": "ack", "seq": seq})
        return dict(body)

    def _need(self, header: Body) -> None:
        link, following = self._live(), self._following
        if header.get("jinja"):
            digest, bundle = bootstrap.jinja_bundle()
            link.send({"t": "jinja", "hash": digest}, bundle)
        for sha in header.get("drop") or []:
            link.sender.drop(sha)
        offsets = header.get("offsets") or {}
        for sha in header.get("blobs") or []:
            source = following.blobs.get(sha) if following is not None else None
            if source is None:
                link.sender.put(blob_error(sha, "the controller does not have this content"))
            else:
                link.sender.put_blob(sha, source, int(offsets.get(sha, 0)))

    def _asked(self, header: Body) -> None:
        following, number = self._following, header["ask"]
        if following is None:
            return
        if number in following.asks:  # repeated after a reconnect
            answer = following.asks[number]
            if answer is not None:
                self._live().sender.put(answer)
            return
        following.asks[number] = None

        def work() -> None:
            reply: Body = {"t": "answer", "ask": number}
            try:
                reply["value"] = following.on_ask(header.get("task", ""), header.get("what", ""), header.get("data"))
                frame = wire.pack(reply)
            except OpsError as exc:
                frame = wire.pack({**reply, "value": None, "error": exc.as_dict()})
            except Exception as exc:  # it must be answered: the node waits
                error = {"what": "the controller could not answer", "cause": f"{type(exc).__name__}: {exc}"}
                frame = wire.pack({**reply, "value": None, "error": error})
            following.asks[number] = frame
            link = self._link
            if link is not None:
                link.sender.put(frame)

        threading.Thread(target=work, name=f"opsctl-ask-{self._host}", daemon=True).start()

    def _accepted(self, header: Body) -> None:
        following, state = self._following, header.get("state")
        if following is None or header.get("segment") != following.segment:
            return
        if state == "unknown":
            if following.body is None or following.last_seq:
                raise self._died("the node does not know this segment (any more)")
            # It never arrived, for nothing was heard of it: submitting is safe, the node takes an id only once.
            self._announce(attach=False)
            return
        following.accepted = True
        following.dead = state == "dead"

    def _gone(self) -> None:
        """The supervisor ended. Only after `accepted` this is about our segment."""
        following = self._following
        if following is None or not following.accepted:
            return
        for sha in following.blobs:
            self._live().sender.drop(sha)  # its next agent says what it wants, and from where
        if following.dead:
            raise self._died("the agent on the node ended before its work did: killed, or the node was rebooted")
        # What it still wrote down can be read: the answer is `accepted` again, the events, and `gone` if it is dead.
        self._announce(attach=True)

    # broken links

    def _lost(self, cause: str) -> LinkLost:
        following = self._following
        return LinkLost(
            f"the connection to {self._host} is lost",
            segment=following.segment if following else None,
            last_seq=following.last_seq if following else 0,
            cause=cause,
            hint="what was started goes on there; `opsctl deploy --resume` continues" if following else None,
            host=self._host,
        )

    def _died(self, cause: str) -> AgentDied:
        assert self._following is not None
        return AgentDied(
            f"the work on {self._host} was cut off",
            segment=self._following.segment,
            last_seq=self._following.last_seq,
            cause=cause,
            hint="the task that ran then may or may not have done its work; deploy again to make sure",
            host=self._host,
        )

    def _reconnect(self, reason: str) -> None:
        """Come back, with growing pauses. Raises LinkLost after ``reconnect_for`` seconds, other errors at once."""
        began = time.monotonic()
        attempt = 0
        if not self._closed.is_set():
            self._on_link(reason, 0.0)
        while True:
            link, self._link = self._link, None
            if link is not None:
                link.close()
            if self._closed.is_set():
                raise self._lost(reason)
            pause = backoff(attempt, base=0.4, most=PAUSE_MOST)
            attempt += 1
            waited = time.monotonic() - began
            if waited + pause > self._reconnect_for:
                raise self._lost(f"{reason}; tried again for {waited:.0f} s")
            self._on_wait(f"the link to {self._host} is down ({reason}); connecting again", waited)
            if self._closed.wait(pause):
                raise self._lost(reason)
            try:
                self._transport.close()
                self._transport.connect()
                self._start()
                self._on_link(None, time.monotonic() - began)
                return
            except (Unreachable, ConnectionLost, AuthRefused) as exc:
                # AuthRefused too: a node that shuts down or boots refuses logins for a while (pam_nologin).
                reason = exc.cause or exc.what


def _error(kind: type[OpsError], error: Any, host: str) -> OpsError:
    """An error as the agent sent it."""
    if not isinstance(error, dict):
        return kind(str(error), host=host)
    return kind(str(error.get("what") or "failed"), cause=error.get("cause"), hint=error.get("hint"), host=host)
