"""`server`: inference servers, and other programs that are to run and answer."""

from __future__ import annotations

import re
from importlib.resources import files as package_files
from typing import Any, Literal

from pydantic import model_validator

from .base import Args, Files, Kind, arg
from .words import Dict, Float, Int, NodePath, Raw, Str, YesNo

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,49}")


class ServerArgs(Args):
    """A server runs and is ready, or is stopped, or is not there at all.

    An unchanged launch spec leaves a running server alone; a changed one restarts it. The task waits until the server
    is ready, follows its log meanwhile, and fails at once, with the lines that matter, when it dies. There is no limit
    on the whole time: only `no_progress`.
    """

    name: Str = arg("The server's name on the node: of its unit, its directory, its log.")
    state: Literal["started", "stopped", "absent", "restarted"] = arg(
        "`started`: runs with this spec and is ready. `stopped`: its whole process tree is gone. `absent`: also its "
        "unit, spec and log. `restarted`: always started anew; in a handler, unless this run has started it after "
        "the handler was notified.",
        "started",
    )
    engine: Literal["vllm", "sglang", "rehearsal", "command"] = arg(
        "What is launched. `rehearsal` is a small server of opsctl's own that starts like vLLM or SGLang, without "
        "GPU and model. `command` is any program.",
        "vllm",
    )
    venv: NodePath | None = arg("The Python environment in which the engine is installed.", None)
    python: NodePath | None = arg("The interpreter that has the engine, instead of `venv`.", None)
    model: Str | None = arg("Path or id of the model.", None)
    served_name: Str | None = arg("The name that clients use (default: `name`).", None, ("served_model_name",))
    args: Raw | None = arg(
        "The engine's own arguments: a mapping (`max_model_len: 8192`), a list of words, or a command line. Names "
        "that the engine's `--help` does not list are refused.",
        None,
    )
    env: Dict | None = arg(
        "Environment variables. Those whose names end in TOKEN, PASSWORD, SECRET, API_KEY are never shown.", None
    )
    gpus: Raw | None = arg("Indices or UUIDs of the GPUs (CUDA_VISIBLE_DEVICES); `[]` none; left out: all.", None)
    host: Str = arg(
        "The address on which it listens. The default is reached from the node only, or by an SSH tunnel.", "127.0.0.1"
    )
    port: Int = arg("The port on which it listens.", 8000, ge=1, le=65535)
    command: Raw | None = arg("`engine: command`: the program and its words.", None)
    chdir: NodePath | None = arg("The directory in which it runs.", None)
    ready: Str = arg(
        "When it counts as ready: `completion` (`/v1/models` lists the name and one completion succeeds), `models`, "
        "`health` (`/health` answers), a path of your own (`/ping`), or `none` (it runs).",
        "completion",
    )
    no_progress: Float = arg("Minutes without a new line or phase after which the start counts as stuck.", 10, gt=0)
    enabled: YesNo = arg("Whether it starts with the machine (where systemd runs it).", False)
    restart: Literal["no", "on-failure"] = arg("Whether it is started again when it ends without being asked to.", "no")
    grace: Float = arg("Seconds between SIGTERM and SIGKILL when it is stopped.", 30, ("stop_timeout",), ge=0)
    rehearsal: Dict | None = arg(
        "What the rehearsal engine does: `fail: weights`, `hang: graphs`, `slow: 3`, ...", None
    )
    style: Literal["vllm", "sglang"] | None = arg("Whose start the rehearsal engine imitates.", None)
    rehearse: YesNo = arg(
        "Launch the rehearsal engine in the place of `engine`; set by `opsctl deploy --rehearse`.", False
    )

    @model_validator(mode="after")
    def _together(self) -> ServerArgs:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"cannot have the name `{self.name}`\nletters, digits, `_`, `.` and `-`, at most 50")
        if self.state in ("stopped", "absent"):
            return self
        if self.ready not in ("completion", "models", "health", "none") and not self.ready.startswith("/"):
            raise ValueError(
                f"does not know `ready: {self.ready}`\nuse completion, models, health, none, or a path such as /ping"
            )
        if self.engine == "command" and not self.command:
            raise ValueError("needs `command` for `engine: command`")
        if self.engine != "command" and self.command:
            raise ValueError(f"takes `command` only with `engine: command`, not with `engine: {self.engine}`")
        if self.engine in ("vllm", "sglang") and not self.model:
            raise ValueError(f"needs `model` for `engine: {self.engine}`")
        if self.venv and self.python:
            raise ValueError("takes either `venv` or `python`")
        return self


def prepare(args: dict[str, Any], files: Files) -> dict[str, Any]:
    """The rehearsal engine travels with the task that launches it."""
    engine = args.get("engine")
    # Where only the node will know the engine, it may be this one.
    if engine == "rehearsal" or not isinstance(engine, str) or args.get("rehearse"):
        args["blob"] = files.blob(str(package_files("opsctl") / "data" / "rehearsal" / "server.py"))
    return args


KINDS: dict[str, Kind] = {
    "server": Kind(
        name="server",
        model=ServerArgs,
        doc="Inference servers (vLLM, SGLang) and other programs that are to run and answer.",
        prepare=prepare,
        examples="""\
- server:
    name: qwen
    engine: vllm
    venv: /opt/vllm
    model: Qwen/Qwen3-8B
    gpus: [0, 1]
    args:
      tensor_parallel_size: 2
      max_model_len: 32768
    env:
      HF_TOKEN: !secret env:HF_TOKEN
    port: 8000
    enabled: true

- server:
    name: qwen
    state: absent
""",
    ),
}
