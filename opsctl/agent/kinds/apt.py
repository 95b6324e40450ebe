"""`apt`: packages of Debian and Ubuntu. What is there is read from dpkg's status file; apt runs only to change it."""

from __future__ import annotations

import fnmatch
import os
import re
import time

from .. import dpkg, files
from . import Change, Fail, Kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence

    from ..node import Node
    from ..process import Completed
    from . import Pair

    Args = Dict[str, Any]


PROGRAM = "/usr/bin/apt-get"
STATUS = dpkg.STATUS
LISTS = "/var/lib/apt/lists"
STAMP = "/var/lib/apt/periodic/update-success-stamp"
ARCHIVES = "/var/cache/apt/archives"
_LOCKED = r"Could not get lock|Unable to acquire the dpkg frontend lock|Unable to lock "
_HOLDER = r"held by process (\d+) \(([^)]*)\)"


class Apt(Kind):
    """Packages are there, gone, or the newest."""

    def watches(self, args: Args) -> Sequence[Pair]:
        names = [("package", name.partition("=")[0].partition(":")[0]) for name in args.get("name") or []]
        return [*names, ("path", files.expand(args["deb"]))] if args.get("deb") else names

    def probe(self, args: Args, node: Node) -> Dict[str, Any]:
        if not os.path.exists(STATUS) or not os.path.exists(PROGRAM):
            raise Fail("apt: this node has no apt", hint="use the package tool of its distribution with `command`")
        status = dpkg.read(STATUS)
        update = bool(args.get("update_cache") or args.get("cache_valid_time"))
        stale = update and time.time() - cache_time() > args["cache_valid_time"]
        seen: Dict[str, Any] = {"stale": stale}
        seen.update({key: [] for key in ("packages", "broken", "upgrade", "autoremove", "files")})
        state = args["state"]
        for name in args.get("name") or []:
            seen["packages"] += [_look(status, one) for one in _expand(status, name, state)]
        if args.get("deb"):
            seen["packages"].append(_deb(status, args["deb"], node))
        if state == "latest":
            self._candidates(seen["packages"], node)
        if state == "fixed":
            seen["broken"] = status.broken()
        if args["upgrade"] != "no" and not stale:
            command = "dist-upgrade" if args["upgrade"] in ("dist", "full") else "upgrade"
            seen["upgrade"] = self._simulate([*self._options(args), command], "Inst", node)
        if args["autoremove"]:
            seen["autoremove"] = self._simulate(["autoremove"], "Remv", node)
        if args["autoclean"] and not args["clean"]:
            seen["files"] = self._simulate(["autoclean"], "Del", node)
        if args["clean"]:
            seen["files"] = _archives()
        if node.check and not stale:
            missing = [one for one in seen["packages"] if _differs(one, args)]
            if missing and state != "absent":
                self._simulate([*self._options(args), "install", *[one["spec"] for one in missing]], "Inst", node)
        return seen

    def decide(self, args: Args, seen: Dict[str, Any]) -> Optional[Change]:
        todo = [one for one in seen["packages"] if _differs(one, args)]
        latest = seen["stale"] and (args["state"] == "latest" or args["upgrade"] != "no")
        alone = not args.get("name") and not args.get("deb") and args["upgrade"] == "no"
        update = seen["stale"] and bool(todo or alone or latest)
        parts = []
        if update:
            parts.append("update the package lists")
        if todo:
            verb = "remove" if args["state"] == "absent" else "install"
            parts.append("%s %s" % (verb, ", ".join(one["spec"] for one in todo)))
        for key, words in (
            ("upgrade", "upgrade %d package(s)"), ("broken", "repair %d package(s)"),
            ("autoremove", "remove %d unneeded package(s)"), ("files", "delete %d package file(s)"),
        ):  # fmt: skip
            if seen[key]:
                parts.append(words % len(seen[key]))
        if not parts:
            return None
        before = "".join("%s %s\n" % (one["name"], one["version"] or "absent") for one in todo)
        after = "".join("%s %s\n" % (one["name"], _aim(one, args)) for one in todo)
        everything = latest or seen["upgrade"] or seen["autoremove"] or seen["broken"]
        names = [one["name"] for one in todo] + seen["upgrade"] + seen["autoremove"]
        writes = [("package", name) for name in names] + ([("any", "")] if everything else [])
        # What comes with a package: its files, users and units.
        writes += [("any", "")] if todo and args["state"] != "absent" else []
        diff = {"before": before, "after": after, "before_header": "packages", "after_header": "packages"}
        old = before if any(one["version"] for one in todo) else None
        new = after if args["state"] != "absent" else None
        return Change(old, new, diff, writes, msg="; ".join(parts), todo=todo, update=update)

    def apply(self, args: Args, seen: Dict[str, Any], change: Change, node: Node) -> Dict[str, Any]:
        before = dpkg.read(STATUS)
        out: Dict[str, Any] = {"cache_updated": False, "stdout": "", "stderr": ""}
        options = self._options(args)
        todo, state = change.plan["todo"], args["state"]

        def call(words: List[str], what: str) -> None:
            done = apt_get(words, what, args["lock_timeout"], node)
            out["stdout"] += done.stdout
            out["stderr"] += done.stderr

        if change.plan["update"]:
            self._update(args, node)
            out["cache_updated"] = True
            if state == "latest":
                self._candidates(seen["packages"], node)
                todo = [one for one in seen["packages"] if _differs(one, args)]
        if state == "fixed" and seen["broken"]:
            call([*options, "-f", "install"], "repair packages")
        if args["upgrade"] != "no" and (seen["upgrade"] or change.plan["update"]):
            command = "dist-upgrade" if args["upgrade"] in ("dist", "full") else "upgrade"
            call([*options, command], "upgrade the packages")
        specs = [one["spec"] for one in todo]
        if specs and state == "absent":
            call([*options, "purge" if args["purge"] else "remove", *specs], "remove " + ", ".join(specs))
        elif specs:
            call([*options, "install", *specs], "install " + ", ".join(specs))
        for key, command in (("autoremove", "autoremove"), ("autoclean", "autoclean"), ("clean", "clean")):
            if args[key]:
                call([*options, command], command)
        out["cache_update_time"] = int(cache_time())
        alone = change.plan["update"] and not args.get("name") and not args.get("deb") and args["upgrade"] == "no"
        if dpkg.read(STATUS) is before and not alone and not seen["files"]:
            out["changed"] = False  # the fetched lists had nothing newer
        return out

    def report(self, args: Args, seen: Dict[str, Any]) -> Dict[str, Any]:
        return {"cache_updated": False, "cache_update_time": int(cache_time())}

    @staticmethod
    def _options(args: Args) -> List[str]:
        out = ["-y", "-q"]
        for option in args["dpkg_options"]:
            out += ["-o", "Dpkg::Options::=--" + option]
        if args.get("install_recommends") is not None:
            out += ["-o", "APT::Install-Recommends=%s" % ("yes" if args["install_recommends"] else "no")]
        if args.get("default_release"):
            out += ["-t", args["default_release"]]
        flags = (
            ("only_upgrade", "--only-upgrade"), ("allow_downgrade", "--allow-downgrades"), ("force", "--force-yes"),
            ("allow_change_held_packages", "--allow-change-held-packages"), ("fail_on_autoremove", "--no-remove"),
            ("allow_unauthenticated", "--allow-unauthenticated"),
        )  # fmt: skip
        return out + [flag for name, flag in flags if args[name]]

    @staticmethod
    def _candidates(packages: List[Dict[str, Any]], node: Node) -> None:
        """The newest version of each package, as apt would take it."""
        names = [one["spec"].split("=")[0] for one in packages]
        done = node.run(["apt-cache", "policy", *names], env={"LC_ALL": "C"}, timeout=120)
        found = re.findall(r"^(\S+):\n  Installed: .*\n  Candidate: (.*)$", done.stdout, re.MULTILINE)
        known = {name: version for name, version in found if version != "(none)"}
        for one, name in zip(packages, names):
            one["candidate"] = known.get(name) or known.get(one["name"])

    @staticmethod
    def _simulate(words: List[str], verb: str, node: Node) -> List[str]:
        """The packages (or files) that apt-get would touch. Raises `Fail` with apt's reason."""
        done = node.run(["apt-get", "-s", "-o", "Debug::NoLocking=1", *words], env={"LC_ALL": "C"}, timeout=300)
        if done.rc != 0:
            raise _failed(done, "apt-get -s " + " ".join(word for word in words if not word.startswith("-")))
        return re.findall(r"^%s (\S+)" % verb, done.stdout, re.MULTILINE)

    @staticmethod
    def _update(args: Args, node: Node) -> None:
        for left in reversed(range(max(1, args["update_cache_retries"]))):
            try:
                apt_get(["-q", "-o", "APT::Update::Error-Mode=any", "update"], "update", args["lock_timeout"], node)
                return
            except Fail as exc:
                if not left or exc.result.get("locked"):
                    raise
                node.progress("could not fetch the package lists, trying again: %s" % exc.cause)
                node.sleep(2)


