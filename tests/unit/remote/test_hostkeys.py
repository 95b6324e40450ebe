"""known_hosts without a server: the syntax, and the cost with thousands of lines."""

from __future__ import annotations

import base64
import hmac
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from opsctl.errors import HostKeyChanged
from opsctl.remote import hostkeys
from opsctl.remote.hostkeys import HostKeyCheck, HostKeyUnknown, KnownHosts, ServerKey, line_for
from opsctl.remote.settings import Policy


def key(number: int) -> ServerKey:
    """A made-up ed25519 key."""
    blob = b"\0\0\0\x0bssh-ed25519\0\0\0 " + number.to_bytes(32, "big")
    return ServerKey("ssh-ed25519", blob)


def check(path: Path, name: str, *, policy: Policy = "strict", known: KnownHosts | None = None) -> HostKeyCheck:
    """The check of one host against one file."""
    return HostKeyCheck(
        known=known or KnownHosts(), policy=policy, name=name, host="n1", where="me@n1", user_files=(str(path),),
        global_files=(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("names", "name", "known"),
    [
        ("box", "box", True),
        ("Box.Example.ORG", "box.example.org", True),
        ("a,box,c", "box", True),
        ("box", "boxes", False),
        ("box", "[box]:2222", False),
        ("[box]:2222", "[box]:2222", True),
        ("[10.0.0.*]:2222", "[10.0.0.7]:2222", True),
        ("[10.0.0.*]:2222", "[10.0.1.7]:2222", False),
        ("*.org,!bad.org", "good.org", True),
        ("*.org,!bad.org", "bad.org", False),
        ("node?", "node7", True),
        ("node[12]", "node1", False),
    ],
)
def test_names(tmp_path: Path, names: str, name: str, known: bool) -> None:
    """Names, ports, wildcards and negations mean what they mean to ssh."""
    path = tmp_path / "known_hosts"
    path.write_text(f"# a comment\n\nnonsense\n{names} {key(1).kind} {base64.b64encode(key(1).blob).decode()} note\n")
    if known:
        check(path, name).check(key(1))
        with pytest.raises(HostKeyChanged, match="has changed"):
            check(path, name).check(key(2))
    else:
        with pytest.raises(HostKeyUnknown):
            check(path, name).check(key(1))


def test_hashed_names_are_those_of_ssh(tmp_path: Path) -> None:
    """A name hashed by ssh-keygen is found, and one hashed here is found by ssh-keygen."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.write_text(line_for("[box]:2222", key(1)) + "\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(theirs)], check=True, capture_output=True)
    check(theirs, "[box]:2222").check(key(1))
    KnownHosts().add(str(ours), "[box]:2222", key(1), hashed=True)
    assert "box" not in ours.read_text()
    found = subprocess.run(["ssh-keygen", "-F", "[box]:2222", "-f", str(ours)], capture_output=True, text=True)
    assert found.returncode == 0 and "ssh-ed25519" in found.stdout.lower()


@pytest.mark.parametrize("hashed", [False, True])
def test_two_hundred_hosts_of_five_thousand_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashed: bool
) -> None:
    """The file is read once for all hosts, and a known host costs one comparison of hashes, not thousands (AT-06)."""
    path = tmp_path / "known_hosts"
    path.write_text("".join(line_for(f"host{n}", key(n), hashed=hashed) + "\n" for n in range(5000)))
    counts = {"read": 0, "hash": 0}
    parse, digest = hostkeys.parse, hmac.digest

    def counting_parse(text: str, file: str) -> Any:
        counts["read"] += 1
        return parse(text, file)

    def counting_digest(*args: Any) -> bytes:
        counts["hash"] += 1
        return digest(*args)

    monkeypatch.setattr(hostkeys, "parse", counting_parse)
    monkeypatch.setattr(hmac, "digest", counting_digest)
    known = KnownHosts()
    for number in range(0, 5000, 25):
        one = check(path, f"host{number}", known=known)
        one.preferred_kinds()
        one.check(key(number))
    assert counts["read"] == 1
    assert counts["hash"] == (200 if hashed else 0)


def test_new_hosts_do_not_read_the_file_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepting 50 new hosts parses the long file once; each is written on a line of its own."""
    path = tmp_path / "known_hosts"
    path.write_text(line_for("old", key(0)))  # no newline at the end
    sizes: list[int] = []
    parse = hostkeys.parse

    def counting_parse(text: str, file: str) -> Any:
        sizes.append(text.count("\n"))
        return parse(text, file)

    monkeypatch.setattr(hostkeys, "parse", counting_parse)
    known = KnownHosts()
    for number in range(1, 51):
        check(path, f"new{number}", policy="accept-new", known=known).check(key(number))
    assert max(sizes) <= 1
    monkeypatch.undo()
    fresh = KnownHosts()
    for number in range(1, 51):
        check(path, f"new{number}", known=fresh).check(key(number))
    check(path, "old", known=fresh).check(key(0))
    assert path.stat().st_mode & 0o777 in (0o600, 0o644)


def test_many_writers_at_once(tmp_path: Path) -> None:
    """Many runs that accept the same hosts at the same time write each of them once, whole."""
    path = tmp_path / "dir" / "known_hosts"

    def run() -> None:
        known = KnownHosts()  # as another process has it
        for number in range(20):
            check(path, f"host{number}", policy="accept-new", known=known).check(key(number))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    lines = path.read_text().splitlines()
    assert sorted(lines) == sorted(line_for(f"host{number}", key(number)) for number in range(20))


def test_another_run_has_just_accepted_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that somebody wrote down between two of our looks at the file is known, not changed."""
    path = tmp_path / "known_hosts"
    mine = check(path, "box", policy="strict")
    look = mine.known.has_key

    def and_then(*given: Any) -> bool:
        found = look(*given)
        path.write_text(line_for("box", key(1)) + "\n")
        return found

    monkeypatch.setattr(mine.known, "has_key", and_then)
    mine.check(key(1))
    path.unlink()
    with pytest.raises(HostKeyChanged, match="has changed"):
        mine.check(key(2))


def test_another_run_met_another_key(tmp_path: Path) -> None:
    """If somebody else wrote a different key a moment ago, the second one is a changed key."""
    path = tmp_path / "known_hosts"
    mine = check(path, "box", policy="accept-new")
    mine.known.has_key(mine.files, "box", key(1))  # the empty file is read
    check(path, "box", policy="accept-new").check(key(2))
    with pytest.raises(HostKeyChanged, match="has changed"):
        mine.check(key(1))
