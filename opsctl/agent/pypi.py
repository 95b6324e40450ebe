"""Where packages come from: the indexes of a task, what pip is configured for, and a wheel fetched without pip."""

import hashlib
import html
import json
import os
import re
import urllib.parse
import urllib.request
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from . import requirements
from .kinds import Fail

#: PyTorch's own indexes, for installers that do not know `--torch-backend`.
TORCH = "https://download.pytorch.org/whl/"
_WHEEL = re.compile(r"(?P<name>[^-/]+)-(?P<version>[^-/]+)-(?P<python>[^-/]+)-none-any\.whl$")


class Sources(NamedTuple):
    """Where to look for packages. ``torch_backend`` is uv's (`auto`, `cpu`, `cu128`)."""

    index_url: str = ""
    extra_index_url: Tuple[str, ...] = ()
    find_links: Tuple[str, ...] = ()
    no_index: bool = False
    torch_backend: str = ""

    def for_pip(self) -> Dict[str, str]:
        """The variables that tell pip. Addresses may hold credentials: they are never arguments."""
        out: Dict[str, str] = {}
        extra = list(self.extra_index_url)
        if self.torch_backend:
            extra.append(TORCH + self.torch_backend)
        if self.index_url:
            out["PIP_INDEX_URL"] = self.index_url
        if extra:
            out["PIP_EXTRA_INDEX_URL"] = " ".join(extra)
        if self.find_links:
            out["PIP_FIND_LINKS"] = " ".join(self.find_links)
        if self.no_index:
            out["PIP_NO_INDEX"] = "1"
        return out

    def for_uv(self, config: Dict[str, str]) -> Dict[str, str]:
        """The variables that tell uv; what the task leaves open is taken from pip's ``config``, which uv ignores."""
        out: Dict[str, str] = {}
        index = self.index_url or config.get("index-url", "")
        extra = self.extra_index_url or tuple(config.get("extra-index-url", "").split())
        links = self.find_links or tuple(config.get("find-links", "").split())
        extra = tuple(url for url in extra if self.extra_index_url or not url.startswith("file:"))
        if index:
            out["UV_DEFAULT_INDEX"] = index
        if extra:
            out["UV_INDEX"] = " ".join(extra)
        if links:
            out["UV_FIND_LINKS"] = ",".join(links)
        if self.torch_backend:
            out["UV_TORCH_BACKEND"] = self.torch_backend
        if config.get("constraint"):
            out["UV_CONSTRAINT"] = " ".join(config["constraint"].split())
        if config.get("cert") and not os.environ.get("SSL_CERT_FILE"):
            out["SSL_CERT_FILE"] = config["cert"]
        return out


def pip_config(env: Dict[str, str]) -> Dict[str, str]:
    """What pip is configured for, by its files and by ``env``: the settings of `[global]` and `[install]`."""
    import configparser

    home = env.get("HOME") or os.path.expanduser("~")
    config_home = env.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    places = ["/etc/pip.conf"]
    places += [os.path.join(folder, "pip", "pip.conf") for folder in
               reversed((env.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":"))]  # fmt: skip
    places += [os.path.join(home, ".pip", "pip.conf"), os.path.join(config_home, "pip", "pip.conf")]
    if env.get("PIP_CONFIG_FILE"):
        places = [] if env["PIP_CONFIG_FILE"] == os.devnull else [*places, env["PIP_CONFIG_FILE"]]
    out: Dict[str, str] = {}
    for place in places:
        parser = configparser.RawConfigParser()
        try:
            if not parser.read(place, encoding="utf-8"):
                continue
        except (configparser.Error, OSError, UnicodeDecodeError):
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                out.update({name.replace("_", "-"): value.strip() for name, value in parser.items(section)})
    for name, value in env.items():
        if name.startswith("PIP_") and value:
            out[name[4:].lower().replace("_", "-")] = value
    return out


def fetch_wheel(name: str, python: str, sources: Sources, config: Dict[str, str], folder: str) -> str:
    """Fetch the newest pure wheel of ``name`` that runs on ``python`` from the index into ``folder``; its path.

    For nodes that have neither uv nor pip, so that there is nobody who would know an index by itself. Raises `Fail`.
    """
    index = (sources.index_url or config.get("index-url") or "").rstrip("/")
    if not index:
        raise Fail(
            "the node has neither uv nor pip, and no package index is named from which %s could be fetched" % name,
            hint="install python3-venv (Debian), python3-pip or uv there, or give the task an `index_url`",
        )
    page = "%s/%s/" % (index, name)
    try:
        listed = _listing(page, config)
    except (OSError, ValueError) as exc:
        raise Fail(
            "could not fetch %s, which is needed to install packages" % name, cause="%s: %s" % (page, exc),
            hint="check the node's way to the package index, or install pip or uv on it",
        ) from None  # fmt: skip
    best: Optional[Tuple[requirements.Key, str, str]] = None
    for url, wants, digest in listed:
        match = _WHEEL.match(urllib.parse.unquote(url.split("#")[0].rpartition("/")[2]))
        if match is None or "py3" not in match["python"] or not digest:
            continue
        try:
            key = requirements.version_key(match["version"])
            if requirements.is_pre(key) or (wants and not requirements.satisfies(python, wants)):
                continue
        except requirements.BadRequirement:
            continue
        if best is None or key > best[0]:
            best = (key, url, digest)
    if best is None:
        raise Fail("the index %s has no wheel of %s for Python %s" % (index, name, python))
    path = os.path.join(folder, urllib.parse.unquote(best[1].split("#")[0].rpartition("/")[2]))
    with _open(best[1], config) as answer:
        data = answer.read()
    if hashlib.sha256(data).hexdigest() != best[2]:
        raise Fail("%s is damaged: its checksum differs from the index's" % best[1])
    with open(path, "wb") as stream:
        stream.write(data)
    return path


def _open(url: str, config: Dict[str, str]) -> Any:
    import ssl

    context = ssl.create_default_context(cafile=config.get("cert") or None) if url.startswith("https") else None
    accept = "application/vnd.pypi.simple.v1+json, text/html;q=0.2"
    request = urllib.request.Request(url, headers={"Accept": accept, "User-Agent": "opsctl"})
    return urllib.request.urlopen(request, timeout=60, context=context)


def _listing(page: str, config: Dict[str, str]) -> List[Tuple[str, str, str]]:
    """(address, requires-python, sha256) of the files that a page of an index lists, in JSON or HTML."""
    with _open(page, config) as answer:
        text = answer.read().decode("utf-8", "replace")
        base = answer.geturl()
    if text.lstrip().startswith("{"):
        return [
            (urllib.parse.urljoin(base, one["url"]), one.get("requires-python") or "",
             (one.get("hashes") or {}).get("sha256", ""))
            for one in json.loads(text)["files"] if not one.get("yanked")
        ]  # fmt: skip
    out: List[Tuple[str, str, str]] = []
    for tag in re.findall(r"<a\s([^>]*)>", text):
        href = re.search(r"href=[\"']([^\"']+)[\"']", tag)
        if href is None or "data-yanked" in tag:
            continue
        wants = re.search(r"data-requires-python=[\"']([^\"']*)[\"']", tag)
        url, _, fragment = html.unescape(href.group(1)).partition("#")
        digest = fragment[7:] if fragment.startswith("sha256=") else ""
        out.append((urllib.parse.urljoin(base, url), html.unescape(wants.group(1)) if wants else "", digest))
    return out
