"""Facts of the node under Ansible's names, read from /proc, /sys and /etc: no programs are started but for GPUs.

Each collector gives some names (without the prefix `ansible_`); `gather` runs only those whose names are wanted.
"""

from __future__ import annotations

import os
import sys
import time

from . import facts_hardware as hardware
from . import facts_network as network
from . import procfs
from .values import bare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

    Facts = Dict[str, Any]



def gather(want: Optional[Iterable[str]] = None) -> Facts:
    """Facts by variable name (`ansible_hostname`); `ansible_facts` holds them all without the prefix.

    ``want`` are the names that are used; None or `ansible_facts` means all but the GPUs: for them a program is asked,
    which can take seconds, so they must be named. A collector that fails leaves its names out.
    """
    wanted = None if want is None else set(want)
    everything = wanted is None or "ansible_facts" in wanted
    out: Facts = {}
    whole: Facts = {}
    for collect, names in _COLLECTORS:
        asked = wanted is not None and any(_public(name) in wanted for name in names)
        if not asked and (not everything or collect is hardware.gpus):
            continue
        try:
            found = collect()
        except Exception:  # a node may hide parts of /proc; what is left is still of use
            continue
        for name, value in found.items():
            whole[bare(_public(name))] = value
            if everything or (wanted is not None and _public(name) in wanted):
                out[_public(name)] = value
    if everything:
        out["ansible_facts"] = whole
    return out


def matching(patterns: Iterable[str]) -> List[str]:
    """The names of single facts that shell patterns mean; these may leave the prefix out, as in Ansible."""
    import fnmatch

    return [
        name for name in FACT_NAMES if name != "ansible_facts"
        and any(fnmatch.fnmatch(name, one) or fnmatch.fnmatch(bare(name), one) for one in patterns)
    ]  # fmt: skip


def _public(name: str) -> str:
    return name if name.startswith("opsctl_") else "ansible_" + name


# Host and system


def _host() -> Facts:
    node = os.uname().nodename
    return {"hostname": node.split(".")[0], "nodename": node}


def _fqdn() -> Facts:
    node = os.uname().nodename
    full = node if "." in node else _full_name(node)
    return {"fqdn": full, "domain": full.partition(".")[2]}


def _full_name(node: str) -> str:
    for line in procfs.read("/etc/hosts").splitlines():
        words = line.partition("#")[0].split()
        if node in words[1:]:
            return next((word for word in words[1:] if word.startswith(node + ".")), node)
    import socket
    import threading

    found: List[str] = []
    thread = threading.Thread(target=lambda: found.append(socket.getfqdn(node)), daemon=True)
    thread.start()
    thread.join(1.0)  # a resolver that does not answer must not hold up the play
    return found[0] if found and found[0] != "localhost" else node


def _system() -> Facts:
    name = os.uname()
    return {
        "system": name.sysname, "kernel": name.release, "kernel_version": name.version, "machine": name.machine,
        "architecture": name.machine, "userspace_bits": "64" if sys.maxsize > 2**32 else "32",
    }  # fmt: skip


_DISTRIBUTIONS = {
    "debian": "Debian", "ubuntu": "Ubuntu", "rhel": "RedHat", "centos": "CentOS", "rocky": "Rocky",
    "almalinux": "AlmaLinux", "fedora": "Fedora", "amzn": "Amazon", "ol": "OracleLinux", "sles": "SLES",
    "opensuse-leap": "openSUSE Leap", "opensuse-tumbleweed": "openSUSE Tumbleweed", "arch": "Archlinux",
    "alpine": "Alpine", "gentoo": "Gentoo", "linuxmint": "Linux Mint", "raspbian": "Debian", "kali": "Kali",
    "pop": "Pop!_OS",
}  # fmt: skip
_FAMILIES = {
    "debian": "Debian", "ubuntu": "Debian", "rhel": "RedHat", "fedora": "RedHat", "centos": "RedHat",
    "suse": "Suse", "opensuse": "Suse", "sles": "Suse", "arch": "Archlinux", "alpine": "Alpine", "gentoo": "Gentoo",
}  # fmt: skip


def _distribution() -> Facts:
    release = procfs.pairs("/etc/os-release") or procfs.pairs("/usr/lib/os-release")
    ident = release.get("ID", "linux")
    name = _DISTRIBUTIONS.get(ident, ident.capitalize())
    version = release.get("VERSION_ID", "NA")
    if ident == "debian":  # os-release has only the major version
        precise = procfs.read("/etc/debian_version").strip()
        version = precise if precise[:1].isdigit() else version
    likes = [ident, *release.get("ID_LIKE", "").split()]
    family = next((_FAMILIES[like] for like in likes if like in _FAMILIES), name)
    codename = release.get("VERSION_CODENAME") or release.get("UBUNTU_CODENAME") or "NA"
    return {
        "distribution": name, "distribution_version": version, "distribution_major_version": version.split(".")[0],
        "distribution_release": codename, "os_family": family,
    }  # fmt: skip


