"""Finding or fetching an installer on nodes that have less and less: no uv, no ensurepip, no pip at all."""

from __future__ import annotations

import hashlib
import http.server
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent import installers, pypi
from opsctl.agent.kinds import Fail
from opsctl.agent.node import Node
from opsctl.agent.pypi import Sources
from tests.support.wheels import wheel
from tests.unit.agent.support import twice


def bundled() -> Path:
    """A wheel of pip: the one that Python brings, or, where Debian has taken it out, the index's."""
    found = importlib.util.find_spec("ensurepip")
    if found is not None and found.origin is not None:
        for path in (Path(found.origin).parent / "_bundled").glob("pip-*.whl"):
            return path
    folder = tempfile.mkdtemp()
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, "pip"], check=True)
    return next(Path(folder).glob("pip-*.whl"))


BUNDLED = bundled()

#: A Python as Debian ships it without python3-venv and python3-pip: `venv` works only without pip.
POOR = """\
#!/bin/sh
case "$*" in
*"-m pip"*) echo "No module named pip" >&2; exit 1;;
*"--without-pip"*) ;;
*"-m venv"*) eval "last=\\${$#}"; mkdir -p "$last/bin"; echo "ensurepip is not available" >&2; exit 1;;
esac
exec %s "$@"
"""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A package index on loopback; its `pages` can be changed, `url` is its address."""
    state: dict[str, Any] = {"pages": {}, "files": {BUNDLED.name: BUNDLED.read_bytes()}}
    digest = hashlib.sha256(BUNDLED.read_bytes()).hexdigest()
    listed = [
        {"url": f"../../files/{BUNDLED.name}", "hashes": {"sha256": digest}, "requires-python": ">=3.7"},
        {"url": "../../files/pip-99.0-py3-none-any.whl", "hashes": {"sha256": digest}, "requires-python": ">=9"},
        {"url": "../../files/pip-98.0-py3-none-any.whl", "hashes": {"sha256": digest}, "yanked": "broken"},
        {"url": "../../files/pip-97.0rc1-py3-none-any.whl", "hashes": {"sha256": digest}},
        {"url": "../../files/pip-96.0.tar.gz", "hashes": {"sha256": digest}},
    ]
    state["pages"]["/simple/pip/"] = json.dumps({"files": listed})

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = state["files"].get(self.path.rpartition("/")[2]) or state["pages"].get(self.path, "").encode()
            self.send_response(200 if data else 404)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        state["url"] = f"http://127.0.0.1:{server.server_address[1]}/simple"
        yield state
        server.shutdown()


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node whose only Python is poor, without uv and without a pip configuration."""
    folder = tmp_path / "bin"
    folder.mkdir()
    python = folder / "python3"
    python.write_text(POOR % sys.executable)
    python.chmod(0o755)
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(installers, "UV_PLACES", ())
    monkeypatch.setattr(installers, "_private", lambda node: "")
    return Node(state_dir=str(tmp_path / "state"))


def test_a_node_without_pip_and_ensurepip_gets_its_environment(
    bare: Node, index: dict[str, Any], tmp_path: Path
) -> None:
    """pip itself is fetched from the index, checked, and run from its wheel against an environment without pip."""
    wheel(tmp_path / "wheels", "alpha", "1.0")
    args = {
        "path": str(tmp_path / "env"), "packages": "alpha", "index_url": index["url"], "python": sys.executable,
        "find_links": str(tmp_path / "wheels"),
    }  # fmt: skip
    done = twice("venv", args, bare)
    assert done.result["installer"] == "pip" and done.result["installed"] == {"alpha": "1.0"}
    assert not (tmp_path / "env/bin/pip").exists()
    assert [path.name for path in (tmp_path / "state/tools/pip").iterdir()] == [BUNDLED.name]


def test_uv_is_demanded_in_vain_with_the_reason(bare: Node, index: dict[str, Any]) -> None:
    with pytest.raises(Fail, match="uv is not on this node and could not be fetched") as caught:
        installers.choose("uv", bare, Sources(index_url=index["url"]))
    assert "installer: pip" in caught.value.hint
    with pytest.raises(Fail, match="could not be fetched"):
        installers.choose("auto", bare, Sources(torch_backend="auto"))
    assert installers.choose("auto", bare, Sources()).name == "pip"


