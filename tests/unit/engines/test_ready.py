"""The ready rule, against servers that are not ready in every way."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from opsctl.agent.engines import check_ready

Answers = dict[str, tuple[int, Any]]
GOOD: Answers = {
    "/health": (200, ""),
    "/v1/models": (200, {"data": [{"id": "tiny"}, {"id": "other"}]}),
    "/v1/completions": (200, {"choices": [{"text": "x"}]}),
}


@pytest.fixture
def serve() -> Iterator[Callable[[Answers], str]]:
    """Starts a server that gives fixed answers; its address. What it was asked is in `serve.asked`."""
    started: list[http.server.ThreadingHTTPServer] = []

    def start(answers: Answers) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else {}
                if self.headers.get("Authorization") == "Bearer wrong":
                    self.send_error(401)
                    return
                status, value = answers.get(self.path, (404, {"detail": "Not Found"}))
                if callable(value):
                    value = value(body)
                data = (value if isinstance(value, str) else json.dumps(value)).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = answer

            def log_message(self, *args: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        started.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def test_ready_is_health_the_name_and_one_token(serve: Callable[[Answers], str]) -> None:
    asked: list[Any] = []

    def complete(body: Any) -> Any:
        asked.append(body)
        return {"choices": [{"text": "x"}]}

    url = serve({**GOOD, "/v1/completions": (200, complete)})
    assert check_ready(url, "tiny") is None and check_ready(url + "/", None) is None
    assert asked[0]["model"] == "tiny" and asked[0]["max_tokens"] == 1


def test_a_proxy_of_the_environment_is_not_asked(
    serve: Callable[[Answers], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    assert check_ready(serve(GOOD), "tiny") is None


@pytest.mark.parametrize(("answers", "stage", "says"), [
    ({"/health": (503, "")}, "health", "/health answers 503"),
    ({"/v1/models": (200, {"data": []})}, "models", "lists nothing"),
    ({"/v1/models": (200, {"data": [{"id": "b"}]})}, "models", "lists b, not tiny"),
    ({"/v1/models": (200, "<html>")}, "models", "answers 200: <html>"),
    ({"/v1/models": (401, {"error": "Unauthorized"})}, "models", "refuses the API key"),
    ({"/v1/completions": (500, {"error": {"message": "EngineCore encountered an issue."}})}, "completion",
     "/v1/completions answers 500: EngineCore encountered an issue."),
    ({"/v1/completions": (200, {"error": {"message": "died", "code": 500}})}, "completion",
     "answers 200 with an error inside: died"),
    ({"/v1/completions": (200, {"object": "error", "message": "died"})}, "completion", "error inside"),
    ({"/v1/completions": (200, {"choices": []})}, "completion", "without a choice"),
    ({"/v1/completions": (200, "[1]")}, "completion", "no object"),
    ({"/v1/completions": (200, "oops")}, "completion", "no JSON: oops"),
    ({"/v1/completions": (400, {"object": "error", "message": "no completions for this model"})}, "completion",
     "answers 400: no completions for this model"),
])  # fmt: skip
def test_the_reason_says_how_far_it_came(serve: Callable[[Answers], str], answers: Answers, stage: str, says: str) -> None:
    found = check_ready(serve({**GOOD, **answers}), "tiny")
    assert found is not None and found.stage == stage and says in found


def test_a_server_without_health_or_that_only_chats_can_be_ready(serve: Callable[[Answers], str]) -> None:
    url = serve({"/v1/models": GOOD["/v1/models"], "/v1/chat/completions": (200, {"choices": [{"message": {}}]})})
    assert check_ready(url, "tiny") is None


def test_a_port_that_does_not_answer_is_told_apart(serve: Callable[[Answers], str]) -> None:
    """Refused, silent, and something that is no HTTP."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        found = check_ready(url, "tiny", timeout=5)
        assert found is not None and found.stage == "port" and "refused" in found.lower()
        silent.listen()
        found = check_ready(url, "tiny", timeout=0.3)
        assert found is not None and found.stage == "port" and "no answer within 0.3 s" in found


def test_the_key_is_sent(serve: Callable[[Answers], str]) -> None:
    found = check_ready(serve(GOOD), "tiny", api_key="wrong")
    assert found is not None
