"""Inference engines, as far as a server task has to know them: how to start one, what its log says, when it is ready.

Pure but for `check_ready`; runs on the node and on the controller. A launch spec is a plain mapping:

| key | meaning |
|---|---|
| `engine` | `vllm`, `sglang`, `rehearsal` or `command` |
| `venv`, `python` | the environment's directory, or an interpreter; `venv` wins |
| `model`, `name` | the model's path or id, and the name under which it is served |
| `host`, `port` | where the API listens |
| `args` | the engine's own arguments: a mapping, a list of words, or a command line |
| `env` | environment variables |
| `gpus` | list of indices or UUIDs for CUDA_VISIBLE_DEVICES; empty: none; absent: all |
| `command` | `command` only: the program and its words |
| `program`, `style`, `rehearsal` | `rehearsal` only: the server's file, whose start it rehearses, what goes wrong |
"""

from .failure import relevant
from .flags import check_flags, help_argv, known_flags, refuse_unknown
from .launch import ENGINES, Launch, argv, base_url, environment, launch, rehearse
from .phases import PHASES, Phase, PhaseParser
from .ready import NotReady, check_ready

__all__ = [
    "ENGINES", "PHASES", "Launch", "NotReady", "Phase", "PhaseParser", "argv", "base_url", "check_flags",
    "check_ready", "environment", "help_argv", "known_flags", "launch", "refuse_unknown",
    "rehearse", "relevant",
]  # fmt: skip
