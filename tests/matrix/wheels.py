"""Single files out of wheels on the package index, by ranged reads, kept in a cache directory.

A vLLM wheel has some 400 MB; the half dozen files that patch sets touch are taken out of it with a few MB of
HTTP range requests. pip does the work (its index configuration, its session, its lazy zip reader), so that the
tests reach whatever index the machine's pip reaches. What was read once is never asked for again: the cache is
``$OPSCTL_WHEEL_CACHE``, else ``opsctl-wheels`` in the user's cache directory. Where neither has a file, a test is
skipped, which says why and is counted.
"""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest


def _cache_root() -> Path:
    named = os.environ.get("OPSCTL_WHEEL_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "opsctl-wheels"


#: Where read files are kept between runs. Found when this is imported: a test has another home.
CACHE = _cache_root()


class Unreachable(Exception):
    """The package index gave no answer."""


def wheel_file(package: str, version: str, path: str) -> bytes | None:
    """The bytes of ``path`` in the wheel of ``package`` ``version``; None when the wheel has no such file."""
    kept = CACHE / f"{package}-{version}" / path
    absent = kept.with_name(kept.name + ".absent")
    if kept.is_file():
        return kept.read_bytes()
    if absent.is_file():
        return None
    from pip._internal.exceptions import NetworkConnectionError
    from pip._internal.network.lazy_wheel import HTTPRangeRequestUnsupported
    from pip._vendor.requests.exceptions import RequestException

    kept.parent.mkdir(parents=True, exist_ok=True)
    try:
        archive = _archive(package, version)
        if path not in archive.namelist():
            absent.touch()
            return None
        data = archive.read(path)
    except (Unreachable, NetworkConnectionError, HTTPRangeRequestUnsupported, RequestException) as exc:
        why = f"{type(exc).__name__}: {exc}"
        pytest.skip(f"{path} of {package} {version} is not in the cache {CACHE}, nor can the index be asked ({why})")
    part = kept.with_name(f"{kept.name}.part{os.getpid()}")
    part.write_bytes(data)
    part.replace(kept)
    return data


def record(package: str, version: str) -> bytes:
    """The wheel's RECORD, which names the hash of every file as shipped."""
    data = wheel_file(package, version, f"{package}-{version}.dist-info/RECORD")
    if data is None:
        raise LookupError(f"the wheel of {package} {version} has no RECORD")
    return data


def unpack(package: str, version: str, paths: list[str], root: Path) -> list[str]:
    """Lay those of ``paths`` that the wheel has below ``root``, with dist-info; returns what was there."""
    found = []
    for path in paths:
        data = wheel_file(package, version, path)
        if data is not None:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
            found.append(path)
    info = root / f"{package}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "RECORD").write_bytes(record(package, version))
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    return found


def sha256(data: bytes) -> str:
    """Hexadecimal sha256."""
    return hashlib.sha256(data).hexdigest()


@lru_cache(maxsize=1)
def _pip() -> tuple[Any, Any]:
    from pip._internal.commands.download import DownloadCommand

    command = DownloadCommand("download", "")
    options, _ = command.parse_args(["--only-binary=:all:"])
    session = command._build_session(options)
    return session, command._build_package_finder(options, session, ignore_requires_python=True)


@lru_cache(maxsize=8)
def links(package: str) -> dict[str, str]:
    """Version -> URL of one wheel of ``package``, for x86-64 where there are several."""
    from pip._internal.index.collector import parse_links
    from pip._internal.models.link import Link

    collector = _pip()[1]._link_collector
    out: dict[str, str] = {}
    for source in collector.search_scope.get_index_urls_locations(package):
        page = collector.fetch_response(Link(source))
        for link in parse_links(page) if page is not None else ():
            if link.is_wheel:
                version = link.filename.split("-")[1]
                if version not in out or ("x86_64" in link.filename and "x86_64" not in out[version]):
                    out[version] = link.url_without_fragment
    return out


@lru_cache(maxsize=4)
def _archive(package: str, version: str) -> ZipFile:
    from pip._internal.network.lazy_wheel import LazyZipOverHTTP

    url = links(package).get(version)
    if not links(package):
        raise Unreachable(f"no index answers for {package}")
    if url is None:
        raise LookupError(
            f"the index has no wheel of {package} {version}; it has {', '.join(sorted(links(package)))}"
        )
    return ZipFile(LazyZipOverHTTP(url, _pip()[0], 64 * 1024))
