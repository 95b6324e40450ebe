"""`user`: accounts, through the system's own useradd, usermod, userdel."""

from __future__ import annotations

import os
import time

from .. import files
from . import Change, Fail, Kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence

    from ..node import Node
    from . import Pair

    Args = Dict[str, Any]


SHADOW = "/etc/shadow"


class User(Kind):
    """An account is there, as described, or gone."""

    def watches(self, args: Args) -> Sequence[Pair]:
        return [("user", args["name"])]

    def probe(self, args: Args, node: Node) -> Dict[str, Any]:
        import pwd

        name = args["name"]
        seen: Dict[str, Any] = {"user": None, "needs": [], "check": node.check}
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            entry = None
        if entry is not None:
            seen["user"] = {
                "uid": entry.pw_uid, "gid": entry.pw_gid, "comment": entry.pw_gecos, "home": entry.pw_dir,
                "shell": entry.pw_shell,
            }  # fmt: skip
            seen["home_exists"] = os.path.exists(entry.pw_dir)
        if args["state"] == "absent":
            return seen
        if args.get("group") is not None:
            _, gid, needs = files.owner_ids(None, args["group"])
            seen["gid"], seen["needs"] = gid, needs
        if args.get("groups") is not None:
            seen.update(self._groups(name, args["groups"], entry.pw_gid if entry is not None else None))
        if any(args.get(key) is not None for key in ("password", "password_lock", "expires")):
            seen["shadow"] = self._shadow(name, entry is not None)
        return seen

    @staticmethod
    def _groups(name: str, wanted: List[str], primary: Optional[int]) -> Dict[str, Any]:
        import grp

        every = {group.gr_name: group for group in grp.getgrall()}
        by_id = {str(group.gr_gid): group.gr_name for group in every.values()}
        resolved, missing = [], []
        for one in wanted:
            known = one if one in every else by_id.get(one)
            if known is None:
                missing.append(("group", one))
            resolved.append(known or one)
        have = sorted(group.gr_name for group in every.values() if name in group.gr_mem)
        own = [group.gr_name for group in every.values() if group.gr_gid == primary]
        return {"groups": sorted(set(resolved)), "groups_have": have, "groups_own": own, "group_needs": missing}

    @staticmethod
    def _shadow(name: str, exists: bool) -> Dict[str, Any]:
        """The account's line of the shadow file: password hash and day of expiry."""
        try:
            with open(SHADOW, encoding="utf-8", errors="surrogateescape") as stream:
                for line in stream:
                    fields = line.rstrip("\n").split(":")
                    if fields[0] == name and len(fields) >= 8:
                        return {"password": fields[1], "expires": int(fields[7]) if fields[7] else None}
        except OSError as exc:
            if exists:
                raise files.os_fail(exc, "read", SHADOW) from None
        return {"password": "", "expires": None}

    def decide(self, args: Args, seen: Dict[str, Any]) -> Optional[Change]:
        name, user = args["name"], seen["user"]
        if args["state"] == "absent":
            if user is None:
                return None
            return _change(name, {"state": "present"}, {"state": "absent"}, [("path", user["home"])], [])
        needs = seen["needs"] + seen.get("group_needs", [])
        if user is None:
            after: Dict[str, Any] = {"state": "present"}
            after.update({key: args[key] for key in ("uid", "group", "home", "shell") if args.get(key) is not None})
            home = [("path", args["home"])] if args.get("home") else [("path", "/home/" + name)]
            return _change(name, {"state": "absent"}, after, home, needs, create=True)
        before, after = {}, {}
        pairs = (("uid", "uid"), ("comment", "comment"), ("home", "home"), ("shell", "shell"))
        for key, arg in pairs:
            if args.get(arg) is not None and args[arg] != user[key]:
                before[key], after[key] = user[key], args[arg]
        if "gid" in seen and seen["gid"] != user["gid"]:
            before["group"], after["group"] = user["gid"], args["group"]
        self._decide_groups(args, seen, before, after)
        self._decide_shadow(args, seen, before, after)
        make_home = args["create_home"] and not seen["home_exists"] and "home" not in after
        if make_home:
            before["home directory"], after["home directory"] = "absent", user["home"]
        if not after:
            return None
        writes = [("path", user["home"])] if make_home or "home" in after else []
        return _change(name, before, after, writes, needs, create=False, changes=after, make_home=make_home)

    @staticmethod
    def _decide_groups(args: Args, seen: Dict[str, Any], before: Args, after: Args) -> None:
        if "groups" not in seen:
            return
        have, want = set(seen["groups_have"]), set(seen["groups"]) - set(seen["groups_own"])
        missing = want - have
        surplus = set() if args["append"] else have - want
        if missing or surplus:
            before["groups"] = ",".join(sorted(have))
            after["groups"] = ",".join(sorted((have | want) if args["append"] else want))

    @staticmethod
    def _decide_shadow(args: Args, seen: Dict[str, Any], before: Args, after: Args) -> None:
        shadow = seen.get("shadow")
        if shadow is None:
            return
        hashed = shadow["password"]
        locked = hashed.startswith("!")
        wanted = args.get("password")
        if wanted is not None and args["update_password"] == "always" and hashed.lstrip("!") != wanted.lstrip("!"):
            before["password"], after["password"] = "(hidden)", "(hidden, new)"
        lock = args.get("password_lock")
        if lock is None and wanted is not None and args["update_password"] == "always" and wanted.startswith("!"):
            lock = True if not locked and "password" not in after else None
        if lock is not None and lock != locked and (lock or hashed != "!"):  # no password: nothing to unlock
            before["password_lock"], after["password_lock"] = locked, lock
        if args.get("expires") is not None:
            day = _day(args["expires"])
            if day != shadow["expires"]:
                before["expires"], after["expires"] = shadow["expires"], day

    def apply(self, args: Args, seen: Dict[str, Any], change: Change, node: Node) -> Dict[str, Any]:
        name = args["name"]
        if change.needs:
            raise Fail("cannot set up the user %s: %s" % (name, change.unmet), needs=change.needs, name=name)
        if args["state"] == "absent":
            words = ["userdel"] + ["-f"] * args["force"] + ["-r"] * args["remove"] + [name]
            _run(words, node, ok=(0, 12) if args["force"] else (0,))
            return {"name": name, "state": "absent", "force": args["force"], "remove": args["remove"]}
        if change.plan["create"]:
            self._create(args, seen, node)
        else:
            self._modify(args, seen, change.plan, node)
        return self.report(args, seen)

    def _create(self, args: Args, seen: Dict[str, Any], node: Node) -> None:
        words = ["useradd"]
        for flag, key in (("-u", "uid"), ("-g", "group"), ("-c", "comment"), ("-d", "home"), ("-s", "shell")):
            if args.get(key) is not None:
                words += [flag, str(args[key])]
        if args.get("group") is None and _group_exists(args["name"]):
            words += ["-g", args["name"]]
        if seen.get("groups"):
            words += ["-G", ",".join(seen["groups"])]
        if args.get("expires") is not None:
            words += ["-e", _date(args["expires"])]
        words += ["-r"] * args["system"] + ["-o"] * args["non_unique"]
        if args["create_home"]:
            words.append("-m")
            if args.get("skeleton"):
                words += ["-k", args["skeleton"]]
            if args.get("umask"):
                words += ["-K", "UMASK=" + args["umask"]]
        else:
            words.append("-M")
        _run([*words, args["name"]], node)
        if args.get("password") is not None:
            _set_password(args["name"], args["password"], node)
        if args.get("password_lock"):
            _run(["usermod", "-L", args["name"]], node)

    def _modify(self, args: Args, seen: Dict[str, Any], plan: Dict[str, Any], node: Node) -> None:
        name, changes = args["name"], plan["changes"]
        words: List[str] = []
        flags = (("uid", "-u"), ("group", "-g"), ("comment", "-c"), ("home", "-d"), ("shell", "-s"), ("groups", "-G"))
        for key, flag in flags:
            if key in changes:
                words += [flag, str(changes[key])]
        if "home" in changes and args["move_home"]:
            words.append("-m")
        if "uid" in changes and args["non_unique"]:
            words.append("-o")
        if "expires" in changes:
            words += ["-e", _date(args["expires"])]
        if words:
            _run(["usermod", *words, name], node)
        if "password" in changes:
            _set_password(name, args["password"], node)
        if "password_lock" in changes:
            _run(["usermod", "-L" if changes["password_lock"] else "-U", name], node)
        home = changes.get("home", seen["user"]["home"])
        if args["create_home"] and not os.path.exists(home):
            make_home(home, seen["user"], args)

    def report(self, args: Args, seen: Dict[str, Any]) -> Dict[str, Any]:
        import pwd

        out: Dict[str, Any] = {"name": args["name"], "state": args["state"]}
        if self.waits(args, seen):
            return out
        try:
            entry = pwd.getpwnam(args["name"])
        except KeyError:
            return out
        out.update(
            uid=entry.pw_uid, group=entry.pw_gid, comment=entry.pw_gecos, home=entry.pw_dir, shell=entry.pw_shell,
            append=args["append"], move_home=args["move_home"],
        )  # fmt: skip
        if args.get("groups") is not None:
            out["groups"] = ",".join(args["groups"])
        if args.get("password") is not None:
            out["password"] = "NOT_LOGGING_PASSWORD"
        return out


