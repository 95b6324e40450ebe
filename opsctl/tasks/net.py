"""`wait_for` and `uri`: wait for a port or a file, speak HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import model_validator

from .base import Args, Kind, arg
from .files import UNSUPPORTED
from .words import Dict, Float, Int, IntList, Mode, NodePath, Raw, Str, YesNo


class WaitForArgs(Args):
    """Waits until a port or a file is as said. It changes nothing."""

    unsupported: ClassVar[Mapping[str, str]] = {
        "active_connection_states": "connections are not counted; wait for `state: stopped`",
        "exclude_hosts": "connections are not counted; wait for `state: stopped`",
    }

    host: Str = arg("Where the port is, as seen from the node.", "127.0.0.1")
    port: Int | None = arg("A TCP port.", None, ge=1, le=65535)
    path: NodePath | None = arg("A file on the node.", None)
    state: Literal["absent", "drained", "present", "started", "stopped"] = arg(
        "`started`, `present`: the port accepts connections, the file exists. `stopped`, `absent`: the opposite.",
        "started",
    )
    search_regex: Str | None = arg("What must be found in the file, or in what the port sends.", None)
    timeout: Float = arg("Seconds until it fails. Without `port` and `path`, the seconds that it sleeps.", 300)
    delay: Float = arg("Seconds before the first look.", 0)
    sleep: Float = arg("Seconds between two looks.", 1)
    connect_timeout: Float = arg("Seconds for one connection.", 5)
    msg: Str | None = arg("The message when it fails.", None)

    @model_validator(mode="after")
    def _together(self) -> WaitForArgs:
        if self.state == "drained":
            raise ValueError("does not know `state: drained`: connections are not counted\nuse `state: stopped`")
        if self.port is not None and self.path is not None:
            raise ValueError("takes either `port` or `path`")
        if self.search_regex is not None and self.port is None and self.path is None:
            raise ValueError("needs `port` or `path` for `search_regex`")
        return self


_TLS = "not supported; `command: curl ...` can do it"


class UriArgs(Args):
    """An HTTP request from the node. GET, HEAD and OPTIONS without `dest` change nothing and run in check mode too."""

    unsupported: ClassVar[Mapping[str, str]] = {
        **UNSUPPORTED,
        "ciphers": _TLS,
        "decompress": _TLS,
        "remote_src": "give the `body` itself",
        "src": "give the `body` itself",
        "unix_socket": _TLS,
        "unredirected_headers": _TLS,
        "use_gssapi": _TLS,
        "use_netrc": "netrc is never read; give `url_username` and `url_password`",
    }

    url: Str = arg("The address, http or https.")
    method: Str = arg("The method.", "GET")
    body: Raw | None = arg("What is sent: text, or a value for `body_format`.", None)
    body_format: Literal["form-urlencoded", "json", "raw"] = arg("How `body` is written.", "raw")
    headers: Dict | None = arg("Headers of the request.", None)
    status_code: IntList = arg("The status that means success, or several.", [200])
    return_content: YesNo = arg("Whether the result holds the text as `content` (JSON is always in `json`).", False)
    timeout: Float = arg("Seconds of silence until it fails.", 30)
    validate_certs: YesNo = arg("Whether the server's certificate is checked.", True)
    ca_path: NodePath | None = arg("Certificates to trust instead of the system's.", None)
    client_cert: NodePath | None = arg("A certificate (PEM) to show, with its key or beside `client_key`.", None)
    client_key: NodePath | None = arg("The key of `client_cert`.", None)
    follow_redirects: Literal["all", "no", "none", "safe", "urllib2", "yes"] = arg(
        "`all`, `none`, or `safe` (GET and HEAD only).", "safe"
    )
    url_username: Str | None = arg("User for basic authentication, sent with the first request.", None, ("user",))
    url_password: Str | None = arg("Password for basic authentication.", None, ("password",))
    force_basic_auth: YesNo = arg("Accepted; it always is so.", False)
    use_proxy: YesNo = arg("Whether `http_proxy`, `https_proxy`, `no_proxy` of the environment count.", True)
    http_agent: Str = arg("The `User-Agent` header.", "opsctl")
    force: YesNo = arg("Whether caches on the way are told to ask anew.", False)
    dest: NodePath | None = arg("Where the content is written (up to 64 MiB).", None)
    mode: Mode | None = arg("Permissions of `dest`.", None)
    owner: Str | None = arg("Owner of `dest`.", None)
    group: Str | None = arg("Group of `dest`.", None)
    creates: NodePath | None = arg("A path or glob pattern; when something matches, nothing is sent.", None)
    removes: NodePath | None = arg("A path or glob pattern; when nothing matches, nothing is sent.", None)

    @model_validator(mode="after")
    def _together(self) -> UriArgs:
        if not self.url.lower().startswith(("http://", "https://")):
            raise ValueError(f"needs an `url` that begins with http:// or https://, not {self.url!r}")
        return self


KINDS: dict[str, Kind] = {
    "wait_for": Kind(
        name="wait_for",
        model=WaitForArgs,
        doc="Wait for a port or a file.",
        examples="""\
- wait_for:
    port: 8000
    timeout: 600
- wait_for:
    path: /var/log/vllm.log
    search_regex: 'Application startup complete'
""",
    ),
    "uri": Kind(
        name="uri",
        model=UriArgs,
        doc="Make an HTTP request from the node.",
        examples="""\
- uri:
    url: http://127.0.0.1:8000/v1/models
  register: models
  until: models.status == 200
  retries: 60
- uri:
    url: http://127.0.0.1:8000/v1/load_lora_adapter
    method: POST
    body_format: json
    body: {lora_name: sql, lora_path: /srv/loras/sql}
""",
    ),
}
