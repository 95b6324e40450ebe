"""Facts of network interfaces, addresses, routes and resolvers (see `facts`)."""

from __future__ import annotations

import os

from . import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    Facts = Dict[str, Any]


def network() -> Facts:
    addresses = _ipv4()
    every = [one["address"] for one in addresses if not one["address"].startswith("127.")]
    six = _ipv6()
    facts: Facts = {
        "interfaces": sorted(os.listdir("/sys/class/net")),
        "all_ipv4_addresses": every,
        "all_ipv6_addresses": [address for _, address, scope in six if scope != "host"],
        "default_ipv4": {},
        "default_ipv6": {},
    }
    route = _default_route()
    if route is not None:
        name, gateway = route
        one = next((item for item in addresses if item["interface"] == name), {})
        facts["default_ipv4"] = {**_link(name), **one, "gateway": gateway}
    for line in procfs.read("/proc/net/ipv6_route").splitlines():
        words = line.split()
        if words[0] == "0" * 32 and words[1] == "00" and words[9] != "lo" and int(words[8], 16) & 1:
            found = [address for name, address, scope in six if name == words[9] and scope == "global"]
            if found:
                facts["default_ipv6"] = {**_link(words[9]), "address": found[0], "gateway": _six(words[4])}
            break
    return facts


def _link(name: str) -> Facts:
    base = "/sys/class/net/%s/" % name
    mtu = procfs.read(base + "mtu").strip()
    return {
        "interface": name, "macaddress": procfs.read(base + "address").strip(), "mtu": int(mtu) if mtu else None,
        "type": "ether" if procfs.read(base + "type").strip() == "1" else "unknown",
    }  # fmt: skip


def _ipv4() -> List[Facts]:
    """Every IPv4 address with its interface and netmask, from the kernel's SIOCGIFCONF."""
    import array
    import fcntl
    import socket
    import struct

    out = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        buffer = array.array("B", bytes(40 * 512))
        request = struct.pack("iP", len(buffer), buffer.buffer_info()[0])
        size = struct.unpack("iP", fcntl.ioctl(sock, 0x8912, request))[0]
        data = buffer.tobytes()[:size]
        for start in range(0, size, 40):
            label = data[start : start + 16].split(b"\0")[0]
            address = socket.inet_ntoa(data[start + 20 : start + 24])
            one: Facts = {"interface": label.decode().split(":")[0], "address": address}
            try:
                mask = fcntl.ioctl(sock, 0x891B, struct.pack("256s", label))[20:24]
            except OSError:
                out.append(one)
                continue
            number, own = struct.unpack("!I", mask)[0], struct.unpack("!I", socket.inet_aton(address))[0]
            one.update(
                netmask=socket.inet_ntoa(mask), prefix=str(bin(number).count("1")),
                network=socket.inet_ntoa(struct.pack("!I", own & number)),
                broadcast=socket.inet_ntoa(struct.pack("!I", own | ~number & 0xFFFFFFFF)),
            )  # fmt: skip
            out.append(one)
    return out


def _default_route() -> Optional[Tuple[str, str]]:
    best: Optional[Tuple[int, str, str]] = None
    for line in procfs.read("/proc/net/route").splitlines()[1:]:
        words = line.split()
        if len(words) > 7 and words[1] == "00000000" and words[7] == "00000000" and int(words[3], 16) & 1:
            raw = bytes.fromhex(words[2])[::-1]
            one = int(words[6]), words[0], ".".join(str(byte) for byte in raw)
            best = one if best is None or one < best else best
    return best[1:] if best else None


def _ipv6() -> List[Tuple[str, str, str]]:
    scopes = {0x00: "global", 0x10: "host", 0x20: "link", 0x40: "site"}
    out = []
    for line in procfs.read("/proc/net/if_inet6").splitlines():
        words = line.split()
        out.append((words[5], _six(words[0]), scopes.get(int(words[3], 16), "global")))
    return out


def _six(text: str) -> str:
    import socket

    return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(text))


def dns() -> Facts:
    out: Dict[str, List[str]] = {"nameservers": [], "search": []}
    for line in procfs.read("/etc/resolv.conf").splitlines():
        words = line.split()
        if words[:1] == ["nameserver"]:
            out["nameservers"] += words[1:2]
        elif words[:1] in (["search"], ["domain"]):
            out["search"] = words[1:]
    return {"dns": out}
