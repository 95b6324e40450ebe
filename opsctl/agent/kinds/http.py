"""`uri`: an HTTP request from the node."""

import json
import os
import time
from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence

from .. import files
from . import Change, Fail, Kind, Pair
from .commands import matches

if TYPE_CHECKING:
    from ..node import Node

Args = Dict[str, Any]

#: Content that a result holds, in bytes.
KEEP = 16 * 1024 * 1024
#: Content that `dest` takes, in bytes.
SAVE = 64 * 1024 * 1024


class Uri(Kind):
    """Requests that only read are made while probing; others are the change."""

    def watches(self, args: Args) -> Sequence[Pair]:
        return [("path", files.expand(args[name])) for name in ("dest", "creates", "removes") if args.get(name)]

    def probe(self, args: Args, node: "Node") -> Dict[str, Any]:
        skip = ""
        for name, present in (("creates", True), ("removes", False)):
            if args.get(name) and matches(args[name], None) == present:
                skip = "skipped, since %s %s" % (args[name], "exists" if present else "does not exist")
        reads = args.get("method", "GET").upper() in ("GET", "HEAD", "OPTIONS")
        seen: Dict[str, Any] = {"skip": skip, "reads": reads, "result": {}}
        if skip or not reads:
            return seen
        result, data = request(args, node)
        seen["result"] = result
        if args.get("dest"):
            seen.update(self._file(args, result, data))
        return seen

    @staticmethod
    def _file(args: Args, result: Dict[str, Any], data: bytes) -> Dict[str, Any]:
        path = files.expand(args["dest"])
        if os.path.isdir(path):
            from urllib.parse import urlsplit

            path = os.path.join(path, os.path.basename(urlsplit(result["url"]).path) or "index.html")
        info = files.look(path)
        if info is not None and info["type"] != "file":
            raise Fail("%s is a %s, not a file" % (path, info["type"]), path=path)
        same = info is not None and info["size"] == len(data) and files.read(path) == data
        return {
            "path": path, "info": info, "same": same, "data": data, "want": files.wanted(args),
            "needs": files.parent_needs(path),
        }  # fmt: skip

    def decide(self, args: Args, seen: Dict[str, Any]) -> Optional[Change]:
        if seen["skip"]:
            return None
        if not seen["reads"]:
            return Change(writes=[("any", "")], msg="would send %s %s" % (args["method"].upper(), args["url"]))
        if "path" not in seen:
            return None
        drift = files.drift(seen["want"], seen["info"]) if seen["info"] is not None else {}
        if seen["same"] and not drift:
            return None
        needs = ([] if seen["info"] is not None else seen["needs"]) + seen["want"]["needs"]
        before = {"state": "absent" if seen["info"] is None else "file"}
        return Change(
            before, {"state": "file"}, writes=[("path", seen["path"])], needs=needs, unmet=files.unmet(needs), drift=drift
        )

    def apply(self, args: Args, seen: Dict[str, Any], change: Change, node: "Node") -> Dict[str, Any]:
        if not seen["reads"]:
            result, data = request(args, node)
            if args.get("dest"):
                seen = {**seen, **self._file(args, result, data)}
                if not seen["same"]:
                    files.replace(seen["path"], iter((data,)), seen["want"], seen["info"])
                result["path"] = seen["path"]
            return dict(result)
        if change.needs:
            raise Fail("cannot write %s: %s" % (seen["path"], change.unmet), needs=change.needs)
        if seen["same"]:
            files.set_attributes(seen["path"], seen["want"], change.plan["drift"])
        else:
            files.replace(seen["path"], iter((seen["data"],)), seen["want"], seen["info"])
        return self.report(args, seen)

    def report(self, args: Args, seen: Dict[str, Any]) -> Dict[str, Any]:
        if seen["skip"]:
            return {"msg": seen["skip"]}
        if "path" in seen:
            return {**seen["result"], **files.report(seen["path"], files.look(seen["path"]))}
        return dict(seen["result"])


