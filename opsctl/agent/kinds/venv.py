"""`venv`: a Python environment and what is installed in it. What is there is read from its files, in milliseconds."""

import errno
import json
import os
import shutil
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

from .. import files, installers, requirements, sitepackages
from ..pypi import Sources
from ..requirements import BadRequirement, Requirement
from ..temporary import Folder
from . import Change, Fail, Kind, Pair

if TYPE_CHECKING:
    from ..node import Node

Args = Dict[str, Any]

#: In the environment's directory: whether opsctl made it, and whether it was finished.
MARKER = ".opsctl-venv.json"
#: What an old environment is called while a new one takes its place.
OLD = ".opsctl-old"
#: Packages that a lock file need not list.
SEEDS = frozenset({"pip", "setuptools", "wheel", "uv"})


class Venv(Kind):
    """An environment is there with its packages, or gone."""

    def watches(self, args: Args) -> Sequence[Pair]:
        sources = [args[name] for name in ("requirements", "lock") if args.get(name) and args["remote_src"]]
        return [("tree", files.expand(args["path"])), *(("path", files.expand(place)) for place in sources)]

    def probe(self, args: Args, node: "Node") -> Dict[str, Any]:
        path = os.path.abspath(files.expand(args["path"]))
        found = files.look(path, follow=True)
        site = sitepackages.look(path)
        marker = _marker(path)
        seen: Dict[str, Any] = {"path": path, "there": found is not None, "venv": site is not None, "marker": marker,
                                "unfinished": marker.get("state") == "installing"}  # fmt: skip
        empty = found is not None and found["type"] == "directory" and not _entries(path)
        if found is not None and site is None and not marker and not empty:
            raise Fail(
                "%s is no Python environment" % path, cause="it exists, and has no pyvenv.cfg",
                hint="choose another `path`, or remove it", path=path,
            )  # fmt: skip
        if args["state"] == "absent":
            return seen
        seen["wanted"], seen["files"] = _wanted(args)
        seen["refused"] = _refused(path)
        seen["python"] = site.python if site is not None else ""
        seen["working"] = site is not None and site.working
        seen["rebuild"] = seen["working"] and site is not None and not _python_fits(args.get("python"), site, marker)
        if seen["rebuild"] and not marker:
            raise Fail(
                "%s has Python %s, not %s, and opsctl did not make it" % (path, seen["python"], args["python"]),
                hint="remove it with `state: absent` first, or choose another `path`", path=path,
            )  # fmt: skip
        fresh = not seen["working"] or seen["rebuild"]
        if fresh and args["installer"] == "pip" and node.check:
            python = args.get("python") or ""
            if installers.find_python(python, installers.environment(node)) is None:
                raise installers.no_python(python)
        seen["dists"] = sitepackages.installed(site.folders) if site is not None and not fresh else {}
        seen.update(_compare(args, seen))
        if args["upgrade"] and not fresh and not seen["missing"] and not _rehearsed(args):
            seen["newer"] = _newer(args, seen, node)
        return seen

    def decide(self, args: Args, seen: Dict[str, Any]) -> Optional[Change]:
        return None if _rehearsed(args) else self._change(args, seen)

    def _change(self, args: Args, seen: Dict[str, Any]) -> Optional[Change]:
        path = seen["path"]
        if args["state"] == "absent":
            if not seen["there"]:
                return None
            return Change(path, None, None, [("path", path)], msg="remove the environment %s" % path)
        before: List[str] = []
        after: List[str] = []
        parts: List[str] = []
        if not seen["working"] or seen["rebuild"]:
            now = "python %s\n" % seen["python"] if seen["venv"] else ""
            before += [now] if now else []
            after.append("python %s\n" % (args.get("python") or "(the node's)"))
            parts.append("make the environment" if not seen["venv"] else "make the environment anew")
        elif seen["unfinished"]:
            parts.append("finish an interrupted installation")
        if seen["missing"]:
            parts.append("install %s" % _few([need["text"] for need in seen["missing"]]))
        for need in seen["missing"]:
            before += ["%s==%s\n" % (need["name"], need["have"])] if need["have"] else []
            after.append(need["text"] + "\n")
        if seen["extra"]:
            parts.append("remove %s" % _few(seen["extra"]))
            before += ["%s==%s\n" % (name, seen["dists"][name].version) for name in seen["extra"]]
        if seen["newer"]:
            parts.append("upgrade to %s" % _few(seen["newer"]))
            after += [text + "\n" for text in seen["newer"]]
        if not parts:
            return None
        if seen["refused"]:
            exc = PermissionError(errno.EACCES, "")
            raise files.os_fail(exc, "write in %s, to %s" % (seen["refused"], "; ".join(parts)), seen["refused"])
        diff = {"before": "".join(before), "after": "".join(after), "before_header": path, "after_header": path}
        return Change("".join(before), "".join(after), diff, [("path", path)], msg="; ".join(parts))

    def report(self, args: Args, seen: Dict[str, Any]) -> Dict[str, Any]:
        path = seen["path"]
        if args["state"] == "absent":
            return {"path": path}
        names = {one.name for one in seen["wanted"] if one.name}
        versions = {name: dist.version for name, dist in sorted(seen["dists"].items()) if name in names}
        left_out = self._change(args, seen) if _rehearsed(args) else None
        warnings = {"warnings": ["left out in a rehearsal: " + left_out.msg]} if left_out is not None else {}
        return {
            **warnings, "path": path, "python": os.path.join(path, "bin", "python"), "python_version": seen["python"],
            "installed": versions,
        }  # fmt: skip

    def apply(self, args: Args, seen: Dict[str, Any], change: Change, node: "Node") -> Dict[str, Any]:
        path = seen["path"]
        if args["state"] == "absent":
            _remove(path)
            shutil.rmtree(path + OLD, ignore_errors=True)
            return {"path": path}
        installer = installers.choose(args["installer"], node, _sources(args))
        fresh = not seen["working"] or seen["rebuild"]
        old = path + OLD
        if fresh and seen["venv"] and not seen["unfinished"]:
            shutil.rmtree(old, ignore_errors=True)
            os.rename(path, old)  # kept until the new one is complete
        try:
            _build(args, seen, installer, node, fresh)
        except BaseException:
            if os.path.isdir(old):
                shutil.rmtree(path, ignore_errors=True)
                os.rename(old, path)
            raise
        shutil.rmtree(old, ignore_errors=True)
        return {**self.report(args, _again(args, seen)), "installer": installer.name}