def _managers() -> Facts:
    first = procfs.read("/proc/1/comm").strip()
    if os.path.isdir("/run/systemd/system"):
        service = "systemd"
    elif os.path.exists("/sbin/openrc-run"):
        service = "openrc"
    else:
        service = "sysvinit" if first == "init" else first or "service"
    programs = (
        ("dnf", "dnf"), ("yum", "yum"), ("apt-get", "apt"), ("zypper", "zypper"), ("pacman", "pacman"), ("apk", "apk"),
    )  # fmt: skip
    folders = ("/usr/bin", "/bin", "/sbin", "/usr/sbin")
    package = next(
        (name for program, name in programs if any(os.path.exists(os.path.join(at, program)) for at in folders)),
        "unknown",
    )
    return {"service_mgr": service, "pkg_mgr": package}


def _identity() -> Facts:
    return {
        "machine_id": procfs.read("/etc/machine-id").strip(),
        "opsctl_boot_id": procfs.read("/proc/sys/kernel/random/boot_id").strip(),
        "system_vendor": procfs.read("/sys/class/dmi/id/sys_vendor").strip() or "NA",
        "product_name": procfs.read("/sys/class/dmi/id/product_name").strip() or "NA",
    }


def _virtualization() -> Facts:
    container = procfs.read("/run/systemd/container").strip()
    if not container and os.path.exists("/.dockerenv"):
        container = "docker"
    if not container and os.path.exists("/run/.containerenv"):
        container = "podman"
    if not container:
        for item in procfs.read("/proc/1/environ").split("\0"):
            if item.startswith("container="):
                container = item.partition("=")[2]
    if container:
        return {"virtualization_type": container, "virtualization_role": "guest"}
    vendor = procfs.read("/sys/class/dmi/id/sys_vendor") + " " + procfs.read("/sys/class/dmi/id/product_name")
    hosts = (
        ("KVM", "kvm"), ("QEMU", "kvm"), ("Amazon EC2", "kvm"), ("Google", "kvm"), ("VMware", "VMware"),
        ("VirtualBox", "virtualbox"), ("Xen", "xen"), ("Microsoft", "VirtualPC"), ("OpenStack", "openstack"),
    )  # fmt: skip
    virtual = "hypervisor" in procfs.read("/proc/cpuinfo").partition("flags")[2].partition("\n")[0].split()
    for word, kind in hosts:
        if word in vendor and (virtual or kind != "VirtualPC"):
            return {"virtualization_type": kind, "virtualization_role": "guest"}
    if virtual:
        return {"virtualization_type": "kvm", "virtualization_role": "guest"}
    if os.path.exists("/dev/kvm"):
        return {"virtualization_type": "kvm", "virtualization_role": "host"}
    return {"virtualization_type": "NA", "virtualization_role": "NA"}


def _selinux() -> Facts:
    enforce = procfs.read("/sys/fs/selinux/enforce").strip()
    if not enforce:
        return {"selinux": {"status": "disabled"}}
    return {"selinux": {"status": "enabled", "mode": "enforcing" if enforce == "1" else "permissive"}}


def _uptime() -> Facts:
    loads = procfs.read("/proc/loadavg").split()
    return {
        "uptime_seconds": int(float(procfs.read("/proc/uptime").split()[0])),
        "loadavg": {span: float(load) for span, load in zip(("1m", "5m", "15m"), loads)},
    }


def _cmdline() -> Facts:
    out: Facts = {}
    for word in procfs.read("/proc/cmdline").split():
        name, sign, value = word.partition("=")
        out[name] = value if sign else True
    return {"cmdline": out}


# User and time


def _user() -> Facts:
    import pwd

    uid = os.getuid()
    facts: Facts = {"user_uid": uid, "user_gid": os.getgid()}
    facts.update(effective_user_id=os.geteuid(), real_user_id=uid)
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return {**facts, "user_id": str(uid), "user_gecos": "", "user_dir": os.path.expanduser("~"), "user_shell": ""}
    return {
        **facts, "user_id": entry.pw_name, "user_gecos": entry.pw_gecos, "user_dir": entry.pw_dir,
        "user_shell": entry.pw_shell,
    }  # fmt: skip


def _environment() -> Facts:
    return {"env": dict(os.environ)}


def _python() -> Facts:
    version = sys.version_info
    return {
        "python_version": "%d.%d.%d" % version[:3],
        "python": {
            "executable": sys.executable, "type": sys.implementation.name, "version_info": list(version),
            "version": {
                "major": version[0], "minor": version[1], "micro": version[2], "releaselevel": version[3],
                "serial": version[4],
            },
        },
    }  # fmt: skip


