"""The ready rule: the port answers, `/v1/models` lists the name, and one completion succeeds."""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any, Dict, Optional, Tuple

#: At most this much of an answer is read, in bytes.
LIMIT = 1 << 20


class NotReady(str):
    """Why a server is not ready. ``stage`` is `port`, `health`, `models` or `completion`: how far it came."""

    __slots__ = ("stage",)

    stage: str

    def __new__(cls, stage: str, text: str) -> "NotReady":
        self = super().__new__(cls, text)
        self.stage = stage
        return self


def check_ready(
    base_url: str, name: Optional[str] = None, timeout: float = 30.0, api_key: Optional[str] = None
) -> Optional[NotReady]:
    """None if the server at ``base_url`` is ready, else why not.

    ``name`` is the model name that must be listed (None: any); ``timeout`` is for each of the three requests, in
    seconds. An answer of HTTP 200 that carries an error object counts as a failure.
    """
    base = base_url.rstrip("/")
    status, data = _ask(base + "/health", timeout, api_key)
    if status == 0:
        return NotReady("port", data)
    if status not in (200, 404, 405):
        return NotReady("health", "/health answers %d%s" % (status, _tail(data)))
    status, data = _ask(base + "/v1/models", timeout, api_key)
    listed = _names(data)
    if status != 200 or listed is None:
        return NotReady("models", "/v1/models %s" % _said(status, data))
    if name is not None and name not in listed:
        return NotReady("models", "/v1/models lists %s, not %s" % (", ".join(listed) or "nothing", name))
    if not listed:
        return NotReady("models", "/v1/models lists nothing")
    model = name or listed[0]
    body: Dict[str, Any] = {"model": model, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
    path = "/v1/completions"
    status, data = _ask(base + path, timeout, api_key, body)
    if status in (404, 405):  # a server that only chats
        path = "/v1/chat/completions"
        del body["prompt"]
        body["messages"] = [{"role": "user", "content": "Hello"}]
        status, data = _ask(base + path, timeout, api_key, body)
    problem = error_in(status, data)
    return NotReady("completion", "%s %s" % (path, problem)) if problem else None


def error_in(status: int, data: str) -> Optional[str]:
    """What is wrong with the answer to a completion; None if it is one."""
    if status != 200:
        return _said(status, data)
    try:
        answer = json.loads(data)
    except ValueError:
        return "answers something that is no JSON%s" % _tail(data)
    if not isinstance(answer, dict):
        return "answers no object%s" % _tail(data)
    error = answer.get("error") or (answer if answer.get("object") == "error" else None)
    if error:
        text = error.get("message", "") if isinstance(error, dict) else error
        return "answers 200 with an error inside: %s" % (str(text) or _tail(data).strip(": "))
    if not answer.get("choices"):
        return "answers without a choice%s" % _tail(data)
    return None


def _said(status: int, data: str) -> str:
    if status == 0:
        return "does not answer: %s" % data
    if status in (401, 403):
        return "refuses the API key (%d)" % status
    return "answers %d%s" % (status, _tail(data))


def _names(data: str) -> Optional[list]:  # type: ignore[type-arg]
    try:
        return [str(model["id"]) for model in json.loads(data)["data"]]
    except (ValueError, KeyError, TypeError):
        return None


def _tail(data: str) -> str:
    """The answer's own words, short: the message of an error object, or the text."""
    text = data.strip()
    try:
        answer = json.loads(text)
        error = answer.get("error", answer)
        text = str(error.get("message") or error.get("detail") or text) if isinstance(error, dict) else str(error)
    except (ValueError, AttributeError):
        pass
    text = " ".join(text.split())
    return ": " + (text if len(text) <= 300 else text[:297] + "...") if text else ""


def _ask(url: str, timeout: float, api_key: Optional[str], body: Optional[Dict[str, Any]] = None) -> Tuple[int, str]:
    """(status, text) of a request; status 0 and the reason if there is no answer. Proxies are not used."""
    headers = {"Accept": "application/json", "Connection": "close"}
    if api_key:
        headers["Authorization"] = "Bearer " + api_key
    data = None
    if body is not None:
        headers["Content-Type"] = "application/json"
        data = json.dumps(body).encode()
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(urllib.request.Request(url, data, headers), timeout=timeout) as answer:
            return int(answer.status), answer.read(LIMIT).decode("utf-8", "replace")
    except urllib.error.HTTPError as exc:
        try:
            return int(exc.code), exc.read(LIMIT).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException):
            return int(exc.code), ""
    except urllib.error.URLError as exc:
        reason = exc.reason
        text = getattr(reason, "strerror", None) or str(reason)
        return 0, "no answer within %g s" % timeout if "timed out" in text else text
    except (OSError, http.client.HTTPException, ValueError) as exc:
        text = getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
        return 0, "no answer within %g s" % timeout if "timed out" in text else text