def _rehearsed(args: Args) -> bool:
    """Whether nothing is to be made or installed: the servers that need the environment are not started either."""
    return bool(args.get("rehearse")) and args["state"] == "present"


def _build(args: Args, seen: Dict[str, Any], installer: installers.Installer, node: "Node", fresh: bool) -> None:
    path = seen["path"]
    try:
        os.makedirs(path, exist_ok=True)
        _mark(path, args, "installing")
    except OSError as exc:
        raise files.os_fail(exc, "make the environment", path) from None
    if fresh:
        node.progress("making the environment")
        installer.create(path, args.get("python") or "", args["system_site_packages"])
    if seen["unfinished"]:
        _drop_torn(path)
    with Folder(node.state_dir, "venv-") as folder:
        for work in _works(args, seen, folder):
            installer.install(path, work)
    after = _again(args, seen)
    if after["extra"]:
        installer.uninstall(path, after["extra"])
    roots = [need for need in after["missing"] if need["root"]]
    if roots:
        raise Fail(
            "%s ended well, but %s" % (installer.name, "; ".join(_still(need) for need in roots)),
            hint="check markers and names of these requirements", path=path,
        )  # fmt: skip
    # What the installer leaves out (by an override of its own) is not asked for again.
    _mark(path, args, "done", sorted(need["name"] for need in after["missing"]))