def _date_time() -> Facts:
    now = time.time()
    here, there = time.localtime(now), time.gmtime(now)
    micro = "%06d" % (int(now * 1000000) % 1000000)
    basic = time.strftime("%Y%m%dT%H%M%S", here)
    words = {
        "year": "%Y", "month": "%m", "weekday": "%A", "weekday_number": "%w", "weeknumber": "%W", "day": "%d",
        "hour": "%H", "minute": "%M", "second": "%S", "date": "%Y-%m-%d", "time": "%H:%M:%S", "tz": "%Z",
        "tz_offset": "%z",
    }  # fmt: skip
    out = {name: time.strftime(pattern, here) for name, pattern in words.items()}
    out.update(
        epoch=str(int(now)), epoch_int=str(int(now)), iso8601=time.strftime("%Y-%m-%dT%H:%M:%SZ", there),
        iso8601_micro=time.strftime("%Y-%m-%dT%H:%M:%S.", there) + micro + "Z", iso8601_basic=basic + micro,
        iso8601_basic_short=basic, tz_dst=time.tzname[1],
    )  # fmt: skip
    return {"date_time": out}


_COLLECTORS: Tuple[Tuple[Callable[[], Facts], Dict[str, str]], ...] = (
    (_host, {"hostname": "name of the node up to the first dot", "nodename": "name of the node as the kernel has it"}),
    (_fqdn, {"fqdn": "full name of the node, with its domain", "domain": "the domain of the full name"}),
    (_system, {
        "system": "`Linux`", "kernel": "release of the kernel", "kernel_version": "build of the kernel",
        "machine": "architecture as the kernel names it", "architecture": "the same: `x86_64`, `aarch64`",
        "userspace_bits": "`64` or `32`",
    }),
    (_distribution, {
        "distribution": "`Debian`, `Ubuntu`, `RedHat`, `Rocky`, ...",
        "distribution_version": "such as `22.04` or `12.5`",
        "distribution_major_version": "the part before the first dot", "distribution_release": "code name: `jammy`",
        "os_family": "`Debian`, `RedHat`, `Suse`, `Archlinux`, `Alpine`",
    }),
    (_managers, {"service_mgr": "`systemd`, or what else starts services", "pkg_mgr": "`apt`, `dnf`, `yum`, ..."}),
    (_identity, {
        "machine_id": "content of /etc/machine-id", "opsctl_boot_id": "changes with every boot",
        "system_vendor": "who made the machine", "product_name": "what the machine is called",
    }),
    (_virtualization, {
        "virtualization_type": "`kvm`, `docker`, `systemd-nspawn`, ... or `NA`",
        "virtualization_role": "`guest` or `host`",
    }),
    (_selinux, {"selinux": "`status` and `mode`"}),
    (_uptime, {"uptime_seconds": "seconds since boot", "loadavg": "`1m`, `5m`, `15m`"}),
    (_cmdline, {"cmdline": "the kernel's command line as a mapping"}),
    (hardware.processor, {
        "processor": "number, vendor and model of every CPU", "processor_count": "sockets",
        "processor_cores": "cores of one socket", "processor_threads_per_core": "threads of one core",
        "processor_vcpus": "CPUs that the kernel sees", "processor_nproc": "CPUs that the agent may use",
    }),
    (hardware.memory, {
        "memtotal_mb": "memory in MiB", "memfree_mb": "unused memory in MiB", "swaptotal_mb": "swap in MiB",
        "swapfree_mb": "unused swap in MiB", "memory_mb": "`real`, `nocache`, `swap`, each with total, used, free",
    }),
    (hardware.mounts, {"mounts": "mounted file systems with sizes in bytes (no sizes for network file systems)"}),
    (network.network, {
        "interfaces": "names of the network interfaces", "all_ipv4_addresses": "all but 127.0.0.0/8",
        "all_ipv6_addresses": "all but ::1", "default_ipv4": "interface, address, gateway of the default route",
        "default_ipv6": "the same for IPv6",
    }),
    (network.dns, {"dns": "`nameservers` and `search`"}),
    (_user, {
        "user_id": "name of the user that tasks run as", "user_uid": "its number", "user_gid": "its group's number",
        "user_gecos": "its description", "user_dir": "its home directory", "user_shell": "its shell",
        "effective_user_id": "number of the effective user", "real_user_id": "number of the real user",
    }),
    (_environment, {"env": "environment of the agent"}),
    (_python, {"python_version": "version of the node's Python", "python": "executable, type and version"}),
    (_date_time, {"date_time": "the node's time in Ansible's many forms, as strings"}),
    (hardware.gpus, {
        "opsctl_gpus": "NVIDIA GPUs: index, name, uuid, memory_total_mb, memory_used_mb, driver_version, pci_bus_id",
        "opsctl_gpus_error": "why `opsctl_gpus` is empty",
    }),
)  # fmt: skip

#: Every supported fact with its meaning, by variable name.
FACT_NAMES: Dict[str, str] = {
    _public(name): meaning for _, names in _COLLECTORS for name, meaning in names.items()
}
FACT_NAMES["ansible_facts"] = "all facts in one mapping, without the prefix; GPUs only where `gpus` is named"
