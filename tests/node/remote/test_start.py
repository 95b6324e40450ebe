"""Starting the agent on all kinds of nodes: noisy logins, odd shells, missing and broken Pythons."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from opsctl.errors import NoPython, Unreachable
from opsctl.remote import link
from opsctl.remote.bootstrap import PYTHONS, start_command
from opsctl.remote.transport import run
from tests.node.remote.conftest import MakeRig, segment, shell


def tool(path: Path, text: str) -> Path:
    """An executable script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def wrapped(directory: Path, text: str) -> str:
    """A ForceCommand line that runs ``text`` with the request in $SSH_ORIGINAL_COMMAND."""
    return f"ForceCommand {tool(directory / 'wrap', f'#!/bin/sh{chr(10)}{text}{chr(10)}')}"


def test_noise_before_the_agent(make_rig: MakeRig, tmp_path: Path) -> None:
    """A MOTD and a .bashrc that print, even what looks like frames, disturb nothing and are kept."""
    fake = "printf 'Welcome to \\377\\000\\000\\000\\020{}\\n<<opsctl 0000>>\\n'"
    noise = f"{fake}; head -c 200000 /dev/zero | tr '\\0' x; echo"
    config = wrapped(tmp_path, f'{noise}\necho problem >&2\nexec /bin/sh -c "$SSH_ORIGINAL_COMMAND"')
    session = make_rig(config=[config]).session()
    assert session.run_segment(segment(shell("echo hi")))["ok"]
    assert session.noise.endswith(b"xxx\n") and len(session.noise) <= link.NOISE_LIMIT


def test_banner_of_the_server(make_rig: MakeRig, tmp_path: Path) -> None:
    """A Banner is no noise at all."""
    banner = tmp_path / "banner"
    banner.write_text("Authorized use only\n" * 20)
    session = make_rig(config=[f"Banner {banner}"]).session()
    assert session.run_segment(segment(shell("true")))["ok"]
    assert session.noise == b""


@pytest.mark.parametrize("name", ["sh", "bash", "dash", "csh", "tcsh", "fish", "zsh"])
def test_every_login_shell(make_rig: MakeRig, tmp_path: Path, name: str) -> None:
    """The start command passes unharmed through every login shell."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    session = make_rig(config=[wrapped(tmp_path, f'exec {found} -c "$SSH_ORIGINAL_COMMAND"')]).session()
    assert session.run_segment(segment(shell("echo hi")))["ok"]


def test_command_holds_nothing_that_a_shell_reads() -> None:
    """Inside the single quotes there is no quote, backslash, newline or exclamation mark, nor outside of them."""
    command = start_command("00ff", "a" * 64, PYTHONS)
    assert not set("\\\n!") & set(command)
    assert command.count("'") == 2 * (1 + len(PYTHONS))
    outside = "".join(command.split("'")[::2])
    assert not set('"$`;&|<>()[]{}*?~#') & set(outside)


def test_broken_python_first_in_path(make_rig: MakeRig, tmp_path: Path) -> None:
    """Shims that fail, are too old, or have no library are passed over until one works."""
    bin_dir = tmp_path / "bin"
    tool(bin_dir / "python3", "#!/bin/sh\necho 'pyenv: python3: command not found' >&2\nexit 127\n")
    tool(bin_dir / "python3.13", "#!/bin/sh\nexec /nonexistent/interpreter\n")
    tool(bin_dir / "python3.12", "#!/bin/sh\nexit 94\n")  # what the boot stage says on an old Python
    session = make_rig(env={"PATH": f"{bin_dir}:/usr/bin:/bin"}).session()
    assert session.wait_ready()["python"].startswith("/usr/")


def test_no_python(make_rig: MakeRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any Python the error says how to install one with `raw`."""
    monkeypatch.setattr("opsctl.remote.session.bootstrap.PYTHONS", ("python3", "/nowhere/python3"))
    tool(tmp_path / "bin" / "sh", "#!/bin/sh\nexit 1\n")
    session = make_rig(env={"PATH": f"{tmp_path}/empty"}).session()
    with pytest.raises(NoPython) as caught:
        session.run_segment(segment(shell("true")))
    assert run(session.transport, "echo still here").stdout == b"still here\n"  # for the `raw` that installs one
    assert caught.value.what.startswith("no usable Python on ")
    assert "raw: apt-get install -y python3" in str(caught.value.hint)
    assert "/nowhere/python3" in str(caught.value.cause)


def test_given_interpreter_only(make_rig: MakeRig, tmp_path: Path) -> None:
    """ansible_python_interpreter is the only candidate: if it does not work, no other is tried."""
    rig = make_rig()
    with pytest.raises(Unreachable) as caught:
        rig.session(interpreter="/nowhere/python3").run_segment(segment(shell("true")))
    assert caught.value.what.startswith("ansible_python_interpreter /nowhere/python3 does not work")
    assert rig.session(interpreter="/usr/bin/python3").wait_ready()["python"] == "/usr/bin/python3"
    assert rig.session(interpreter="auto").wait_ready()


def test_interpreter_in_the_home_directory(make_rig: MakeRig) -> None:
    """A path that begins with ~/ is found in the home directory of the login user."""
    rig = make_rig()
    (rig.home / "my env").mkdir()
    (rig.home / "my env" / "python").symlink_to("/usr/bin/python3")
    assert rig.session(interpreter="~/my env/python").wait_ready()


def test_account_without_a_shell(make_rig: MakeRig, tmp_path: Path) -> None:
    """What a refusing login prints stands in the error, with its exit status."""
    text = "echo 'This account is currently not available.'; exit 1"
    session = make_rig(config=[wrapped(tmp_path, text)]).session()
    with pytest.raises(Unreachable) as caught:
        session.run_segment(segment(shell("true")))
    assert "This account is currently not available." in str(caught.value.cause)
    assert "exit status 1" in str(caught.value.cause)


def test_login_that_hangs(make_rig: MakeRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login shell that waits for something is given up, with what it printed."""
    monkeypatch.setattr(link, "START_TIMEOUT", 1.0)
    session = make_rig(config=[wrapped(tmp_path, "echo 'Press any key'; exec cat")]).session()
    with pytest.raises(Unreachable) as caught:
        session.run_segment(segment(shell("true")))
    assert "Press any key" in str(caught.value.cause)


def test_second_contact_sends_no_bundle(make_rig: MakeRig) -> None:
    """The agent is cached by its hash: the second session does not send it again."""
    rig = make_rig()
    sizes = []
    for _ in range(2):
        session = rig.session()
        sent: list[int] = []
        session.open()
        channel = session._link._channel  # type: ignore[union-attr]
        original = channel.send

        def counting(data: bytes, original=original, sent=sent) -> None:  # type: ignore[no-untyped-def]
            sent.append(len(data))
            original(data)

        channel.send = counting  # type: ignore[method-assign]
        assert session.run_segment(segment(shell("true")))["ok"]
        sizes.append(sum(sent))
        session.close()
    assert sizes[0] > 20_000 > sizes[1]
