"""`file` and `stat`."""

from __future__ import annotations

import errno
import os
import time

from .. import files
from . import Change, Fail, Kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence, Tuple

    from ..node import Node
    from . import Pair

    Args = Dict[str, Any]



class File(Kind):
    """Directories, links, permissions, absence."""

    def watches(self, args: Args) -> Sequence[Pair]:
        path = files.expand(args["path"])
        out = [("tree" if args.get("recurse") else "path", path)]
        if args.get("state") == "hard" and args.get("src"):
            out.append(("path", os.path.join(os.path.dirname(path), files.expand(args["src"]))))
        return out

    def probe(self, args: Args, node: Node) -> Dict[str, Any]:
        path = files.expand(args["path"])
        path = path.rstrip("/") or "/"
        info = files.look(path)
        state = args.get("state") or self._state(args, info)
        seen: Dict[str, Any] = {"path": path, "state": state, "info": info, "want": files.wanted(args)}
        seen["check"] = node.check
        if info is not None and info["type"] == "link" and state not in ("link", "absent") and args.get("follow", True):
            seen["info"] = info = files.look(path, follow=True)
            seen["path"] = path = os.path.realpath(path)
        seen["needs"] = [] if state in ("absent", "directory") else files.parent_needs(path)
        if state in ("link", "hard"):
            self._probe_link(args, seen)
        elif state == "file":
            if info is None:
                hint = "`state: touch` makes an empty file, `state: directory` a directory"
                raise Fail("%s does not exist" % path, needs=[("path", path)], hint=hint, path=path, state="absent")
        elif info is not None and state == "directory" and info["type"] != "directory":
            raise Fail("%s is a %s, not a directory" % (path, info["type"]), needs=[("path", path)], path=path)
        if state == "directory" and args.get("recurse") and info is not None:
            seen["inside"] = self._inside(path, seen["want"])
        seen["times"] = self._times(args, state)
        return seen

    @staticmethod
    def _state(args: Args, info: Optional[Dict[str, Any]]) -> str:
        if args.get("recurse"):
            return "directory"
        if info is not None and info["type"] == "directory":
            return "directory"
        return "link" if args.get("src") else "file"

    @staticmethod
    def _probe_link(args: Args, seen: Dict[str, Any]) -> None:
        path, info, state = seen["path"], seen["info"], seen["state"]
        src = args.get("src")
        if src is None:
            if info is None or info["type"] != "link" or state == "hard":
                raise Fail("file: `state: %s` needs `src` to make %s" % (state, path), needs=[("path", path)])
            src = info["target"]
        src = files.expand(src)
        seen["src"] = src
        target = os.path.join(os.path.dirname(path), src)
        found = files.look(target, follow=state == "link")
        if found is None and (state == "hard" or not args.get("force")):
            seen["needs"] = seen["needs"] + [("path", target)]
        if state == "hard" and found is not None:
            if found["type"] != "file":
                raise Fail("cannot make a hard link to %s: it is a %s" % (src, found["type"]), path=path, src=src)
            seen["same"] = info is not None and (info["dev"], info["ino"]) == (found["dev"], found["ino"])
        elif state == "link":
            seen["same"] = info is not None and info["type"] == "link" and info["target"] == src
            if found is not None and args.get("follow", True):
                seen["target_info"], seen["target"] = found, os.path.realpath(target)
        if info is None or seen.get("same"):
            return
        if info["type"] == "directory":
            if not args.get("force") or os.listdir(path):
                hint = "remove it with `state: absent` first"
                raise Fail("%s is a directory, refusing to put a link in its place" % path, hint=hint, path=path)
        elif info["type"] != "link" and not args.get("force"):
            hint = "`force: true` replaces it"
            raise Fail("%s is a %s, refusing to put a link in its place" % (path, info["type"]), hint=hint, path=path)

    @staticmethod
    def _inside(path: str, want: Dict[str, Any]) -> List[Tuple[str, Dict[str, Any]]]:
        """Everything below a directory that differs; links are not followed."""
        out = []
        stack = [path]
        while stack:
            folder = stack.pop()
            try:
                names = sorted(os.listdir(folder))
            except OSError as exc:
                raise files.os_fail(exc, "list", folder) from None
            for name in names:
                one = os.path.join(folder, name)
                info = files.look(one)
                if info is None:
                    continue
                changes = files.drift(want, info)
                if changes:
                    out.append((one, changes))
                if info["type"] == "directory":
                    stack.append(one)
        return out

    @staticmethod
    def _times(args: Args, state: str) -> Dict[str, Optional[int]]:
        """Wanted times in nanoseconds; -1 is now, None is as it is."""
        out: Dict[str, Optional[int]] = {}
        for key, name in (("atime_ns", "access_time"), ("mtime_ns", "modification_time")):
            text = args.get(name) or ("now" if state == "touch" else "preserve")
            if text in ("now", "preserve"):
                out[key] = -1 if text == "now" else None
                continue
            pattern = args.get(name + "_format", "%Y%m%d%H%M.%S")
            try:
                out[key] = int(time.mktime(time.strptime(text, pattern))) * 10**9
            except ValueError:
                raise Fail("file: `%s` is %r, which does not fit %r" % (name, text, pattern)) from None
        return out

    def decide(self, args: Args, seen: Dict[str, Any]) -> Optional[Change]:
        path, state, info, want = seen["path"], seen["state"], seen["info"], seen["want"]
        before: Dict[str, Any] = {}
        after: Dict[str, Any] = {}
        plan: Dict[str, Any] = {"attributes": {}, "target_attributes": {}, "create": False, "times": {}}
        if state == "absent":
            if info is None:
                return None
            before, after = {"state": info["type"]}, {"state": "absent"}
            return _change(path, before, after, [("path", path)], [], **plan)
        kind = "file" if state == "touch" else state
        if info is None or (state in ("link", "hard") and not seen.get("same")):
            plan["create"] = True
            before, after = {"state": "absent" if info is None else info["type"]}, {"state": kind}
            if state in ("link", "hard"):
                before["src"], after["src"] = info.get("target") if info else None, seen["src"]
        if info is not None and not plan["create"]:
            plan["attributes"] = files.drift(want, info)
        if seen.get("target_info") is not None:
            plan["target_attributes"] = files.drift(want, seen["target_info"])
            plan["attributes"] = {}
        elif plan["create"] and want["mode"] is not None and state == "directory":
            after["mode"] = files.octal(files.mode_for(want, None, True))
        for name, (old, new) in {**plan["attributes"], **plan["target_attributes"]}.items():
            before[name], after[name] = old, new
        for key, value in seen["times"].items():
            if value is not None and (value == -1 or info is None or info[key] != value):
                plan["times"][key] = value
                if info is not None:
                    before[key], after[key] = info[key], "now" if value == -1 else value
        inside = seen.get("inside") or []
        if inside:
            before["inside"], after["inside"] = None, [name for name, _ in inside]
        if not plan["create"] and not before:
            return None
        needs = (seen["needs"] if plan["create"] else []) + want["needs"]
        sort = "dir" if state == "directory" and not args.get("recurse") else "path"
        return _change(path, before, after, [(sort, path)], needs, **plan)

    def apply(self, args: Args, seen: Dict[str, Any], change: Change, node: Node) -> Dict[str, Any]:
        path, state, info, want = seen["path"], seen["state"], seen["info"], seen["want"]
        if change.needs:
            raise Fail("cannot make %s: %s" % (path, change.unmet), needs=change.needs, path=path)
        plan = change.plan
        if state == "absent":
            remove(path)
            return {"path": path, "state": "absent"}
        if plan["create"]:
            if state == "directory":
                files.make_directories(path, want)
            elif state == "touch":
                files.replace(path, iter(()), want, None)
            else:
                self._link(path, seen, info)
        if state != "link":
            found = files.look(path)
            if found is not None:
                files.set_attributes(path, want, files.drift(want, found))
        elif plan["target_attributes"]:
            files.set_attributes(seen["target"], want, plan["target_attributes"])
        elif plan["attributes"]:
            files.set_attributes(path, want, plan["attributes"])
        for one, changes in seen.get("inside") or []:
            files.set_attributes(one, want, changes)
        if plan["times"]:
            self._set_times(path, plan["times"])
        return self._result(path, seen)

    @staticmethod
    def _link(path: str, seen: Dict[str, Any], info: Optional[Dict[str, Any]]) -> None:
        temp = os.path.join(os.path.dirname(path), ".%s.opsctl-%d" % (os.path.basename(path)[:200], os.getpid()))
        try:
            if info is not None and info["type"] == "directory":
                os.rmdir(path)
            if os.path.lexists(temp):  # left by an agent that was killed here
                os.unlink(temp)
            if seen["state"] == "link":
                os.symlink(seen["src"], temp)
            else:
                os.link(os.path.join(os.path.dirname(path), seen["src"]), temp, follow_symlinks=False)
            os.rename(temp, path)
        except OSError as exc:
            raise files.os_fail(exc, "make the link", path) from None

    @staticmethod
    def _set_times(path: str, times: Dict[str, int]) -> None:
        info = files.look(path)
        assert info is not None
        now = time.time_ns()
        old = (int(info["atime_ns"]), int(info["mtime_ns"]))
        pair = [times.get(key, was) for key, was in zip(("atime_ns", "mtime_ns"), old)]
        pair = [now if value == -1 else value for value in pair]
        try:
            os.utime(path, ns=(pair[0], pair[1]), follow_symlinks=False)
        except OSError as exc:
            raise files.os_fail(exc, "set the times of", path) from None

    def report(self, args: Args, seen: Dict[str, Any]) -> Dict[str, Any]:
        if self.waits(args, seen):
            return {"path": seen["path"]}
        return self._result(seen["path"], seen)

    @staticmethod
    def _result(path: str, seen: Dict[str, Any]) -> Dict[str, Any]:
        out = files.report(path, files.look(path), "dest" if seen["state"] in ("link", "hard") else "path")
        if seen["state"] == "touch":
            out["dest"] = path  # Ansible says only this, the others of this kind `path`
        if "src" in seen:
            out["src"] = seen["src"]
        return out


