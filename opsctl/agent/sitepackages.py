"""What is installed in a Python environment, read from its files: no interpreter is started."""

import json
import os
import re
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from . import requirements
from .requirements import BadRequirement, Requirement, normal

_INFO = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+?)(?:-py\d[\d.]*)?\.(?:dist-info|egg-info)$")


class Dist:
    """One installed distribution. Its metadata is read when it is asked for."""

    def __init__(self, name: str, version: str, path: str) -> None:
        self.name = name
        self.version = version
        self.path = path
        self._requires: Optional[List[Requirement]] = None

    def requires(self) -> List[Requirement]:
        """What it depends on. Entries that cannot be read are left out: the installer could read them."""
        if self._requires is None:
            self._requires = []
            for line in self._headers("Requires-Dist"):
                try:
                    self._requires.append(requirements.parse(line))
                except BadRequirement:
                    continue
        return self._requires

    def _headers(self, name: str) -> List[str]:
        out: List[str] = []
        path = os.path.join(self.path, "METADATA") if self.path.endswith(".dist-info") else self._egg_file()
        try:
            with open(path, encoding="utf-8", errors="replace") as stream:
                for line in stream:
                    if line in ("\n", "\r\n"):  # the description follows
                        break
                    if line.startswith(name + ":"):
                        out.append(line[len(name) + 1 :].strip())
        except OSError:
            pass
        return out

    def _egg_file(self) -> str:
        return os.path.join(self.path, "PKG-INFO") if os.path.isdir(self.path) else self.path

    def direct_url(self) -> Dict[str, Any]:
        """Where it was installed from, if not from an index (PEP 610); {} if from one."""
        try:
            with open(os.path.join(self.path, "direct_url.json"), encoding="utf-8") as stream:
                found = json.load(stream)
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def complete(self) -> bool:
        """Whether all files of its RECORD are there, and it has one. Compiled files do not count."""
        if not self.path.endswith(".dist-info"):
            return True
        root = os.path.dirname(self.path)
        try:
            with open(os.path.join(self.path, "RECORD"), encoding="utf-8") as stream:
                listed = [line.rsplit(",", 2) for line in stream if line.strip()]
        except (OSError, UnicodeDecodeError):
            return False
        for fields in listed:
            name = fields[0].strip('"')
            size = fields[2].strip() if len(fields) == 3 else ""
            if name.endswith(".pyc"):
                continue
            try:
                found = os.stat(os.path.join(root, name))
            except OSError:
                return False
            if size.isdigit() and int(size) != found.st_size:
                return False
        return True


class Site(NamedTuple):
    """An environment as its files show it. ``python`` is its version, `3.11.7`."""

    path: str
    python: str
    home: str
    folders: Tuple[str, ...]
    working: bool
    seeds: bool


def look(path: str) -> Optional[Site]:
    """The environment at ``path``; None if there is none. ``working`` is False if its interpreter is gone."""
    try:
        with open(os.path.join(path, "pyvenv.cfg"), encoding="utf-8", errors="replace") as stream:
            pairs = [line.partition("=") for line in stream]
    except OSError:
        return None
    settings = {key.strip().lower(): value.strip() for key, _, value in pairs}
    version = settings.get("version_info") or settings.get("version") or ""
    version = ".".join(version.split(".")[:3])
    folders: List[str] = []
    for lib in ("lib", "lib64"):
        try:
            for name in sorted(os.listdir(os.path.join(path, lib))):
                folder = os.path.join(path, lib, name, "site-packages")
                if name.startswith("python3") and os.path.isdir(folder):
                    if not any(os.path.samefile(folder, other) for other in folders):
                        folders.append(folder)
                    version = version or name[len("python") :]
        except OSError:
            continue
    python = os.path.join(path, "bin", "python")
    seeds = os.path.exists(os.path.join(path, "bin", "pip"))
    working = bool(folders) and os.access(python, os.X_OK)
    return Site(path, version, settings.get("home", ""), tuple(folders), working, seeds)


def installed(folders: Iterable[str]) -> Dict[str, Dist]:
    """Every distribution in the folders, by normalised name. The first folder wins."""
    out: Dict[str, Dist] = {}
    for folder in folders:
        try:
            entries = os.listdir(folder)
        except OSError:
            continue
        for entry in entries:
            match = _INFO.match(entry) if entry.endswith(("-info",)) else None
            if match is not None:
                name = normal(match["name"])
                out.setdefault(name, Dist(name, match["version"].replace("_", "-"), os.path.join(folder, entry)))
    return out


class Need(NamedTuple):
    """A requirement that is not met: ``root`` asked for it (itself or something that it needs), ``have`` is there."""

    requirement: Requirement
    root: str
    have: Optional[str]


def unmet(
    wanted: Iterable[Requirement], dists: Dict[str, Dist], values: Dict[str, str], deep: bool = True
) -> List[Need]:
    """What ``wanted`` asks for and is not there; with ``deep``, also what those need and is absent.

    A dependency that is there in a version other than asked is no need: a user may have overridden it, and the
    installer has accepted it.
    """
    out: List[Need] = []
    seen: Set[Tuple[str, Tuple[str, ...]]] = set()
    queue: List[Tuple[Requirement, str, bool]] = [
        (one, one.name or one.url, True) for one in wanted if requirements.applies(one, values)
    ]
    while queue:
        one, root, asked = queue.pop(0)
        dist = find(one, dists)
        if dist is None:
            out.append(Need(one, root, None))
            continue
        if asked and not _meets(one, dist):
            out.append(Need(one, root, dist.version))
            continue
        if not deep or (dist.name, one.extras) in seen:
            continue
        seen.add((dist.name, one.extras))
        extras = ("", *one.extras)
        for need in dist.requires():
            try:
                if requirements.applies(need, values, extras):
                    queue.append((need, root, False))
            except BadRequirement:
                continue
    return out


def find(one: Requirement, dists: Dict[str, Dist]) -> Optional[Dist]:
    """The installed distribution that a requirement means."""
    if one.name:
        return dists.get(one.name)
    for dist in dists.values():
        if _same_place(one, dist.direct_url()):
            return dist
    return None


def _meets(one: Requirement, dist: Dist) -> bool:
    if one.url:
        return _same_place(one, dist.direct_url())
    try:
        return not one.spec or requirements.satisfies(dist.version, one.spec)
    except BadRequirement:
        return True  # an installed version that is none of PEP 440's: the installer took it


def _same_place(one: Requirement, direct: Dict[str, Any]) -> bool:
    if not direct:
        return False
    url, _, _ = one.url.partition("#")
    vcs = re.match(r"(git|hg|svn|bzr)\+(.*)$", url)
    if vcs:
        place, _, revision = vcs.group(2).rpartition("@") if re.search(r"/[^/]*@[^/@]+$", vcs.group(2)) else (
            vcs.group(2), "", "",
        )  # fmt: skip
        info = direct.get("vcs_info") or {}
        same = str(direct.get("url", "")).rstrip("/") == place.rstrip("/")
        return same and revision in ("", info.get("requested_revision"), info.get("commit_id"))
    if one.editable != bool((direct.get("dir_info") or {}).get("editable")):
        return False
    return str(direct.get("url", "")).rstrip("/") == url.rstrip("/")