def _change(name: str, before: Args, after: Args, writes: List[Any], needs: List[Any], **plan: Any) -> Change:
    def text(side: Args) -> str:
        return "".join("%s: %s\n" % pair for pair in sorted(side.items()))

    diff = {"before": text(before), "after": text(after), "before_header": "user " + name}
    diff["after_header"] = diff["before_header"]
    pairs = [("user", name), ("group", name), *writes]
    return Change(before, after, diff, pairs, needs, files.unmet(needs), **plan)


def _group_exists(name: str) -> bool:
    import grp

    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


def _day(expires: float) -> Optional[int]:
    """Day of expiry as the shadow file counts; None for never."""
    return None if expires < 0 else int(expires // 86400)


def _date(expires: float) -> str:
    return "" if expires < 0 else time.strftime("%Y-%m-%d", time.gmtime(expires))


def _set_password(name: str, hashed: str, node: Node) -> None:
    """Through standard input: the arguments of a process are seen by everybody."""
    _run(["chpasswd", "-e"], node, stdin="%s:%s\n" % (name, hashed))


def _run(words: List[str], node: Node, ok: Any = (0,), stdin: Optional[str] = None) -> None:
    env = {"LC_ALL": "C", "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
    program = _find(words[0], env["PATH"])
    done = node.run([program, *words[1:]], env=env, stdin=stdin, timeout=120)
    if done.rc not in ok:
        hint = "use `become: true`" if os.geteuid() != 0 else ""
        raise Fail("%s failed: %s" % (words[0], done.why()), cause=done.tail(), hint=hint, rc=done.rc)


def _find(program: str, path: str) -> str:
    for folder in path.split(":"):
        if folder and os.access(os.path.join(folder, program), os.X_OK):
            return os.path.join(folder, program)
    raise Fail(
        "this node has no %s" % program, needs=[("package", "")],
        hint="it comes with the package `passwd` (Debian) or `shadow-utils`, `shadow`",
    )  # fmt: skip


def make_home(home: str, user: Dict[str, Any], args: Args) -> None:
    """A home directory for an account that lacks it, with the skeleton's content. Raises `Fail`."""
    import shutil

    skeleton = args.get("skeleton") or "/etc/skel"
    try:
        os.makedirs(os.path.dirname(home), exist_ok=True)
        if os.path.isdir(skeleton):
            shutil.copytree(skeleton, home, symlinks=True)
        else:
            os.mkdir(home)
        for folder, folders, names in os.walk(home):
            for name in [*folders, *names]:
                os.chown(os.path.join(folder, name), user["uid"], user["gid"], follow_symlinks=False)
        os.chmod(home, _home_mode(args.get("umask")))
        os.chown(home, user["uid"], user["gid"])
    except OSError as exc:
        raise files.os_fail(exc, "make the home directory", home) from None


def _home_mode(umask: Optional[str]) -> int:
    """The permissions of new homes: by the task, else by /etc/login.defs."""
    if umask is not None:
        return 0o777 & ~int(umask, 8)
    found = {}
    try:
        for line in files.read("/etc/login.defs").decode("utf-8", "replace").splitlines():
            words = line.split()
            if len(words) >= 2 and words[0] in ("HOME_MODE", "UMASK"):
                found[words[0]] = int(words[1], 8)
    except (Fail, ValueError):
        pass
    return found.get("HOME_MODE", 0o777 & ~found.get("UMASK", 0o022))