def _change(path: str, before: Args, after: Args, writes: Any, needs: Any, **plan: Any) -> Change:
    def text(side: Args) -> str:
        return "".join("%s: %s\n" % (key, value) for key, value in sorted(side.items()) if value is not None)

    diff = {"before": text(before), "after": text(after), "before_header": path, "after_header": path}
    return Change(before, after, diff, writes, needs, files.unmet(needs), **plan)


def remove(path: str) -> None:
    """Remove a file, a link, or a directory with everything in it. Raises `Fail`."""
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            import shutil

            shutil.rmtree(path)
        else:
            os.unlink(path)
    except OSError as exc:
        if exc.errno != errno.ENOENT:
            raise files.os_fail(exc, "remove", exc.filename if isinstance(exc.filename, str) else path) from None


class Stat(Kind):
    """What a path is."""

    pure = True

    def watches(self, args: Args) -> Sequence[Pair]:
        return [("path", files.expand(args["path"]))]

    def probe(self, args: Args, node: Node) -> Dict[str, Any]:
        path = files.expand(args["path"])
        try:
            found = os.stat(path) if args.get("follow") else os.lstat(path)
        except OSError as exc:
            if exc.errno in (errno.ENOENT, errno.ENOTDIR):
                return {"stat": {"exists": False}}
            raise files.os_fail(exc, "look at", path) from None
        mode = found.st_mode
        kind = files.type_of(mode)
        out: Dict[str, Any] = {
            "exists": True, "path": path, "mode": files.octal(mode & 0o7777), "size": found.st_size,
            "uid": found.st_uid, "gid": found.st_gid, "inode": found.st_ino, "dev": found.st_dev,
            "nlink": found.st_nlink, "atime": found.st_atime, "mtime": found.st_mtime, "ctime": found.st_ctime,
            "pw_name": files.user_name(found.st_uid), "gr_name": files.group_name(found.st_gid),
            "isreg": kind == "file", "isdir": kind == "directory", "islnk": kind == "link", "isfifo": kind == "fifo",
            "issock": kind == "socket", "isblk": kind == "block", "ischr": kind == "char",
            "isuid": bool(mode & 0o4000), "isgid": bool(mode & 0o2000),
            "readable": os.access(path, os.R_OK), "writeable": os.access(path, os.W_OK),
            "executable": os.access(path, os.X_OK),
        }  # fmt: skip
        for shift, who in ((6, "usr"), (3, "grp"), (0, "oth")):
            for bit, letter in ((4, "r"), (2, "w"), (1, "x")):
                out[letter + who] = bool(mode >> shift & bit)
        if kind == "link":
            out["lnk_target"] = os.readlink(path)
            out["lnk_source"] = os.path.realpath(path)
        if kind == "file" and args.get("get_checksum", True) and out["readable"]:
            out["checksum"] = files.digest(path, args.get("checksum_algorithm", "sha1"))
        return {"stat": out}

    def decide(self, args: Args, seen: Dict[str, Any]) -> Optional[Change]:
        return None

    def report(self, args: Args, seen: Dict[str, Any]) -> Dict[str, Any]:
        return seen