def cache_time() -> float:
    """When the package lists were last fetched, in seconds since the epoch; 0 for never."""
    times = []
    for path in (STAMP, LISTS):
        try:
            times.append(os.stat(path).st_mtime)
        except OSError:
            continue
    try:
        if not any(name.endswith(("_Packages", "_InRelease", "_Packages.lz4")) for name in os.listdir(LISTS)):
            return 0.0
    except OSError:
        return 0.0
    return max(times, default=0.0)


def apt_get(words: List[str], what: str, lock_timeout: float, node: Node) -> Completed:
    """Run apt-get; waits while another program holds its locks. Raises `Fail` with apt's own reason."""
    env = {"LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive", "APT_LISTCHANGES_FRONTEND": "none"}
    start = time.monotonic()
    while True:
        done = node.run(["apt-get", *words], env=env, live=True)
        if done.rc == 0:
            return done
        if not re.search(_LOCKED, done.stderr) or "Permission denied" in done.stderr:
            raise _failed(done, "apt-get " + what)
        holder = re.search(_HOLDER, done.stderr)
        who = "%s (pid %s)" % (holder.group(2), holder.group(1)) if holder else "another program"
        waited = time.monotonic() - start
        if waited >= lock_timeout:
            raise Fail(
                "apt: %s holds apt's lock, and did not let it go within %d s" % (who, lock_timeout),
                hint="wait for it (often unattended-upgrades), or raise `lock_timeout`",
                locked=True, rc=done.rc, stderr=done.stderr,
            )  # fmt: skip
        node.progress("waiting for apt's lock, held by %s (%d s of %d s)" % (who, waited, lock_timeout))
        node.sleep(min(2.0, max(0.1, lock_timeout - waited)))


