"""`systemd`, `service`: units, looked at with one `systemctl show`."""

from __future__ import annotations

import os

from . import Change, Fail, Kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence

    from ..node import Node
    from ..process import Completed
    from . import Pair

    Args = Dict[str, Any]


_PROPERTIES = (
    "Id", "Names", "Description", "LoadState", "ActiveState", "SubState", "UnitFileState", "FragmentPath", "SourcePath",
    "NeedDaemonReload", "MainPID", "ExecMainStatus", "Result", "Type", "ActiveEnterTimestamp", "CanReload",
)  # fmt: skip

_TYPES = (
    ".service", ".socket", ".target", ".timer", ".mount", ".automount", ".path", ".slice", ".scope", ".swap", ".device",
)  # fmt: skip

#: It exists while systemd runs the machine.
RUNNING = "/run/systemd/system"

#: Where unit files lie: a pending change below makes a reload necessary.
_FOLDERS = ("/etc/systemd", "/run/systemd", "/usr/lib/systemd", "/lib/systemd", "/usr/local/lib/systemd")


class Systemd(Kind):
    """A unit runs, or does not; is enabled, or is not."""

    def watches(self, args: Args) -> Sequence[Pair]:
        if not args.get("name") or args.get("state") in ("restarted", "reloaded"):
            return []  # those always act
        name = args["name"]
        return [("unit", name if name.endswith(_TYPES) else name + ".service")]

    def probe(self, args: Args, node: Node) -> Dict[str, Any]:
        scope = args.get("scope", "system")
        if not os.path.isdir(RUNNING):
            raise Fail(
                "systemd: this node is not run by systemd",
                cause="%s does not exist, as in most containers" % RUNNING,
                hint="start the program itself with `command` or `shell`, or run this on a machine with systemd",
            )
        name = args.get("name")
        seen: Dict[str, Any] = {"unit": None, "reload": False, "check": node.check}
        if name is not None:
            unit = name if name.endswith(_TYPES) else name + ".service"
            seen["name"] = unit
            seen["unit"] = found = self._show(unit, scope, node)
            if found.get("LoadState") == "not-found" and not self._absent_is_fine(args):
                raise Fail(
                    "systemd: there is no unit %s" % unit, name=name,
                    needs=[("unit", unit), ("package", ""), *[("path", folder) for folder in _FOLDERS]],
                    hint="`systemctl list-unit-files` lists what there is",
                )  # fmt: skip
            if found.get("LoadState") in ("error", "bad-setting"):
                needs = [("path", found["FragmentPath"])] if found.get("FragmentPath") else []
                hint = "see `systemd-analyze verify %s`" % unit
                raise Fail("systemd: the unit %s cannot be loaded" % unit, needs=needs, hint=hint, status=found)
            if found.get("SourcePath", "").startswith("/etc/init.d/"):
                done = self._call(["is-enabled", unit], scope, node)
                found["UnitFileState"] = "enabled" if done.rc == 0 else "disabled"
        if args.get("daemon_reload"):
            if seen["unit"] is None:
                done = self._call(["show", "--property=NeedDaemonReload", "*"], scope, node)
                seen["reload"] = "NeedDaemonReload=yes" in done.stdout
            else:
                seen["reload"] = seen["unit"].get("NeedDaemonReload") == "yes"
            seen["reload"] = seen["reload"] or any(node.pending(("path", folder)) for folder in _FOLDERS)
        return seen

    @staticmethod
    def _absent_is_fine(args: Args) -> bool:
        """Stopping or disabling what does not exist is done already, as Ansible has it for `stopped`."""
        return args.get("state") == "stopped" and not args.get("enabled") and args.get("masked") is None

    def _show(self, unit: str, scope: str, node: Node) -> Dict[str, str]:
        done = self._call(["show", "--property=" + ",".join(_PROPERTIES), "--", unit], scope, node)
        if done.rc != 0:
            hint = ""
            if scope == "user" and "connect to" in done.stderr.lower():
                hint = "the user has no running systemd: log in, or use `command: loginctl enable-linger USER`"
            raise Fail("systemctl show %s failed: %s" % (unit, done.why()), cause=done.tail(), hint=hint, rc=done.rc)
        return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)

    def decide(self, args: Args, seen: Dict[str, Any]) -> Optional[Change]:
        unit = seen["unit"]
        steps: List[List[str]] = []
        before: Dict[str, str] = {}
        after: Dict[str, str] = {}
        if args.get("daemon_reexec"):
            steps.append(["daemon-reexec"])
            after["systemd"] = "daemon-reexec"
        if seen["reload"]:
            steps.append(["daemon-reload"])
            after["systemd"] = "daemon-reload"
        if unit is None:
            return Change(before, after, None, [], msg=after["systemd"], steps=steps) if steps else None
        name = seen["name"]
        file_state = unit.get("UnitFileState", "")
        masked = unit.get("LoadState") == "masked" or file_state.startswith("masked")
        if args.get("masked") is not None and args["masked"] != masked:
            steps.append(["mask" if args["masked"] else "unmask", name])
            before["masked"], after["masked"] = str(masked), str(args["masked"])
        enabled = file_state in ("enabled", "enabled-runtime", "linked", "linked-runtime")
        fixed = file_state in ("static", "indirect", "generated", "alias", "transient")  # it can be neither
        if args.get("enabled") is not None and args["enabled"] != enabled and not fixed:
            force = ["--force"] if args.get("force") else []
            steps.append(["enable" if args["enabled"] else "disable", *force, name])
            before["enabled"], after["enabled"] = str(enabled), str(args["enabled"])
        verb = self._verb(args.get("state"), unit)
        if verb:
            block = ["--no-block"] if args.get("no_block") else []
            steps.append([verb, *block, name])
            before["state"], after["state"] = unit.get("ActiveState", ""), args["state"]
        if not steps:
            return None
        diff = {"before": _text(before), "after": _text(after), "before_header": name, "after_header": name}
        # A service may write anything when it starts.
        writes = [("unit", name)] + ([("any", "")] if verb else [])
        return Change(before, after, diff, writes, msg="; ".join(" ".join(step) for step in steps), steps=steps)

    @staticmethod
    def _verb(state: Optional[str], unit: Dict[str, str]) -> str:
        running = unit.get("ActiveState") in ("active", "activating", "reloading", "refreshing")
        if state == "started":
            return "" if running else "start"
        if state == "stopped":
            return "stop" if running or unit.get("ActiveState") == "deactivating" else ""
        if state == "restarted":
            return "restart"
        if state == "reloaded":
            return "reload" if running else "start"
        return ""

    def apply(self, args: Args, seen: Dict[str, Any], change: Change, node: Node) -> Dict[str, Any]:
        scope = args.get("scope", "system")
        for step in change.plan["steps"]:
            if step[0] in ("start", "stop", "restart", "reload"):
                node.progress("systemctl " + " ".join(step))
            done = self._call(step, scope, node)
            if done.rc != 0:
                raise self._failed(step, done, scope, node)
        if seen["unit"] is not None:
            seen = {**seen, "unit": self._show(seen["name"], scope, node)}
        return self.report(args, seen)

    def _failed(self, step: List[str], done: Completed, scope: str, node: Node) -> Fail:
        cause = done.tail(6)
        result: Dict[str, Any] = {"rc": done.rc, "stdout": done.stdout, "stderr": done.stderr}
        hint = ""
        if os.geteuid() != 0 and scope != "user":
            hint = "use `become: true`"
        elif step[0] in ("start", "restart", "reload"):
            unit = step[-1]
            own = ["--user"] if scope == "user" else []
            words = ["journalctl", *own, "-u", unit, "-n", "20", "--no-pager", "-o", "cat"]
            try:
                log = node.run(words, env=_environment(scope), timeout=10).stdout.strip()
            except Fail:
                log = ""
            if log:
                cause = "\n".join([cause, "its last messages:", *log.splitlines()[-8:]])
                result["journal"] = log
            hint = "see `journalctl -u %s` and `systemctl status %s`" % (unit, unit)
        return Fail("systemctl %s failed: %s" % (" ".join(step), done.why()), cause=cause, hint=hint, **result)

    def report(self, args: Args, seen: Dict[str, Any]) -> Dict[str, Any]:
        out: Dict[str, Any] = {"name": args.get("name")}
        unit = seen["unit"]
        if unit is not None and not self.waits(args, seen):
            out["status"] = unit
            out["state"] = args.get("state") or unit.get("ActiveState")
            if args.get("enabled") is not None:
                out["enabled"] = args["enabled"]
        return out

    @staticmethod
    def _call(words: List[str], scope: str, node: Node) -> Completed:
        own = {"user": ["--user"], "global": ["--global"]}.get(scope, [])
        try:
            return node.run(["systemctl", *own, *words], env=_environment(scope))
        except Fail as exc:
            raise Fail("this node has no systemctl", cause=exc.msg, needs=[("package", "systemd")]) from None


def _environment(scope: str) -> Dict[str, str]:
    env = {"LC_ALL": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""}
    if scope == "user" and "XDG_RUNTIME_DIR" not in os.environ:
        env["XDG_RUNTIME_DIR"] = "/run/user/%d" % os.getuid()
    return env


def _text(side: Dict[str, str]) -> str:
    return "".join("%s: %s\n" % pair for pair in sorted(side.items()))
