"""`wait_for` and `uri` against a server on the loopback address."""

from __future__ import annotations

import base64
import http.server
import json
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.kinds import Fail
from opsctl.agent.node import Node
from opsctl.tasks.base import BadArgs
from tests.unit.agent.support import look, run, twice


class Server(http.server.ThreadingHTTPServer):
    """Does not ask for its own name, which may take seconds."""

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[0], self.server_address[1]  # type: ignore[assignment]
        self.seen: list[tuple[str, str, str]] = []


class Handler(http.server.BaseHTTPRequestHandler):
    """Says what it was asked."""

    def _answer(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size).decode()
        assert isinstance(self.server, Server)
        self.server.seen.append((self.command, self.path, body))
        if self.path.startswith("/to/"):
            self.send_response(int(self.path[4:7]))
            self.send_header("Location", self.path[7:])
            self.end_headers()
            return
        if self.path == "/busy":
            self.send_response(503)
            self.end_headers()
            self.wfile.write(b"loading the model")
            return
        told = {"method": self.command, "path": self.path, "body": body, "headers": dict(self.headers.items())}
        data = json.dumps(told).encode() if self.path != "/file" else b"content of the file"
        self.send_response(200)
        self.send_header("Content-Type", "application/json" if self.path != "/file" else "text/plain")
        self.send_header("X-Served-By", "test")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_HEAD = _answer

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    httpd = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield httpd
    httpd.shutdown()
    thread.join()
    httpd.server_close()