def _failed(done: Completed, what: str) -> Fail:
    reasons = re.findall(r"^(?:E|Err): ?(.*)$", done.stderr, re.MULTILINE)
    dpkg_says = re.findall(r"^dpkg: (?:error|warning).*(?:\n .*)*", done.stderr, re.MULTILINE)
    unmet = re.findall(r"^ (\S+ : (?:Depends|Conflicts|Breaks).*)$", done.stdout, re.MULTILINE)
    cause = "; ".join([*dpkg_says, *unmet, *reasons]) or done.tail() or done.why()
    hint = ""
    if "Unable to locate package" in cause or "has no installation candidate" in cause:
        hint = "check the name, or fetch the package lists with `update_cache: true`"
    elif "are you root" in cause or "Permission denied" in cause:
        hint = "use `become: true`"
    elif "dpkg was interrupted" in cause:
        hint = "repair it with `command: dpkg --configure -a`"
    elif "unmet dependencies" in cause:
        hint = "see which version fits with `apt-cache policy`, or repair with `state: fixed`"
    return Fail(
        "%s failed" % what, needs=[("any", ""), ("package", "")], cause=cause, hint=hint,
        rc=done.rc, stdout=done.stdout, stderr=done.stderr,
    )  # fmt: skip


def _expand(status: dpkg.Status, name: str, state: str) -> List[str]:
    if state == "absent" and any(char in name for char in "*?["):
        return status.names(name)
    return [name]


def _look(status: dpkg.Status, spec: str) -> Dict[str, Any]:
    """A package as asked for beside what dpkg has."""
    bare, _, version = spec.partition("=")
    bare, _, _ = bare.partition("/")
    name, _, arch = bare.partition(":")
    records = status.find(name, arch or None)
    live = [one for one in records if one.state not in ("not-installed", "config-files")]
    whole = [one for one in live if one.state == "installed"]
    provided = False
    if not live and not version:
        provided = bool(status.providers(name))
    return {
        "spec": spec, "name": name, "wanted": version.strip() or None, "version": live[0].version if live else None,
        "installed": bool(whole), "live": bool(live), "provided": provided, "candidate": None, "deb": None,
        "leftovers": any(one.state == "config-files" for one in records),
    }  # fmt: skip


def _deb(status: dpkg.Status, path: str, node: Node) -> Dict[str, Any]:
    path = files.expand(path)
    if not os.path.exists(path):
        raise Fail("the package file %s does not exist" % path, needs=[("path", path)], path=path)
    done = node.run(["dpkg-deb", "-f", path, "Package", "Version"], env={"LC_ALL": "C"}, timeout=60)
    fields = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    if done.rc != 0 or "Package" not in fields:
        raise Fail("%s is no Debian package" % path, cause=done.tail(), path=path)
    out = _look(status, fields["Package"])
    out.update(spec=os.path.abspath(path), wanted=fields.get("Version"), deb=path)
    return out


def _differs(one: Dict[str, Any], args: Args) -> bool:
    state = args["state"]
    if state == "absent":
        return bool(one["live"] or (args["purge"] and one["leftovers"]))
    if args["only_upgrade"] and not one["live"]:
        return False
    if one["wanted"] is not None:
        return not (one["installed"] and fnmatch.fnmatchcase(one["version"], one["wanted"]))
    if state == "latest" and one["installed"]:
        return one["candidate"] is not None and one["candidate"] != one["version"]
    return not (one["installed"] or one["provided"])


def _aim(one: Dict[str, Any], args: Args) -> str:
    if args["state"] == "absent":
        return "absent"
    return str(one["candidate"] if args["state"] == "latest" and one["candidate"] else one["wanted"] or "present")


def _archives() -> List[str]:
    try:
        return sorted(name for name in os.listdir(ARCHIVES) if name.endswith(".deb"))
    except OSError:
        return []
