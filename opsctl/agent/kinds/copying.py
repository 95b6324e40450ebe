"""`copy` and `template`: content, a file or a tree put in its place on the node."""

from __future__ import annotations

import os

from .. import files
from . import Change, Fail, Kind
from .files import remove

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Sequence

    from ..node import Node
    from . import Pair

    Args = Dict[str, Any]



class Source:
    """Where content comes from: given inline, staged under its sha256, or a file on the node."""

    def __init__(self, args: Args, near: str = "") -> None:
        self.near = near  # what is staged lies beside it, on the same file system
        self.content: Optional[bytes] = None
        self.blob: Optional[str] = args.get("blob")
        self.path = ""
        if "content" in args:
            self.content = args["content"].encode("utf-8", "surrogateescape")
        elif self.blob is None:
            self.path = files.expand(args["src"])

    def sha256(self) -> str:
        if self.content is not None:
            return files.digest_of(self.content, "sha256")
        return self.blob if self.blob is not None else files.digest(self.path, "sha256")

    def chunks(self, node: Node) -> Iterator[bytes]:
        return iter((self.content,)) if self.content is not None else files.chunks(self.staged(node))

    def same(self, path: str, info: Dict[str, Any]) -> bool:
        """Whether the file at ``path`` has this content; sizes are compared before anything is read."""
        if self.content is not None:
            return bool(len(self.content) == info["size"] and files.read(path) == self.content)
        return self.sha256() == files.digest(path, "sha256")

    def staged(self, node: Node) -> str:
        """The file that has the content. Raises `Fail` when it has not arrived."""
        if self.blob is None:
            return self.path
        try:
            return node.blob(self.blob, self.near)
        except KeyError:
            raise Fail("the content %s has not arrived on the node" % self.blob) from None

    def beside(self, path: str, node: Node) -> str:
        """The staged file, if it lies where ``path`` does and can be moved there; else an empty string."""
        if self.blob is None:
            return ""
        staged = self.staged(node)
        return staged if os.path.dirname(staged) == os.path.dirname(path) else ""

    def start(self, node: Node) -> bytes:
        """As much as a diff can show, and one byte more."""
        if self.content is not None:
            return self.content
        return files.read(self.staged(node), files.DIFF_LIMIT + 1)


