"""`opsctl demo`: everything once, on a throw-away node of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import UsageError

if TYPE_CHECKING:
    from ..demo import DemoNode

DOWNLOADS = """\
It installs real vLLM for CPU into an environment of its own: about 1 GB to download, 3 GB on the disk, and 3 to 10
minutes the first time, most of it downloading. A second demo reuses it and takes a minute or two."""


@click.command("demo", short_help="Show opsctl at work on a throw-away node of this machine")
@click.option("--engine", type=click.Choice(["vllm", "rehearsal"]), default="vllm", show_default=True,
              help="Real vLLM for CPU, or the rehearsal engine (nothing to download, under a minute).")  # fmt: skip
@click.option("--keep", is_flag=True, help="Leave node and server running.")
@click.option(
    "--directory",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Where the node lives (default: below ~/.cache).",
)
def command(engine: str, keep: bool, directory: str | None) -> int:
    """Start a node of its own (an SSH server on loopback), deploy a model server on it, twice, and look at it.

    The machine's SSH set-up is neither read nor changed. At the end everything it started is stopped.
    """
    from .. import demo

    folder = Path(directory).resolve() if directory else demo.cache_folder()
    if engine == "vllm":
        problems = demo.lacking(folder)
        if problems:
            raise UsageError(
                "this machine is too small for real vLLM", cause="; ".join(problems),
                hint="`opsctl demo --engine rehearsal` shows the same with an engine that needs nothing",
            )  # fmt: skip
    say(f"The demo's node lives in {folder}, on an SSH server of its own on loopback.")
    if engine == "vllm":
        say("Reusing what an earlier demo installed." if (folder / "vllm").exists() else DOWNLOADS)
    else:
        say("The rehearsal engine starts like vLLM, without model and GPU: nothing is downloaded.")
    installed = demo.ensure_packages(engine)
    if installed:
        say(f"Installed {' and '.join(installed)}.")
    node = demo.DemoNode(folder)
    node.start()
    show = Show(node, engine)
    try:
        code = show.run()
    finally:
        if keep and sys.exc_info()[0] is None:
            node.leave()
            show.next_steps()
        else:
            show.stop()
            node.stop()
    return code


def say(text: str) -> None:
    """A sentence for the person who looks."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


class Show:
    """The commands of the demo, each shown before it is run."""

    def __init__(self, node: DemoNode, engine: str) -> None:
        from .. import shipped
        from ..demo import free_port

        self.node = node
        self.engine = engine
        self.port = free_port()
        self.playbook = shipped.playbook("demo.yml")

    @property
    def inventory(self) -> list[str]:
        return ["-i", str(self.node.inventory)]

    def run(self) -> int:
        """All of it; the exit status."""
        settings = ["-e", f"engine={self.engine}", "-e", f"port={self.port}"]
        deploy = ["deploy", str(self.playbook), *self.inventory, *settings]
        code = self._opsctl(*deploy)
        if code:
            return code
        began = time.monotonic()
        code = self._opsctl(*deploy, note="the same again: everything is so already")
        say(f"That took {time.monotonic() - began:.1f} s.")
        if code:
            return code
        self._question()
        return self._opsctl("server", "status", *self.inventory) or self._opsctl(
            "logs", "demo", "-n", "5", *self.inventory
        )

    def stop(self) -> None:
        """End the server and everything of it."""
        self._opsctl("server", "stop", "demo", "--yes", *self.inventory)

    def next_steps(self) -> None:
        """What to try while it runs."""
        where = " ".join(self.inventory)
        say("\nNode and server run on. Try:")
        for line in (
            f"opsctl server list {where}",
            f"opsctl logs demo -f {where}",
            f"curl http://127.0.0.1:{self.port}/v1/models",
            f"opsctl server stop demo {where}",
        ):
            say(f"  {line}")
        say(f"`kill $(cat {self.node.directory / 'sshd.pid'})` ends the node; the next demo does it too.")

    def _opsctl(self, *words: str, note: str = "") -> int:
        shown = [word.replace(str(Path.cwd()) + os.sep, "") for word in words]
        say(f"\n$ opsctl {' '.join(shown)}" + (f"    # {note}" if note else ""))
        sys.stdout.flush()
        env = {**os.environ, "PYTHONPATH": _import_path()}
        return subprocess.run([sys.executable, "-m", "opsctl", *words], env=env).returncode

    def _question(self) -> None:
        body = {"model": "demo", "prompt": "Hello", "max_tokens": 8, "temperature": 0}
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        say(f"\n$ curl {url} -H 'Content-Type: application/json' -d '{json.dumps(body)}'")
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as answer:
            data: dict[str, Any] = json.load(answer)
        sys.stdout.write(
            json.dumps({key: data[key] for key in ("object", "model", "choices", "usage") if key in data}) + "\n"
        )
        sys.stdout.flush()


def _import_path() -> str:
    """Where this opsctl is imported from, for the commands that are run."""
    here = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
