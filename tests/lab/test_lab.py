"""The lab itself: its nodes are real machines as far as opsctl can see, and nothing of them remains."""

from __future__ import annotations

from pathlib import Path

from tests.support.lab import ADMIN, CLERK, GUEST, Lab, LabNode


def test_a_node_is_a_booted_machine(server: LabNode) -> None:
    """systemd runs and is healthy, the host name and the address are the node's own."""
    assert server.ssh("systemctl is-system-running").stdout.strip() == "running"
    assert server.ssh("hostname").stdout.strip() == "alpha"
    assert server.address in server.ssh("ip -4 address show host0").stdout
    assert server.ssh("cat /proc/1/comm").stdout.strip() == "systemd"
    assert server.processes()


def test_users_differ_in_what_sudo_lets_them(server: LabNode) -> None:
    """ADMIN needs no password, CLERK does, GUEST may not; each logs in with the lab's key."""
    assert server.ssh("sudo -n id -un", user=ADMIN).stdout.strip() == "root"
    assert "password is required" in server.ssh("sudo -n id -un", user=CLERK, check=False).stderr
    assert server.ssh("echo 'correct horse' | sudo -S -p '' id -un", user=CLERK).stdout.strip() == "root"
    assert server.ssh("sudo -n id -un", user=GUEST, check=False).returncode != 0


def test_a_login_has_a_scope_of_its_own(server: LabNode) -> None:
    """pam_systemd puts a login into a session scope, as on a real server (what must outlive it has to leave it)."""
    assert "session-" in server.ssh("cat /proc/self/cgroup", user=ADMIN).stdout


def test_reboot_keeps_files_and_address(lab: Lab) -> None:
    """After a reboot the node has the same files on its disk, its address and another boot."""
    node = lab.node("rebooter")
    try:
        before = node.boot_id
        node.ssh("echo kept > /var/lib/kept; echo lost > /run/lost")
        node.reboot()
        assert node.boot_id != before
        assert node.ssh("cat /var/lib/kept; ls /run/lost", check=False).stdout == "kept\n"
    finally:
        node.stop()


def test_a_node_can_lose_power_and_network(lab: Lab) -> None:
    """`cut` makes a node silent, `kill` ends all of its processes at once; it boots again afterwards."""
    node = lab.node("unlucky")
    try:
        node.cut()
        assert not node._answers()
        node.mend()
        node.wait()
        node.ssh("sync; nohup sleep 1000 >/dev/null 2>&1 &")
        node.kill()
        assert not node.processes()
        node.start()
        assert node.ssh("pgrep -c sleep", check=False).stdout == "0\n"
    finally:
        node.stop()


def test_nothing_remains(tmp_path: Path) -> None:
    """When a lab ends, its processes, links, mounts and control groups are gone."""
    with Lab(tmp_path / "second") as second:
        assert second.remains() == [second.bridge]
        second.node("short-lived")
    assert second.remains() == []