class Copy(Kind):
    """A file or tree with given content."""

    def watches(self, args: Args) -> Sequence[Pair]:
        dest = files.expand(args["dest"])
        out = [("tree" if "tree" in args else "path", dest)]
        if "name" in args and "tree" not in args:
            out.append(("path", os.path.join(dest, args["name"])))
        if args.get("remote_src") and args.get("src"):
            out += [("tree", dest), ("tree", files.expand(args["src"]))]
        return out

    def probe(self, args: Args, node: Node) -> Dict[str, Any]:
        dest = files.expand(args["dest"])
        want = files.wanted(args)
        seen: Dict[str, Any] = {"want": want, "dest": dest, "check": node.check}
        if args.get("remote_src") and args.get("src"):
            self._probe_remote(args, seen)
        if "tree" in args or "tree" in seen:
            seen["entries"] = self._probe_tree(args, seen)
            return seen
        folder = dest.endswith("/") or os.path.isdir(dest)
        if folder and "name" not in args and "name" not in seen:
            raise Fail("%s is a directory: `dest` must be the file" % dest, path=dest)
        path = os.path.join(dest, args.get("name") or seen["name"]) if folder else dest
        seen["make"] = dest.endswith("/")  # the directory is made, as Ansible does
        info = files.look(path)
        if info is not None and info["type"] == "link" and args.get("follow"):
            path = os.path.realpath(path)
            info = files.look(path)
        if info is not None and info["type"] == "directory":
            raise Fail("%s is a directory, not a file" % path, needs=[("path", path)], path=path)
        source = Source(args, path)
        seen.update(path=path, info=info, needs=[] if seen["make"] else files.parent_needs(path))
        seen["same"] = info is not None and info["type"] == "file" and source.same(path, info)
        if node.diff and not seen["same"]:
            plain = info is not None and info["type"] == "file"
            seen["old"] = files.read(path, files.DIFF_LIMIT + 1) if plain else None
            # Check mode transfers nothing, and without its directory the content has no place yet.
            seen["unseen"] = source.blob is not None and (node.check or not os.path.isdir(os.path.dirname(path)))
            seen["new"] = b"" if seen["unseen"] else source.start(node)
        return seen

    @staticmethod
    def _probe_remote(args: Args, seen: Dict[str, Any]) -> None:
        src = files.expand(args["src"])
        info = files.look(src, follow=True)
        if info is None:
            raise Fail("the source %s does not exist on the node" % src, needs=[("path", src)], src=src)
        seen["name"] = os.path.basename(src.rstrip("/"))
        if info["type"] == "directory":
            seen["tree"], seen["is_inside"] = tree_of(src), src.endswith("/")
        elif info["type"] != "file":
            raise Fail("the source %s is a %s, not a file" % (src, info["type"]), src=src)
        elif args.get("mode") == "preserve":
            seen["want"]["mode"] = files.octal(info["mode"])

    def _probe_tree(self, args: Args, seen: Dict[str, Any]) -> List[Dict[str, Any]]:
        """Each entry of the tree beside what is there now."""
        entries = args.get("tree") or seen["tree"]
        name = args.get("name") or seen["name"]
        inside = args.get("inside", seen.get("is_inside", False))
        root = seen["dest"].rstrip("/") or "/"
        seen["path"] = root = root if inside else os.path.join(root, name)
        folder_want = dict(seen["want"], mode=args.get("directory_mode"))
        out = []
        for entry in [{"path": "", "type": "dir", "mode": "0755"}, *entries]:
            path = os.path.join(root, entry["path"]) if entry["path"] else root
            preserve = args.get("mode") == "preserve"
            want = folder_want if entry["type"] == "dir" else seen["want"]
            if preserve and entry["type"] != "link":
                want = dict(want, mode=want["mode"] if want["mode"] not in (None, "preserve") else entry["mode"])
            info = files.look(path)
            if info is not None and info["type"] == "link" and args.get("follow"):
                info = files.look(path, follow=True)
            same = info is not None
            if info is not None and entry["type"] == "file":
                same = info["type"] == "file" and (not args.get("force", True) or Source(entry).same(path, info))
            elif info is not None and entry["type"] == "link":
                same = info["type"] == "link" and info["target"] == entry["target"]
            elif info is not None and info["type"] != "directory":
                raise Fail("%s is a %s, not a directory" % (path, info["type"]), needs=[("path", path)], path=path)
            if info is not None and info["type"] == "directory" and entry["type"] != "dir":
                raise Fail("%s is a directory, not a %s" % (path, entry["type"]), needs=[("path", path)], path=path)
            out.append({"entry": entry, "path": path, "info": info, "want": want, "same": same})
        return out

    def decide(self, args: Args, seen: Dict[str, Any]) -> Optional[Change]:
        if "entries" in seen:
            return self._decide_tree(args, seen)
        path, info, want = seen["path"], seen["info"], seen["want"]
        if info is not None and not args.get("force", True):
            return None
        drift = files.drift(want, info) if info is not None and info["type"] == "file" else {}
        if seen["same"] and not drift:
            return None
        diff = files.text_diff(path, seen.get("old"), seen.get("new")) if "new" in seen else {}
        if seen.get("unseen"):
            diff.update(before="", after="", note="the new content is not transferred yet")
        if drift:
            diff["attributes"] = {name: list(pair) for name, pair in drift.items()}
        before = {"state": "absent" if info is None else info["type"]}
        needs = ([] if info is not None else seen["needs"]) + want["needs"]
        return Change(before, {"state": "file"}, diff or None, [("path", path)], needs, files.unmet(needs), drift=drift)

    @staticmethod
    def _decide_tree(args: Args, seen: Dict[str, Any]) -> Optional[Change]:
        todo = []
        for one in seen["entries"]:
            drift = files.drift(one["want"], one["info"]) if one["info"] is not None and one["same"] else {}
            if not one["same"] or drift:
                todo.append((one, drift))
        if not todo:
            return None
        names = [one["path"] for one, _ in todo]
        before = [one["path"] for one, _ in todo if one["info"] is not None] or None
        diff = {"before": "", "after": "".join(name + "\n" for name in names)}
        diff.update(before_header=seen["path"], after_header=seen["path"])
        needs = seen["want"]["needs"]
        return Change(before, names, diff, [("path", seen["path"])], needs, files.unmet(needs), todo=todo)

    def apply(self, args: Args, seen: Dict[str, Any], change: Change, node: Node) -> Dict[str, Any]:
        path = seen["path"]
        if change.needs:
            folder = os.path.dirname(path)
            hint = "make it first: `file: path=%s state=directory`" % folder if ("path", folder) in change.needs else ""
            raise Fail("cannot write %s: %s" % (path, change.unmet), needs=change.needs, hint=hint, path=path)
        if "entries" in seen:
            return self._apply_tree(args, seen, change, node)
        kept = None
        if seen["same"]:
            files.set_attributes(path, seen["want"], change.plan["drift"])
        else:
            if seen["make"]:
                plain = dict(seen["want"], mode=args.get("directory_mode"))
                files.make_directories(os.path.dirname(path), plain)
            source = Source(args, path)
            kept = self._write(args, path, source, seen["want"], seen["info"], node)
        out = self.report(args, seen)
        if kept is not None:
            out["backup_file"] = kept
        return out

    @staticmethod
    def _write(args: Args, path: str, source: Source, want: Args, info: Any, node: Node) -> Optional[str]:
        wanted_sha1 = args.get("checksum")

        def validate(temp: str) -> None:
            found = files.digest(temp, "sha1") if wanted_sha1 else ""
            if wanted_sha1 and found != wanted_sha1.lower():
                raise Fail("the content for %s has the SHA-1 %s, not %s" % (path, found, wanted_sha1))
            if args.get("validate"):
                check_new(args["validate"], temp, path, node)

        staged = source.beside(path, node)
        data = iter(()) if staged else source.chunks(node)
        kept = args.get("backup", False)
        return files.replace(path, data, want, info, staged=staged, backup=kept, validate=validate)

    def _apply_tree(self, args: Args, seen: Dict[str, Any], change: Change, node: Node) -> Dict[str, Any]:
        for one, drift in change.plan["todo"]:
            entry, path, want = one["entry"], one["path"], one["want"]
            if one["same"]:
                files.set_attributes(path, want, drift)
            elif entry["type"] == "dir":
                files.make_directories(path, want)
            elif entry["type"] == "file":
                self._write(args, path, Source(entry, path), want, one["info"], node)
            else:
                if one["info"] is not None:
                    remove(path)
                try:
                    os.symlink(entry["target"], path)
                except OSError as exc:
                    raise files.os_fail(exc, "make the link", path) from None
        return self.report(args, seen)

    def report(self, args: Args, seen: Dict[str, Any]) -> Dict[str, Any]:
        if self.waits(args, seen):
            return {"dest": seen["path"]}
        out = files.report(seen["path"], files.look(seen["path"]), "dest")
        if args.get("src"):
            out["src"] = args["src"]
        if out["state"] == "file":
            out["checksum"] = args.get("sha1") or files.digest(seen["path"], "sha1")
        return out