def _still(need: Dict[str, Any]) -> str:
    return "%s is %s" % (need["text"], "at version %s" % need["have"] if need["have"] else "not there")


def _works(args: Args, seen: Dict[str, Any], folder: str) -> List[installers.Work]:
    """What is to be installed, one step for the lock file and one for the rest."""
    out: List[installers.Work] = []
    extra = args.get("installer_args") or []
    sides = seen["files"]
    for name in ("lock", "requirements"):
        text = sides.get(name)
        if name == "requirements":
            text = (text or "") + "".join("\n" + one for one in sides["packages"])
        if not text or not text.strip():
            continue
        file = os.path.join(folder, name + ".txt")
        if name in sides["places"] and not (name == "requirements" and sides["packages"]):
            file = sides["places"][name]  # as it is: what it includes lies beside it
        else:
            if name in sides["places"]:
                text = "-r %s" % sides["places"][name] + "".join("\n" + one for one in sides["packages"])
            with open(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as stream:
                stream.write(text + "\n")
        words = [*extra]
        if sides.get("constraints") and name == "requirements":
            constraints = os.path.join(folder, "constraints.txt")
            with open(os.open(constraints, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as stream:
                stream.write(sides["constraints"])
            words += ["-c", constraints]
        deps = name != "lock" and not args["no_deps"]
        out.append(installers.Work(file, deps, bool(args["upgrade"]) and name != "lock", words))
    return out


def _newer(args: Args, seen: Dict[str, Any], node: "Node") -> List[str]:
    installer = installers.choose(args["installer"], node, _sources(args))
    out: List[str] = []
    with Folder(node.state_dir, "venv-") as folder:
        for work in _works(args, seen, folder):
            out += installer.newer(seen["path"], work) if work.upgrade else []
    return out


# What is wanted and what is there


def _entries(path: str) -> List[str]:
    try:
        return os.listdir(path)
    except OSError as exc:
        raise files.os_fail(exc, "look into", path) from None


def _refused(path: str) -> str:
    """The directory that this user may not write in and would have to; '' if there is none."""
    place = path
    while not os.path.isdir(place) and place != os.path.dirname(place):
        place = os.path.dirname(place)
    return "" if os.access(place, os.W_OK | os.X_OK) else place


def _wanted(args: Args) -> "tuple[List[Requirement], Dict[str, Any]]":
    """The requirements of all sources, and the texts they come from. Raises `Fail`."""
    sides: Dict[str, Any] = {"places": {}, "constraints": args.get("constraints_content") or ""}
    try:
        sides["packages"] = requirements.as_list(args.get("packages"))
    except BadRequirement as exc:
        raise Fail("argument `packages`: %s" % exc) from None
    for name in ("requirements", "lock"):
        if args.get(name + "_content") is not None:
            sides[name] = args[name + "_content"]
        elif args.get(name):
            place = os.path.abspath(files.expand(args[name]))
            sides["places"][name] = place
            sides[name] = "\n".join(_included(place, 0))
    out: List[Requirement] = []
    for text in [*sides["packages"], *_lines(sides.get("requirements")), *_lines(sides.get("lock"))]:
        try:
            out.append(requirements.parse(text))
        except BadRequirement as exc:
            raise Fail("a requirement cannot be read: %s" % exc) from None
    return out, sides


def _lines(text: Optional[str]) -> List[str]:
    return requirements.lines_of(text).requirements if text else []


def _included(place: str, depth: int) -> List[str]:
    """The requirement lines of a file on the node, with those of the files that it includes."""
    if depth > 10:
        raise Fail("%s includes itself" % place)
    found = requirements.lines_of(files.read(place).decode("utf-8", "replace"))
    out = list(found.requirements)
    for option in found.options:
        words = option.replace("=", " ", 1).split(None, 1)
        if words[0] in ("-r", "--requirement") and len(words) == 2:
            out += _included(os.path.join(os.path.dirname(place), words[1].strip()), depth + 1)
    return out


def _compare(args: Args, seen: Dict[str, Any]) -> Dict[str, Any]:
    """What is missing, what is too much; nothing is newer before it was asked."""
    dists = seen["dists"]
    values = requirements.environment(seen["python"] or "3.12")
    locked = bool(args.get("lock"))
    needs = sitepackages.unmet(seen["wanted"], dists, values, deep=not locked and not args["no_deps"])
    known = set(seen["marker"].get("unmet") or ())
    missing = []
    for need in needs:
        root = need.requirement in seen["wanted"]
        if root or need.requirement.name not in known:
            missing.append({
                "name": need.requirement.name, "root": root, "have": need.have,
                "text": requirements.masked(need.requirement.text.partition(";")[0].strip()),
            })  # fmt: skip
    extra: List[str] = []
    if locked:
        names = {one.name for one in seen["wanted"]} | SEEDS
        places = {dist.name for dist in (sitepackages.find(one, dists) for one in seen["wanted"]) if dist}
        extra = sorted(name for name in dists if name not in names and name not in places)
    return {"missing": missing, "extra": extra, "newer": []}


def _again(args: Args, seen: Dict[str, Any]) -> Dict[str, Any]:
    """``seen`` after something was installed."""
    site = sitepackages.look(seen["path"])
    now = dict(seen)
    now["python"] = site.python if site is not None else ""
    now["dists"] = sitepackages.installed(site.folders) if site is not None else {}
    now["marker"] = {}
    now.update(_compare(args, now))
    return now


def _python_fits(wanted: Optional[str], site: sitepackages.Site, marker: Dict[str, Any]) -> bool:
    """Whether an environment's Python is the one that is asked for."""
    if not wanted or marker.get("python") == wanted:
        return True
    if wanted[0].isdigit():
        return (site.python + ".").startswith(wanted + ".")
    if "/" in wanted:
        place = os.path.realpath(files.expand(wanted))
        return os.path.realpath(os.path.join(site.path, "bin", "python")) == place
    if wanted.startswith("python") and wanted[6:]:
        return (site.python + ".").startswith(wanted[6:] + ".")
    return marker.get("python") is None or not marker


def _sources(args: Args) -> Sources:
    return Sources(
        args.get("index_url") or "", tuple(args.get("extra_index_url") or ()), tuple(args.get("find_links") or ()),
        bool(args["no_index"]), args.get("torch_backend") or "",
    )  # fmt: skip


# The marker


def _marker(path: str) -> Dict[str, Any]:
    try:
        with open(os.path.join(path, MARKER), encoding="utf-8") as stream:
            found = json.load(stream)
    except OSError:
        return {}
    except ValueError:
        return {"state": "installing"}  # cut off while it was written
    return found if isinstance(found, dict) else {}


def _mark(path: str, args: Args, state: str, unmet: Sequence[str] = ()) -> None:
    content = {"format": 1, "state": state, "python": args.get("python") or "", "unmet": list(unmet)}
    staged = os.path.join(path, MARKER + ".new")
    with open(staged, "w", encoding="utf-8") as stream:
        json.dump(content, stream)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(staged, os.path.join(path, MARKER))


def _drop_torn(path: str) -> None:
    """Forget distributions that an interrupted installer left without all their files, so that they come again."""
    site = sitepackages.look(path)
    for dist in sitepackages.installed(site.folders if site is not None else ()).values():
        if not dist.complete():
            shutil.rmtree(dist.path, ignore_errors=True)


def _remove(path: str) -> None:
    try:
        if os.path.islink(path):
            os.unlink(path)
        else:
            shutil.rmtree(path)
    except OSError as exc:
        raise files.os_fail(exc, "remove", exc.filename or path) from None


def _few(items: Sequence[str]) -> str:
    """Some of many, in words."""
    shown = ", ".join(items[:6])
    return shown if len(items) <= 6 else "%s and %d more" % (shown, len(items) - 6)
