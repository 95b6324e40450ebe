"""dpkg's own record of what is installed, read from its status file: milliseconds, and no program is started."""

from __future__ import annotations

import fnmatch
import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

STATUS = "/var/lib/dpkg/status"


class Package:
    """One package as dpkg knows it. ``state`` is `installed`, `config-files`, `half-configured`, ..."""

    def __init__(self, fields: Dict[str, str]) -> None:
        self.name = fields.get("Package", "")
        self.version = fields.get("Version", "")
        self.arch = fields.get("Architecture", "")
        words = fields.get("Status", "").split()
        self.held = words[:1] == ["hold"]
        self.state = words[2] if len(words) == 3 else "not-installed"


class Status:
    """The packages of a status file. Lookups scan the text; nothing is parsed that is not asked for."""

    def __init__(self, data: bytes) -> None:
        self._data = b"\n\n" + data.strip(b"\n") + b"\n\n"

    def find(self, name: str, arch: Optional[str] = None) -> List[Package]:
        """All records of a package, one for each architecture that dpkg knows it in."""
        out = []
        needle = b"\nPackage: " + name.encode() + b"\n"
        at = self._data.find(needle)
        while at >= 0:
            package = self._record(at)
            if arch in (None, package.arch, "all") or package.arch == "all":
                out.append(package)
            at = self._data.find(needle, at + 1)
        return out

    def _record(self, at: int) -> Package:
        start = self._data.rfind(b"\n\n", 0, at + 1) + 2
        end = self._data.find(b"\n\n", at)
        fields = {}
        for line in self._data[start:end].decode("utf-8", "replace").split("\n"):
            name, colon, value = line.partition(":")
            if colon and not line.startswith(" "):
                fields[name] = value.strip()
        return Package(fields)

    def names(self, pattern: str) -> List[str]:
        """The installed packages whose name fits a pattern with `*`, `?`."""
        every = re.findall(rb"\nPackage: (\S+)\n", self._data)
        fitting = sorted(set(fnmatch.filter([name.decode() for name in every], pattern)))
        return [name for name in fitting if any(one.state != "not-installed" for one in self.find(name))]

    def providers(self, name: str) -> List[Package]:
        """The installed packages that provide a virtual one."""
        out = []
        pattern = rb"\nProvides:[^\n]*[ ,]" + re.escape(name.encode()) + rb"(?=[ ,:\n])"
        for match in re.finditer(pattern, self._data):
            package = self._record(match.start())
            if package.state == "installed":
                out.append(package)
        return out

    def broken(self) -> List[str]:
        """The packages that dpkg has begun to change and not finished."""
        whole = (b"installed", b"config-files", b"not-installed")
        found = re.finditer(rb"\nStatus: \S+ \S+ (\S+)\n", self._data)
        return [self._record(match.start()).name for match in found if match.group(1) not in whole]


class _Cache:
    def __init__(self) -> None:
        self._known: Optional[Tuple[Tuple[int, ...], Status]] = None

    def read(self, path: str = STATUS) -> Status:
        from .files import os_fail

        try:
            with open(path, "rb") as stream:
                found = os.fstat(stream.fileno())
                key = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
                if self._known is None or self._known[0] != key:
                    self._known = key, Status(stream.read())
        except OSError as exc:
            raise os_fail(exc, "read", path) from None
        return self._known[1]


#: The status of this node; read again only when the file has changed. Raises `Fail`.
read = _Cache().read