class Template(Copy):
    """A rendered template: `content` is there by the time the task runs."""


def tree_of(root: str) -> List[Dict[str, Any]]:
    """The entries of a directory on the node, parents first; links stay links."""
    out: List[Dict[str, Any]] = []

    def walk(folder: str, prefix: str) -> None:
        try:
            names = sorted(os.listdir(folder))
        except OSError as exc:
            raise files.os_fail(exc, "list", folder) from None
        for name in names:
            path, rel = os.path.join(folder, name), prefix + name
            info = files.look(path)
            if info is None:
                continue
            if info["type"] == "link":
                out.append({"path": rel, "type": "link", "target": info["target"], "mode": "0777"})
            elif info["type"] == "directory":
                out.append({"path": rel, "type": "dir", "mode": files.octal(info["mode"])})
                walk(path, rel + "/")
            elif info["type"] == "file":
                out.append({"path": rel, "type": "file", "mode": files.octal(info["mode"]), "src": path})

    walk(root, "")
    return out


def check_new(command: str, temp: str, path: str, node: Node) -> None:
    """Run a `validate` command on the new content; the old file stays if it fails. Raises `Fail`."""
    import shlex

    if "%s" not in command:
        raise Fail("`validate` needs `%%s` where the new file's path goes: %r" % command)
    done = node.run([word.replace("%s", temp) for word in shlex.split(command)])
    if done.rc != 0:
        told = done.tail(6).replace(temp, path)
        raise Fail(
            "the new content for %s did not pass `%s` (%s)" % (path, command, done.why()),
            cause=told, hint="the old file is untouched", path=path,
            rc=done.rc, stdout=done.stdout, stderr=done.stderr,
        )  # fmt: skip
