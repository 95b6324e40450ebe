"""Runs inside the controller's namespace (see `run`): the shared harness with opsctl's own rows added.

Its clock, control groups, hosts and comparison of trees are used as they are; what is added is the state that opsctl
keeps on a node (private for every host, emptied for first contact) and a second workload.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HOME = Path("/tmp/opsctl-bench")
STATE = Path("/var/lib/opsctl")  # where the agent of root keeps its cache
RESULTS = HOME / "results" / "opsctl.jsonl"


def harness() -> dict[str, Any]:
    """The names of the shared bench.py, without its command line."""
    names: dict[str, Any] = {"__name__": "harness"}
    exec((HOME / "bench.py").read_text().split("\nap = argparse")[0], names)
    return names


def private_state(hosts: list[int]) -> None:
    """Every host gets a state directory of its own, as it would have on a machine of its own."""
    STATE.mkdir(mode=0o700, exist_ok=True)
    pids = (HOME / "run" / "sshd.pids").read_text().split()
    for k in hosts:
        own = state_of(k)
        own.mkdir(mode=0o700, exist_ok=True)
        mounts = Path(f"/proc/{pids[k]}/mounts").read_text()
        if f" {STATE} " not in mounts:
            command = ["nsenter", "-t", pids[k], "-m", "mount", "--bind", f"/root/{own.name}", str(STATE)]
            subprocess.run(command, check=True)


def state_of(k: int) -> Path:
    return HOME / "hosts" / str(k) / "root" / ".opsctl-state"  # the host's own /root is there


def forget(hosts: list[int]) -> None:
    """The nodes have never seen opsctl, and it has never seen them."""
    for k in hosts:
        for path in state_of(k).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.rmtree("/root/.cache/opsctl", ignore_errors=True)


class Rounds:
    """One scenario: hosts, rows, and what each result tree has to equal."""

    def __init__(self, scenario: str, only: list[str]) -> None:
        self.h = harness()
        self.scenario = scenario
        self.hosts: list[int] = self.h["SCEN"][scenario]
        self.env: dict[str, str] = self.h["prepare"](self.hosts)
        self.base = len(self.h["procs"]("h3hosts"))
        self.expected: dict[str, Any] = {}
        rows = self.h["C"]
        inventory = str(HOME / "run" / "inv.ini")
        second = str(HOME / "workload2.yml")
        argv, env, parse = rows["opsctl"]
        rows["opsctl-first"] = (argv, env, parse)
        deploy = [os.environ["OPSCTL"], "deploy", second, "-i", inventory, "--json"]
        rows["opsctl-results"] = (lambda s: deploy, {}, parse)
        rows["ansible-results"] = self.h["ans"]("ansible", second, self.h["W"] + "/ansible/tuned.cfg")
        unknown = [name for name in only if name not in rows]
        if unknown:
            sys.exit(f"no such row: {', '.join(unknown)}; there are: {', '.join(rows)}")
        self.rows = only
        self.commit = Path(os.environ["OPSCTL"]).parents[1].joinpath("commit").read_text()

    def once(self, name: str, phase: str, number: int) -> None:
        """Run a row once, write its line, and compare the trees."""
        if name == "opsctl-first":
            forget(self.hosts)
        result = self.h["one"](name, self.hosts, self.env, self.base)
        result.update(round=number, phase=phase, scenario=self.scenario, t=time.time(), load=os.getloadavg()[0])
        result["commit"] = self.commit
        if self.h["C"][name][2] is not None:
            workload = "results" if name.endswith("-results") else "plain"
            for k in self.hosts:
                found = self.h["tree"](k)
                expected = self.expected.setdefault(workload, found)
                if found != expected:
                    differing = sorted({path for path, _ in set(found.items()) ^ set(expected.items())})
                    result["differs"] = differing[:6]
                    print(f"  TREE DIFFERS {name} host {k}: {differing[:6]}", flush=True)
                    break
        with RESULTS.open("a") as file:
            file.write(json.dumps(result) + "\n")
        changed = sorted(set(result["changed"])) if result["changed"] else "-"
        print(
            f"{self.scenario} r{number} {phase:8} {name:16} wall {result['wall']:6.2f} ctl {result['ctl']:5.2f}"
            f" hosts {result['hosts']:5.2f} other {result['other']:4.1f} rss {result['rss'] // 1024:4d}M"
            f" turns {result['turn']} changed {changed}{'  BAD' if result.get('bad') else ''}",
            flush=True,
        )
        if result.get("bad"):
            said = (HOME / "results" / f"fail-{name}.txt").read_text().splitlines()
            telling = [line for line in said if '"error"' in line] or said[-5:]
            print("\n".join(line[:600] for line in telling[:5]), flush=True)
            if name.startswith("opsctl"):
                sys.exit(f"{name} failed: nothing to measure")

    def round(self, number: int) -> None:
        """Every row once, in an order that differs from round to round; no-op rows follow their converge."""
        shift = (number - 1) % len(self.rows)
        order = self.rows[shift:] + self.rows[:shift]
        for name in order if number % 2 else reversed(order):
            if self.h["C"][name][2] is None:
                self.once(name, "noop", number)
                continue
            if name in ("opsctl", "opsctl-results"):
                self.warm()
            self.h["reset"](self.hosts)
            self.once(name, "converge", number)
            self.once(name, "noop", number)

    def warm(self) -> None:
        """Leave the agent on every node (an untimed check, which changes nothing)."""
        command = [os.environ["OPSCTL"], "deploy", self.h["W"] + "/ansible/site.yml", "-i", str(HOME / "run/inv.ini")]
        self.h["spawn"]([*command, "--check", "--json"], self.env, subprocess.DEVNULL)
        self.h["settle"](self.base)

    def breakdown(self, times: int) -> None:
        """Marks of a no-op run in seconds from the start of the process, and the floors beside them."""
        self.h["reset"](self.hosts)
        opsctl = os.environ["OPSCTL"]
        python = str(Path(opsctl).with_name("python"))
        command = [opsctl, "deploy", self.h["W"] + "/ansible/site.yml", "-i", str(HOME / "run/inv.ini"), "--json"]
        floors = {
            "python -c pass": [python, "-c", "pass"],
            "import fabric": [python, "-c", "import fabric"],
            "opsctl --help": [opsctl, "--help"],
        }
        out = HOME / "run" / "out.json"
        marks: dict[str, list[float]] = {}
        for number in range(times + 1):
            begin = time.time()
            with out.open("wb") as file:
                wall, code, _ = self.h["spawn"](command, self.env, file)
            self.h["settle"](self.base)
            if code:
                sys.exit(f"opsctl exited {code}: {out.read_text()[-2000:]}")
            if number == 0:
                continue  # converges
            for line in out.read_text().splitlines():
                event = json.loads(line)
                name = event["event"]
                first = name in ("run_started", "host_connected", "task_finished")
                if (first and len(marks.get(name, ())) < number) or name == "run_finished":
                    marks.setdefault(name, []).append(event["ts"] - begin)
            marks.setdefault("exit", []).append(wall)
            for name, argv in floors.items():
                wall, _, _ = self.h["spawn"](argv, self.env, subprocess.DEVNULL)
                marks.setdefault(name, []).append(wall)
        print(f"\n{self.scenario}: medians of {times}, seconds from the start of the process")
        print("\n| mark | s |\n|---|---|")
        for name, values in marks.items():
            print(f"| {name} | {statistics.median(values):.3f} |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("rounds", "breakdown"))
    parser.add_argument("--scenario", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--only", required=True)
    args = parser.parse_args()
    rounds = Rounds(args.scenario, args.only.split(","))
    private_state(rounds.hosts)
    if args.what == "breakdown":
        rounds.breakdown(args.rounds)
        return
    for number in range(1, args.rounds + 1):
        rounds.round(number)


if __name__ == "__main__":
    main()