def test_an_index_of_html_is_read_too(index: dict[str, Any], tmp_path: Path) -> None:
    digest = hashlib.sha256(BUNDLED.read_bytes()).hexdigest()
    index["pages"]["/simple/pip/"] = (
        f'<html><a href="../../files/pip-9.0-py3-none-any.whl#sha256={digest}" data-yanked="">x</a>'
        f"<a href='../../files/{BUNDLED.name}#sha256={digest}' data-requires-python='&gt;=3.7'>x</a>"
        '<a href="../../files/pip-90-py3-none-any.whl">no checksum</a></html>'
    )
    path = pypi.fetch_wheel("pip", "3.11", Sources(index_url=index["url"]), {}, str(tmp_path))
    assert Path(path).read_bytes() == BUNDLED.read_bytes()


def test_damaged_missing_and_unreachable_are_told_apart(index: dict[str, Any], tmp_path: Path) -> None:
    sources = Sources(index_url=index["url"])
    index["files"][BUNDLED.name] = b"something else"
    with pytest.raises(Fail, match="damaged"):
        pypi.fetch_wheel("pip", "3.11", sources, {}, str(tmp_path))
    with pytest.raises(Fail, match=r"no wheel of pip for Python 3\.6"):
        pypi.fetch_wheel("pip", "3.6", sources, {}, str(tmp_path))
    with pytest.raises(Fail, match="could not fetch nothing") as caught:
        pypi.fetch_wheel("nothing", "3.11", sources, {}, str(tmp_path))
    assert "404" in caught.value.cause
    with pytest.raises(Fail) as caught:
        pypi.fetch_wheel("pip", "3.11", Sources(index_url="http://127.0.0.1:9"), {}, str(tmp_path))
    assert "refused" in caught.value.cause and "index" in caught.value.hint
    assert not list(tmp_path.iterdir())


def test_pythons_are_found_by_version_name_and_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert installers.find_python(sys.executable, env) == sys.executable
    assert installers.find_python("", env) is not None
    assert installers.find_python("/no/python", env) is None and installers.find_python("3.99", env) is None
    liar = tmp_path / f"python{version}"
    liar.write_text("#!/bin/sh\necho 2.7.18\n")
    liar.chmod(0o755)
    found = installers.find_python(version, {"PATH": str(tmp_path), "HOME": "/"})
    assert found != str(liar), "a program of that name is no proof of its version"


def test_pip_gets_torchs_index_and_uv_its_backend() -> None:
    sources = Sources(extra_index_url=("https://a.example",), torch_backend="cpu")
    assert sources.for_pip()["PIP_EXTRA_INDEX_URL"] == "https://a.example https://download.pytorch.org/whl/cpu"
    assert sources.for_uv({})["UV_TORCH_BACKEND"] == "cpu" and "pytorch" not in str(sources.for_uv({}))


def test_the_configuration_of_pip_is_read_from_its_files(tmp_path: Path) -> None:
    """The later file wins, `[install]` over `[global]`, the environment over all; a broken file is left out."""
    home = tmp_path / "home"
    (home / ".config/pip").mkdir(parents=True)
    (home / ".config/pip/pip.conf").write_text(
        "[global]\nindex-url = https://one\ntrusted_host = a\n[install]\nno-cache = 1\n"
    )
    (tmp_path / "broken.conf").write_text("no section\n")
    env = {"HOME": str(home), "XDG_CONFIG_DIRS": str(tmp_path), "PIP_CONFIG_FILE": str(tmp_path / "broken.conf")}
    found = pypi.pip_config(env)
    assert found["index-url"] == "https://one" and found["trusted-host"] == "a" and found["no-cache"] == "1"
    assert pypi.pip_config({**env, "PIP_INDEX_URL": "https://two"})["index-url"] == "https://two"
    assert "index-url" not in pypi.pip_config({**env, "PIP_CONFIG_FILE": os.devnull})