def request(args: Args, node: "Node") -> Any:
    """Send it; (result keys, content). Raises `Fail` when there is no answer, or not the wanted status."""
    import urllib.error
    import urllib.request

    method, url = args.get("method", "GET").upper(), args["url"]
    call = urllib.request.Request(url, _body(args), _headers(args), method=method)
    limit = SAVE if args.get("dest") else KEEP
    timeout = args.get("timeout", 30)
    if node.deadline is not None:
        timeout = max(0.1, min(timeout, node.deadline - time.monotonic()))
    start = time.monotonic()
    needs = [("unit", ""), ("any", "")]
    try:
        try:
            answer = _opener(args, node).open(call, timeout=timeout)
        except urllib.error.HTTPError as exc:
            answer = exc
        with answer:
            data = answer.read(limit + 1)
            status, final, headers = answer.getcode(), answer.geturl(), answer.headers
    except Exception as exc:  # urllib lets errors of sockets, TLS and HTTP through
        reason = getattr(exc, "reason", exc)
        number = getattr(reason, "errno", None)
        cause = os.strerror(number) if number and type(reason).__module__ == "builtins" else str(reason)
        hint = "`validate_certs: false` skips the check" if "CERTIFICATE" in cause.upper() else ""
        raise Fail(
            "%s %s: no answer" % (method, url), needs=needs, cause=cause or type(exc).__name__, hint=hint,
            status=-1, url=url, elapsed=int(time.monotonic() - start),
        ) from None  # fmt: skip
    truncated = len(data) > limit
    if truncated and args.get("dest"):
        raise Fail("%s %s: more than %d MiB, too much for `uri`" % (method, url, limit >> 20), status=status, url=url)
    result = _result(args, status, final, headers, data[:limit])
    result["elapsed"] = int(time.monotonic() - start)
    if truncated:
        result["truncated"] = True
    wanted = args.get("status_code", [200])
    if status not in wanted:
        told = str(result.get("content") or data[:2000].decode("utf-8", "replace")).strip()[:500]
        expected = " or ".join(str(code) for code in wanted)
        result.pop("msg")
        raise Fail("%s %s: status %d, not %s" % (method, url, status, expected), needs=needs, cause=told, **result)
    return result, data


def _result(args: Args, status: int, final: str, headers: Any, data: bytes) -> Dict[str, Any]:
    out: Dict[str, Any] = {name.lower().replace("-", "_"): value for name, value in headers.items()}
    out.update(status=status, url=final, redirected=final != args["url"], msg="OK (%d bytes)" % len(data))
    kind = headers.get_content_type()
    text = data.decode(headers.get_content_charset() or "utf-8", "replace")
    if kind == "application/json" or kind.endswith("+json"):
        try:
            out["json"] = json.loads(text)
        except ValueError:
            pass
    if args.get("return_content"):
        out["content"] = text
    return out


def _body(args: Args) -> Optional[bytes]:
    body = args.get("body")
    if body is None:
        return None
    form = args.get("body_format", "raw")
    if form == "json":
        return (body if isinstance(body, str) and _is_json(body) else json.dumps(body)).encode()
    if form == "form-urlencoded" and not isinstance(body, str):
        from urllib.parse import urlencode

        return urlencode(body, doseq=True).encode()
    return (body if isinstance(body, str) else json.dumps(body)).encode()


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _headers(args: Args) -> Dict[str, str]:
    out = {"User-Agent": args.get("http_agent", "opsctl")}
    if args.get("body") is not None:
        kinds = {"json": "application/json", "form-urlencoded": "application/x-www-form-urlencoded"}
        out["Content-Type"] = kinds.get(args.get("body_format", "raw"), "text/plain; charset=utf-8")
    if args.get("force"):
        out["Cache-Control"] = "no-cache"
    if args.get("url_username") is not None:
        import base64

        pair = "%s:%s" % (args["url_username"], args.get("url_password") or "")
        out["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    given = {str(name): str(value) for name, value in (args.get("headers") or {}).items()}
    lowered = {name.lower() for name in given}
    return {**{name: value for name, value in out.items() if name.lower() not in lowered}, **given}


def _opener(args: Args, node: "Node") -> Any:
    import ssl
    import urllib.request

    class Redirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
            how = args.get("follow_redirects", "safe")
            method = req.get_method()
            if how in ("no", "none") or (how in ("safe", "urllib2") and method not in ("GET", "HEAD")):
                return None
            if code in (307, 308) and how in ("all", "yes"):
                kept = {name: value for name, value in req.header_items() if name.lower() != "host"}
                new: Any = urllib.request.Request(newurl, req.data, kept, method=method)
            else:
                new = super().redirect_request(req, fp, code, msg, headers, newurl)
            if new is not None and new.host != req.host:
                new.remove_header("Authorization")  # a password is for the host that it was given for
            return new

    if args.get("validate_certs", True):
        context = ssl.create_default_context(cafile=files.expand(args["ca_path"]) if args.get("ca_path") else None)
    else:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if args.get("client_cert"):
        key = files.expand(args["client_key"]) if args.get("client_key") else None
        context.load_cert_chain(files.expand(args["client_cert"]), key)
    proxies = _proxies(args, {**os.environ, **node.env})
    return urllib.request.build_opener(
        urllib.request.ProxyHandler(proxies), urllib.request.HTTPSHandler(context=context), Redirects()
    )


def _proxies(args: Args, env: Dict[str, str]) -> Dict[str, str]:
    """The proxies that the task's environment names for this address."""
    if not args.get("use_proxy", True):
        return {}
    from urllib.parse import urlsplit

    def value(name: str) -> str:
        return str(env.get(name) or env.get(name.upper()) or "")

    host = (urlsplit(args["url"]).hostname or "").lower()
    for one in value("no_proxy").split(","):
        suffix = one.strip().lower().lstrip(".")
        if suffix and (suffix == "*" or host == suffix or host.endswith("." + suffix)):
            return {}
    return {scheme: value(scheme + "_proxy") for scheme in ("http", "https") if value(scheme + "_proxy")}
