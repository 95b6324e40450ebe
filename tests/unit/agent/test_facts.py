"""Facts: the documented names, without starting programs."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent import facts, process, procfs
from opsctl.agent.values import ExprError, kept, learned

GPUS = ("opsctl_gpus", "opsctl_gpus_error")


def test_every_documented_name_is_gathered_and_no_other() -> None:
    found = facts.gather(set(facts.FACT_NAMES))
    assert set(found) == set(facts.FACT_NAMES)
    assert all(meaning and "\n" not in meaning for meaning in facts.FACT_NAMES.values())


def test_no_program_is_started_unless_gpus_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a program was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert set(facts.gather(None)) == set(facts.FACT_NAMES) - set(GPUS)


def test_only_what_is_wanted_is_gathered() -> None:
    assert set(facts.gather({"ansible_hostname", "not_a_fact"})) == {"ansible_hostname"}
    assert facts.gather(set()) == {}


def test_ansible_facts_holds_all_without_the_prefix() -> None:
    found = facts.gather({"ansible_facts"})
    assert set(found) >= {"ansible_facts", "ansible_kernel"}
    assert found["ansible_facts"]["kernel"] == os.uname().release
    assert "boot_id" in found["ansible_facts"] and "gpus" not in found["ansible_facts"]


def test_facts_agree_with_what_the_system_says() -> None:
    found = facts.gather(None)
    assert found["ansible_nodename"] == socket.gethostname()
    assert found["ansible_processor_vcpus"] == os.cpu_count()
    assert found["ansible_memtotal_mb"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
    assert found["ansible_user_uid"] == os.getuid()
    assert found["ansible_env"]["PATH"] == os.environ["PATH"]
    assert re.match(r"\d+\.\d+\.\d+$", found["ansible_python_version"])
    assert found["ansible_date_time"]["iso8601"].endswith("Z")
    assert "lo" in found["ansible_interfaces"]
    assert all(mount["mount"].startswith("/") for mount in found["ansible_mounts"])


@pytest.mark.parametrize(
    ("release", "precise", "wanted"),
    [
        (
            'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm',
            "12.11",
            ("Debian", "12.11", "12", "bookworm", "Debian"),
        ),
        ("ID=debian\nVERSION_CODENAME=trixie", "trixie/sid", ("Debian", "NA", "NA", "trixie", "Debian")),
        (
            'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="22.04"\nVERSION_CODENAME=jammy',
            "bookworm/sid",
            ("Ubuntu", "22.04", "22", "jammy", "Debian"),
        ),
        (
            'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"',
            "",
            ("Rocky", "9.4", "9", "NA", "RedHat"),
        ),
        ('ID="amzn"\nID_LIKE="fedora"\nVERSION_ID="2023"', "", ("Amazon", "2023", "2023", "NA", "RedHat")),
        ("ID=something\n", "", ("Something", "NA", "NA", "NA", "Something")),
    ],
)
def test_distributions_have_ansibles_names(
    monkeypatch: pytest.MonkeyPatch, release: str, precise: str, wanted: tuple[str, ...]
) -> None:
    contents = {"/etc/os-release": release, "/etc/debian_version": precise}
    monkeypatch.setattr(procfs, "read", lambda path: contents.get(path, ""))
    found = facts.gather({"ansible_distribution"} | {f"ansible_distribution_{x}" for x in ("version", "release")}
                         | {"ansible_distribution_major_version", "ansible_os_family"})  # fmt: skip
    assert tuple(found[f"ansible_{name}"] for name in (
        "distribution", "distribution_version", "distribution_major_version", "distribution_release", "os_family",
    )) == wanted  # fmt: skip


def test_a_resolver_that_does_not_answer_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(procfs, "read", lambda path: "")
    monkeypatch.setattr(socket, "getfqdn", lambda name: str(release.wait(60)))
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "n1", "6", "#1", "x86_64")))
    try:
        assert facts.gather({"ansible_fqdn"}) == {"ansible_fqdn": "n1"}
    finally:
        release.set()


def test_a_collector_that_fails_leaves_only_its_own_names_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = procfs.read
    monkeypatch.setattr(procfs, "read", lambda path: "" if path == "/proc/meminfo" else real(path))
    found = facts.gather(None)
    assert "ansible_memtotal_mb" not in found and "ansible_kernel" in found


def test_gpus_are_read_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        "echo '0, NVIDIA H100 80GB HBM3, GPU-1, 81559, 4, 550.90.07, 00000000:1B:00.0'\n"
        "echo '1, NVIDIA H100 80GB HBM3, GPU-2, [N/A], 0, 550.90.07, 00000000:9B:00.0'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = facts.gather({"opsctl_gpus", "opsctl_gpus_error"})
    assert [gpu["memory_total_mb"] for gpu in found["opsctl_gpus"]] == [81559, None]
    assert found["opsctl_gpus"][0]["name"] == "NVIDIA H100 80GB HBM3" and found["opsctl_gpus_error"] == ""
    program.write_text("#!/bin/sh\necho 'No devices were found'; exit 6\n")
    found = facts.gather({"opsctl_gpus", "opsctl_gpus_error"})
    assert found["opsctl_gpus"] == [] and "exit status 6: No devices were found" in found["opsctl_gpus_error"]


def test_a_node_without_nvidia_smi_has_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty list, and the reason; not an undefined name."""
    monkeypatch.setenv("PATH", str(tmp_path))
    found = facts.gather({"ansible_facts", "opsctl_gpus"})
    assert found["opsctl_gpus"] == found["ansible_facts"]["gpus"] == [] and "not found" in found["opsctl_gpus_error"]