@pytest.fixture
def url(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


# uri


def test_a_get_gives_status_headers_and_json(url: str) -> None:
    result = run("uri", {"url": f"{url}/a?b=c"}, Node(check=True)).result
    assert result["status"] == 200 and result["json"]["path"] == "/a?b=c"
    assert result["x_served_by"] == "test" and result["content_type"] == "application/json"
    assert result["url"] == f"{url}/a?b=c" and not result["redirected"] and "content" not in result
    assert json.loads(run("uri", {"url": url, "return_content": True}).result["content"])["method"] == "GET"


@pytest.mark.parametrize(
    ("args", "body", "kind"),
    [
        ({"body": {"a": [1]}, "body_format": "json"}, '{"a": [1]}', "application/json"),
        ({"body": '{"a":1}', "body_format": "json"}, '{"a":1}', "application/json"),
        ({"body": "word", "body_format": "json"}, '"word"', "application/json"),
        ({"body": {"a": "x y", "b": ["1", "2"]}, "body_format": "form-urlencoded"}, "a=x+y&b=1&b=2", None),
        ({"body": "as it is"}, "as it is", None),
        ({"body": "x", "headers": {"content-type": "text/x"}}, "x", "text/x"),
    ],
)
def test_a_post_sends_the_body_in_its_format(url: str, args: dict[str, Any], body: str, kind: str | None) -> None:
    told = run("uri", {"url": url, "method": "post", **args}).result["json"]
    assert told["method"] == "POST" and told["body"] == body
    if kind is not None:
        headers = {name.lower(): value for name, value in told["headers"].items()}
        assert headers["content-type"] == kind


def test_looking_sends_no_post(url: str, server: Server) -> None:
    change = look("uri", {"url": url, "method": "POST"})
    assert change is not None and "would send POST" in change.msg
    assert server.seen == []


def test_another_status_fails_with_what_the_server_said(url: str) -> None:
    with pytest.raises(Fail, match="status 503, not 200") as failed:
        run("uri", {"url": f"{url}/busy"})
    assert failed.value.cause == "loading the model" and failed.value.result["status"] == 503
    assert run("uri", {"url": f"{url}/busy", "status_code": [200, 503]}).result["status"] == 503


def test_no_answer_says_why_and_gives_status_minus_one() -> None:
    with pytest.raises(Fail, match="no answer") as failed:
        run("uri", {"url": f"http://127.0.0.1:{free_port()}/"})
    assert failed.value.result["status"] == -1 and "refused" in failed.value.cause


def test_a_silent_server_is_given_up_after_the_timeout() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        with pytest.raises(Fail, match="no answer") as failed:
            run("uri", {"url": f"http://127.0.0.1:{sock.getsockname()[1]}/", "timeout": 0.3})
    assert "timed out" in failed.value.cause


def test_redirects_are_followed_as_told(url: str) -> None:
    result = run("uri", {"url": f"{url}/to/302/there"}).result
    assert result["redirected"] and result["json"]["path"] == "/there"
    untold = {"follow_redirects": "none", "status_code": 302}
    assert run("uri", {"url": f"{url}/to/302/x", **untold}).result["status"] == 302
    told = {"url": f"{url}/to/307/x", "method": "POST", "body": "b", "status_code": [200, 307]}
    assert run("uri", told).result["status"] == 307, "only reads are repeated unasked"
    assert run("uri", {**told, "follow_redirects": "all"}).result["json"]["body"] == "b"


def test_a_password_is_not_sent_on_to_another_host(url: str, server: Server) -> None:
    args = {"url_username": "u", "url_password": "p:ä"}
    headers = run("uri", {"url": url, **args}).result["json"]["headers"]
    assert headers["Authorization"] == "Basic " + base64.b64encode("u:p:ä".encode()).decode()
    other = f"http://localhost:{server.server_port}/x"
    headers = run("uri", {"url": f"{url}/to/302{other}", **args}).result["json"]["headers"]
    assert "Authorization" not in headers


def test_dest_is_written_once_and_its_drift_is_found(url: str, tmp_path: Path) -> None:
    args = {"url": f"{url}/file", "dest": f"{tmp_path}/f", "mode": "0600"}
    assert twice("uri", args).result["status"] == 200
    assert (tmp_path / "f").read_text() == "content of the file"
    (tmp_path / "f").write_text("content of the FILE")
    twice("uri", args)
    (tmp_path / "f").chmod(0o644)
    twice("uri", args)
    twice("uri", {**args, "dest": f"{tmp_path}/"})
    assert (tmp_path / "file").read_text() == "content of the file"


def test_creates_keeps_it_from_asking(tmp_path: Path) -> None:
    assert not run("uri", {"url": "http://127.0.0.1:1/", "creates": str(tmp_path)}).changed


def test_proxies_come_from_the_tasks_environment(url: str) -> None:
    away = f"http://127.0.0.1:{free_port()}/v1"
    node = Node(env={"http_proxy": url, "no_proxy": ""})
    assert run("uri", {"url": away}, node).result["json"]["path"] == away
    with pytest.raises(Fail, match="no answer"):
        run("uri", {"url": away}, Node(env={"http_proxy": url, "no_proxy": "x,127.0.0.1"}))
    with pytest.raises(Fail, match="no answer"):
        run("uri", {"url": away, "use_proxy": False}, node)


def test_an_address_that_is_none_is_refused_on_the_controller() -> None:
    with pytest.raises(BadArgs, match="begins with http"):
        look("uri", {"url": "file:///etc/passwd"})


# wait_for


def test_an_open_port_is_found_at_once(server: Server) -> None:
    result = run("wait_for", {"port": server.server_port}).result
    assert result["state"] == "started" and result["port"] == server.server_port and result["elapsed"] == 0


def test_a_port_that_opens_later_is_waited_for_and_said() -> None:
    port = free_port()
    told: list[str] = []
    sock = socket.socket()

    def serve(text: str) -> None:
        told.append(text)
        if len(told) == 1:  # only once it has said what it waits for
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", port))
            sock.listen()

    try:
        run("wait_for", {"port": port, "timeout": 60, "sleep": 0.05}, Node(progress=serve))
    finally:
        sock.close()
    assert len(told) == 1
    assert told[0].startswith(f"waiting for 127.0.0.1:{port} to be started: ") and "refused" in told[0]


def test_a_timeout_says_what_was_waited_for_and_the_last_reason() -> None:
    port = free_port()
    with pytest.raises(Fail, match=f"Timeout when waiting for 127.0.0.1:{port}") as failed:
        run("wait_for", {"port": port, "timeout": 0.3, "sleep": 0.1})
    assert "refused" in failed.value.cause
    with pytest.raises(Fail, match="not up"):
        run("wait_for", {"port": port, "timeout": 0.1, "msg": "not up"})


def test_a_closed_port_is_stopped() -> None:
    assert run("wait_for", {"port": free_port(), "state": "stopped"}).result["state"] == "stopped"


def test_what_a_port_sends_is_searched() -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()

    def serve() -> None:
        peer, _ = listener.accept()
        peer.sendall(b"SSH-2.0-Open")
        peer.sendall(b"SSH_9.2\r\n")
        peer.close()

    thread = threading.Thread(target=serve)
    thread.start()
    args = {"port": listener.getsockname()[1], "search_regex": r"OpenSSH_(?P<major>\d+)", "timeout": 30}
    result = run("wait_for", args).result
    thread.join()
    listener.close()
    assert result["match_groupdict"] == {"major": "9"} and result["match_groups"] == ["9"]


def test_a_file_and_a_text_in_it_are_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("loading\n")

    def progress(text: str) -> None:
        path.write_text("loading\nstartup complete\n")

    args = {"path": str(path), "search_regex": "^startup (complete)$", "sleep": 0.01, "timeout": 60}
    assert run("wait_for", args, Node(progress=progress)).result["match_groups"] == ["complete"]
    assert run("wait_for", {"path": f"{tmp_path}/none", "state": "absent"}).result["state"] == "absent"


def test_a_check_does_not_wait_for_what_an_earlier_task_would_make(tmp_path: Path) -> None:
    node = Node(check=True, pending=lambda pair: pair == ("path", f"{tmp_path}/x"))
    with pytest.raises(Fail) as failed:
        run("wait_for", {"path": f"{tmp_path}/x", "timeout": 3600}, node)
    assert ("path", f"{tmp_path}/x") in failed.value.needs


def test_the_tasks_timeout_ends_a_wait(tmp_path: Path) -> None:
    with pytest.raises(Fail, match="`timeout` has passed"):
        run("wait_for", {"path": f"{tmp_path}/x"}, Node(deadline=time.monotonic() + 0.2))


def test_drained_is_refused_with_what_to_write_instead() -> None:
    with pytest.raises(BadArgs) as bad:
        look("wait_for", {"port": 1, "state": "drained"})
    assert "stopped" in str(bad.value.problems[0].hint)
