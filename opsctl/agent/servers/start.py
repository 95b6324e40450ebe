"""Waiting for a server: its log is followed, phases are told, and the wait ends when it is ready, dead or stuck."""

import os
import re
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from ..engines import PhaseParser, base_url, check_ready, relevant
from ..engines.ready import NotReady, _ask, _names
from ..kinds import Fail
from . import log
from .home import Server, after, how
from .tree import Process, lives, processes

#: Seconds between two looks at log and process, and between two questions whether it is ready.
LOOK = 0.1
ASK = 1.0
#: Seconds between two looks at the server's other processes, and for which its first one may outlive a part of it.
SCAN = 0.5
DOOMED = 1.0
#: Seconds that the answer to one question may take.
ANSWER = 60.0
#: What of the log goes with a failure, in bytes: its beginning and its end.
HEAD, TAIL = 64 * 1024, 192 * 1024

_ENDS = re.compile(rb"[\r\n]+")
#: How engines call the processes without which they cannot serve, and which they never start again.
_PARTS = re.compile(r"VLLM::(?:EngineCor|Worker)|sglang::(?:schedul|detoken)")


class Ready:
    """Asks, in a thread of its own, whether a server is ready: a question may take long, and a death must not wait."""

    def __init__(self, spec: Dict[str, Any], environment: Dict[str, str]) -> None:
        self.rule = str(spec.get("ready") or "completion")
        self.url = base_url(spec)
        self.model = spec.get("served")
        self.key = environment.get("VLLM_API_KEY") or None
        self.said: Optional[str] = "not asked yet"
        self._thread: Optional[threading.Thread] = None
        self._next = 0.0

    def ask(self, timeout: float = ANSWER) -> Optional[str]:
        """None if it is ready, else why not; one question, waited for."""
        if self.rule == "none":
            return None
        if self.rule == "completion":
            return check_ready(self.url, self.model, timeout, self.key)
        if self.rule == "models":
            return listed(self.url, self.model, timeout, self.key)
        return get(self.url + (self.rule if self.rule.startswith("/") else "/health"), timeout)

    def step(self) -> bool:
        """Ask when it is time to; whether the last answer was yes."""
        if self._thread is None or not self._thread.is_alive():
            if self.said is None:
                return True
            if time.monotonic() >= self._next:
                self._next = time.monotonic() + ASK
                self._thread = threading.Thread(target=self._ask, daemon=True)
                self._thread.start()
        return self.said is None

    def _ask(self) -> None:
        self.said = self.ask()


def listed(url: str, model: Optional[str], timeout: float, key: Optional[str]) -> Optional[str]:
    """None if `/v1/models` lists ``model``, else why not."""
    status, data = _ask(url + "/v1/models", timeout, key)
    names = _names(data) if status == 200 else None
    if status == 0:
        return NotReady("port", data)
    if names is None:
        return NotReady("models", "/v1/models answers %d" % status)
    return (
        None
        if model in names or (model is None and names)
        else NotReady("models", "/v1/models lists %s, not %s" % (", ".join(names) or "nothing", model))
    )


def get(url: str, timeout: float) -> Optional[str]:
    """None if ``url`` answers 200 to 299, else why not."""
    status, data = _ask(url, timeout, None)
    if 200 <= status < 300:
        return None
    path = "/" + url.split("/", 3)[3]
    return NotReady("health", "%s answers %d" % (path, status)) if status else NotReady("port", data)


#: What argparse prints before it ends its program.
_USAGE = re.compile(r"usage: \S")
_REFUSED = re.compile(r"[\w./ -]+: error: ")


class Parts:
    """The engine's own processes beside the first one, which may notice their death late or never."""

    def __init__(self, launch: Dict[str, Any]) -> None:
        self.session = launch.get("session")
        self.gone: List[Process] = []
        self._known: Dict[int, Process] = {}
        self._next = self._since = 0.0

    def doomed(self) -> bool:
        """Whether one of them ended, and the first process has not drawn the consequence within `DOOMED` seconds."""
        now = time.monotonic()
        if self.gone:
            return now - self._since > DOOMED
        if now >= self._next:
            self._next = now + SCAN
            every = processes()
            self.gone = [one for pid, one in self._known.items() if pid not in every or every[pid].start != one.start]
            self._since = now
            mine = {pid: one for pid, one in every.items() if one.session == self.session}
            self._known = {pid: one for pid, one in mine.items() if _PARTS.match(one.comm)}
        return False