def test_patterns_mean_single_facts() -> None:
    """With the prefix or without it, as in Ansible; never the mapping of all."""
    assert facts.matching(["ansible_hostname", "mem*_mb"]) == [
        "ansible_hostname", "ansible_memtotal_mb", "ansible_memfree_mb", "ansible_memory_mb",
    ]  # fmt: skip
    assert facts.matching(["gpus"]) == ["opsctl_gpus"] and facts.matching(["nothing"]) == []
    assert set(facts.matching(["ansible_*"])).isdisjoint(GPUS)
    assert set(facts.matching(["*"])) == set(facts.FACT_NAMES) - {"ansible_facts"}


def test_learned_facts_lie_over_those_before() -> None:
    """`ansible_facts` is there once all were gathered, and never says anything else than the facts' own names."""
    assert learned({"ansible_hostname": "a"}, {"opsctl_gpus": []}) == {"ansible_hostname": "a", "opsctl_gpus": []}
    whole = {"ansible_hostname": "a", "ansible_facts": {"hostname": "a"}}
    assert learned(whole, {"ansible_hostname": "b", "opsctl_gpus": [1]}) == {
        "ansible_hostname": "b", "opsctl_gpus": [1], "ansible_facts": {"hostname": "b", "gpus": [1]},
    }  # fmt: skip
    assert learned({"opsctl_gpus": [1]}, whole) == {
        "ansible_hostname": "a", "opsctl_gpus": [1], "ansible_facts": {"hostname": "a", "gpus": [1]},
    }  # fmt: skip


def test_learned_facts_keep_their_gaps() -> None:
    """What a ledger did not keep is an error that says so, until it is gathered again."""
    gap: dict[str, Any] = {"$l": None}
    known = learned(kept({"ansible_env": gap, "ansible_facts": {"env": gap}}), {"ansible_hostname": "a"})
    assert known["ansible_hostname"] == known["ansible_facts"]["hostname"] == "a"
    for facts_, name in ((known, "ansible_env"), (known["ansible_facts"], "env")):
        with pytest.raises(ExprError, match="was secret"):
            facts_[name]
    assert learned(known, {"ansible_env": {}}) == {
        "ansible_hostname": "a", "ansible_env": {}, "ansible_facts": {"hostname": "a", "env": {}},
    }  # fmt: skip


def test_a_driver_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    real = process.run

    def quick(command: Any, **kw: Any) -> Any:
        assert kw["timeout"] == 10, "seconds, as documented"
        return real(["sleep", "306"], **{**kw, "timeout": 0.2})

    monkeypatch.setattr(process, "run", quick)
    assert "timed out" in facts.gather({"opsctl_gpus_error"})["opsctl_gpus_error"]