class Wait:
    """Follows one start. ``progress(text)`` hears every new state; ``check()`` may raise to end the wait."""

    def __init__(
        self,
        server: Server,
        launch: Dict[str, Any],
        progress: Callable[[str], None],
        check: Callable[[float], None] = time.sleep,
    ) -> None:
        self.server = server
        self.launch = launch
        self.spec = server.spec()
        self.progress = progress
        self.sleep = check
        self.parser = PhaseParser(str(self.spec.get("style") or self.spec.get("engine") or ""))
        self.ready = Ready(self.spec, server.environment())
        self.parts = Parts(launch)
        self._at = log.Position(int(launch.get("log") or 1), 0)
        self._rest = b""
        self._usage = self._refused = False
        self._told = ""

    def run(self) -> Dict[str, Any]:
        """Wait until it is ready; returns the result keys. Raises Fail with the lines that matter."""
        begun = float(self.launch.get("started") or time.time())
        limit = float(self.spec.get("no_progress") or 600.0)
        moved, mark = time.monotonic(), (-1, self.parser.current)
        while True:
            self.read()
            now = time.monotonic()
            state = (self.parser.moves, self.parser.current)
            if state != mark:
                moved, mark = now, state
            self._tell()
            if not lives(self.launch["pid"]):
                raise self._dead(begun)
            if self._refused and self.spec.get("engine") != "command":
                raise self._given_up(begun, "it refused its arguments")
            if self.parts.doomed():
                gone = ", ".join("%s (pid %d)" % (one.comm, one.pid) for one in self.parts.gone[:3])
                raise self._given_up(begun, "%s died" % gone)
            if self.ready.step():
                break
            if now - moved > limit:
                raise self._stuck(now - moved)
            self.sleep(LOOK)
        self.parser.ready(time.time())
        return self.result()

    def result(self) -> Dict[str, Any]:
        """What is known about a server that runs."""
        phases = {name: round(took, 1) for name, took in self.parser.seconds.items()}
        port = self.spec.get("port")
        return {
            "pid": self.launch["pid"][0], "port": port, "url": base_url(self.spec) if port else None,
            "log": os.path.join(self.server.log, "current.log"), "phases": phases, "summary": self.parser.summary(),
            "unit": self.spec.get("unit"), "ready_s": round(time.time() - float(self.launch.get("started") or 0), 1),
        }  # fmt: skip

    def read(self) -> None:
        """Take what the log has by now."""
        while True:
            data, self._at, _ = log.read(self.server.log, self._at, whole=False)
            if not data:
                return
            now = time.time()
            # A progress bar ends its states with \r, and a line only when it is full.
            *lines, self._rest = _ENDS.split(self._rest + data)
            for line in lines:
                text = line.decode("utf-8", "replace")
                self.parser.feed(text, now)
                self._usage = self._usage or bool(_USAGE.match(text))
                self._refused = self._refused or (self._usage and bool(_REFUSED.match(text)))

    def _tell(self) -> None:
        text = self.parser.current.text
        if self.parser.current.phase in ("listening", "ready") and self.ready.said not in (None, "not asked yet"):
            stage = getattr(self.ready.said, "stage", "")
            text = {"models": "waiting for the model's name", "completion": "waiting for a first completion"}.get(
                stage, text
            )
        if text != self._told:
            self._told = text
            self.progress(text)

    def _lines(self) -> List[str]:
        """The log of this start, its beginning and its end."""
        part = int(self.launch.get("log") or 1)
        end = log.tail(self.server.log, part, TAIL)
        whole = log.size(self.server.log, part)
        if whole <= TAIL:
            data = end
        else:
            data = log.head(self.server.log, part, min(HEAD, whole - TAIL)) + b"\n" + end
        return data.decode("utf-8", "replace").splitlines()

    def _fail(self, what: str, hint: str, lines: List[str], **more: Any) -> Fail:
        path = self._path()
        shown = relevant(lines)
        cause = "\n".join(shown) if shown else "its log is empty"
        result: Dict[str, Any] = {
            "log": path,
            "phase": self.parser.current.phase,
            "phases": {k: round(v, 1) for k, v in self.parser.seconds.items()},
        }
        return Fail(what, cause=cause, hint=hint, window="\n".join(lines), lines=shown, **result, **more)

    def _where(self) -> str:
        """How far it came, for a message."""
        phase, text = self.parser.current.phase, self.parser.current.text
        return "in phase %s%s" % (phase, " (%s)" % text if text not in (phase, "") else "")

    def _dead(self, begun: float) -> Fail:
        server = self.server
        end = server.ended()
        for _ in range(50):
            if end.get("nonce") == self.launch.get("nonce") or not server.kept:
                break
            time.sleep(0.05)
            end = server.ended()
        self.read()
        lines = self._lines()
        took = after(float(end.get("after") or time.time() - begun))
        stopped = server.stopped_by()
        if stopped:
            server.give_up()
            return Fail(
                "server `%s` was stopped while it was starting" % server.name,
                cause="stopped by %s" % stopped,
                interrupted_by=stopped,
            )
        server.give_up()
        hint = "the whole log: %s" % log.path(server.log, int(self.launch.get("log") or 1))
        if end.get("status") == -9:
            hint += "; nobody asked for SIGKILL: if the node ran out of memory, `dmesg` says so"
        what = "server `%s` ended before it was ready: %s after %s, %s" % (server.name, how(end), took, self._where())
        return self._fail(what, hint, lines, exit=how(end), after_s=end.get("after"))

    def _given_up(self, begun: float, why: str) -> Fail:
        """It lives still, and cannot become ready: it is ended, so that nobody waits for its own end."""
        self.server.give_up(why)
        self.read()
        name, took = self.server.name, after(time.time() - begun)
        what = "server `%s` ended before it was ready: %s after %s, %s" % (name, why, took, self._where())
        hint = "the whole log: %s; if the node ran out of memory, `dmesg` says so" % self._path()
        return self._fail(what, hint, self._lines(), exit=why)

    def _path(self) -> str:
        return log.path(self.server.log, int(self.launch.get("log") or 1))

    def _stuck(self, idle: float) -> Fail:
        name = self.server.name
        why = "; " + self.ready.said if self.parser.current.phase in ("listening", "ready") and self.ready.said else ""
        what = "server `%s` makes no progress: nothing new for %s, %s%s" % (name, after(idle), self._where(), why)
        hint = "it runs still, so that it can be looked at: `opsctl logs %s`, `opsctl server stop %s`; " % (name, name)
        hint += "`no_progress` gives it more minutes"
        return self._fail(what, hint, self._lines(), stalled=True, pid=self.launch["pid"][0])
