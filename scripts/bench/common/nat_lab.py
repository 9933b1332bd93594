"""Homes behind routers: each machine, each router and the public segment is a network namespace. Linux and root only.

    home ── router ── public segment ── public machines
    home ── router ── carrier's router ── public segment

What a router does with the address that it translates is what decides who can meet whom:

- full cone: a port keeps its number, and everybody may send to it once the home has sent from it;
- port-restricted: a port keeps its number, and only an address and port may send to it to which the home has sent;
- symmetric: every connection gets a random port of its own, and only its other end may send to it;
- carrier: a port-restricted router behind another one, as behind the address that a provider shares among customers;
- resetting: a port-restricted router that answers what it does not expect with a reset;
- IPv6 firewall: no address is translated, and no IPv4 there is; only what the home has begun is let in.

All others drop what they do not expect, as the kernel's connection tracking sees it. A home is 192.168.n.2, a router or
a public machine 5.5.5.n, since software takes addresses for documentation for what they are; with IPv6 they are
2600:5:n::2 and 2600:5::n. Nothing leaves the namespaces. They are named after this process, and leaving removes them,
also after Ctrl-C. Needs ``ip`` (iproute2) and ``nft`` (nftables).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from scripts.bench.common.slow_network import check_allowed, run_tool

PORT = 4001  # of every node
PUBLIC, PUBLIC_IP6 = "5.5.5", "2600:5"
FORWARDING = ("net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")


class RouterKind(Enum):
    """The router between a home and the public segment; ``NONE`` for a machine on the segment itself."""

    NONE = "public"
    FULL_CONE = "full cone"
    PORT_RESTRICTED = "port-restricted"
    SYMMETRIC = "symmetric"
    CARRIER = "carrier"
    RESETTING = "resetting"
    IP6_FIREWALL = "IPv6 firewall"


@dataclass(frozen=True)
class NatPlace:
    """One machine on which a node may run."""

    namespace: str
    address: str  # of its own interface
    public_address: str  # at which the public segment sees it
    kind: RouterKind

    def command(self, command: Sequence[str]) -> list[str]:
        """Returns the command that runs ``command`` on this machine."""
        return ["ip", "netns", "exec", self.namespace, *command]

    @property
    def router(self) -> str:
        """The namespace of the router before this machine."""
        return f"{self.namespace}-router"


@contextmanager
def nat_lab(kinds: Sequence[RouterKind], *, delay_seconds: float = 0.0) -> Iterator[list[NatPlace]]:
    """Yields one machine for each of ``kinds``. What crosses the public segment takes ``delay_seconds``.

    Raises ``NoSlowNetworkError`` where that is impossible.
    """
    check_allowed(ip="iproute2", nft="nftables")
    lab = _Lab(f"starling-{os.getpid()}")
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # through the end below
    try:
        lab.add_segment()
        places = [lab.add_place(number, kind) for number, kind in enumerate(kinds, start=1)]
        lab.join_ip6(places)
        if delay_seconds:
            lab.delay(delay_seconds)
        yield places
    finally:
        lab.close()
        for namespace in lab.made:  # removes its interfaces and rules too
            subprocess.run(["ip", "netns", "delete", namespace], check=False)
        signal.signal(signal.SIGTERM, before)


class _Lab:
    def __init__(self, prefix: str) -> None:
        self.made: list[str] = []
        self._prefix = prefix
        self._segment = f"{prefix}-segment"
        self._ports: list[str] = []
        self._switch: subprocess.Popen[bytes] | None = None

    def add_segment(self) -> None:
        self._add(self._segment)
        run_tool("ip", "-n", self._segment, "link", "add", "br0", "type", "bridge")
        run_tool("ip", "-n", self._segment, "link", "set", "br0", "up")

    def delay(self, seconds: float) -> None:
        """Puts a slow switch in the place of the segment's bridge."""
        run_tool("ip", "-n", self._segment, "link", "delete", "br0")
        command = [sys.executable, "-m", "scripts.bench.common.delayed_segment", str(seconds), *self._ports]
        self._switch = subprocess.Popen(["ip", "netns", "exec", self._segment, *command])

    def close(self) -> None:
        if self._switch is not None:
            self._switch.terminate()
            self._switch.wait()

    def add_place(self, number: int, kind: RouterKind) -> NatPlace:
        machine, public = f"{self._prefix}-{number}", f"{PUBLIC}.{number}"
        self._add(machine)
        if kind is RouterKind.NONE:
            self._plug(machine, "eth0", public, f"port{number}")
            return NatPlace(machine, public, public, kind)
        if kind is RouterKind.IP6_FIREWALL:
            return self._add_ip6_home(number, machine)
        place = NatPlace(machine, f"192.168.{number}.2", public, kind)
        router, home = place.router, f"192.168.{number}"
        self._add(router)
        if kind is RouterKind.CARRIER:
            carrier, shared = f"{machine}-carrier", f"100.64.{number}"
            self._add(carrier)
            self._plug(carrier, "wan", public, f"port{number}")
            self._cable(carrier, router, "wan", shared)
            self._translate(carrier, RouterKind.PORT_RESTRICTED, f"{shared}.2")
        else:
            self._plug(router, "wan", public, f"port{number}")
        self._cable(router, machine, "eth0", home)
        self._translate(router, kind, f"{home}.2")
        return place

    def _add_ip6_home(self, number: int, machine: str) -> NatPlace:
        network = f"{PUBLIC_IP6}:{number}:"
        place = NatPlace(machine, f"{network}:2", f"{network}:2", RouterKind.IP6_FIREWALL)
        self._add(place.router)
        self._plug(place.router, "wan", f"{PUBLIC_IP6}::{number}", f"port{number}")
        self._cable(place.router, machine, "eth0", network, separator=":")
        self._translate(place.router, RouterKind.IP6_FIREWALL, place.address)
        return place

    def join_ip6(self, places: Sequence[NatPlace]) -> None:
        """Where there is a home with IPv6, gives the public machines addresses of it, and the segment its routes."""
        homes = [place for place in places if place.kind is RouterKind.IP6_FIREWALL]
        for number, place in enumerate(places, start=1):
            is_home = place.kind is RouterKind.IP6_FIREWALL
            if not homes or not (is_home or place.kind is RouterKind.NONE):
                continue
            if not is_home:
                _give_address(place.namespace, "eth0", f"{PUBLIC_IP6}::{number}")
            for home in homes:
                if home is not place:
                    network, _, _ = home.address.partition("::")
                    way = (f"{network}::/64", "via", f"{PUBLIC_IP6}::{network.rpartition(':')[2]}")
                    run_tool("ip", "-n", place.router if is_home else place.namespace, "-6", "route", "add", *way)

    def _add(self, namespace: str) -> None:
        run_tool("ip", "netns", "add", namespace)
        self.made.append(namespace)
        run_tool("ip", "-n", namespace, "link", "set", "lo", "up")

    def _plug(self, namespace: str, device: str, address: str, port: str) -> None:
        """Joins a namespace to the public segment."""
        ends = ("type", "veth", "peer", "name", port, "netns", self._segment)
        run_tool("ip", "-n", namespace, "link", "add", device, *ends)
        run_tool("ip", "-n", self._segment, "link", "set", port, "master", "br0", "up")
        self._ports.append(port)
        _give_address(namespace, device, address)

    def _cable(self, router: str, inside: str, device: str, network: str, *, separator: str = ".") -> None:
        """Joins ``inside`` to a router, through which it reaches everything else."""
        ends = ("type", "veth", "peer", "name", device, "netns", inside)
        run_tool("ip", "-n", router, "link", "add", "lan", *ends)
        _give_address(router, "lan", f"{network}{separator}1")
        _give_address(inside, device, f"{network}{separator}2")
        run_tool("ip", "-n", inside, "route", "add", "default", "via", f"{network}{separator}1")

    def _translate(self, router: str, kind: RouterKind, inside: str) -> None:
        run_tool("ip", "netns", "exec", router, "sysctl", "-qw", *FORWARDING)
        rules = router_rules(kind, inside)
        run_tool("ip", "netns", "exec", router, "nft", "-f", "-", typed=rules)


def _give_address(namespace: str, device: str, address: str) -> None:
    bits = ("/64", "nodad") if ":" in address else ("/24",)
    run_tool("ip", "-n", namespace, "address", "add", f"{address}{bits[0]}", "dev", device, *bits[1:])
    run_tool("ip", "-n", namespace, "link", "set", device, "up")


def router_rules(kind: RouterKind, inside: str) -> str:
    """Returns the rules of a router before the machine ``inside``."""
    if kind is RouterKind.IP6_FIREWALL:
        return _filter("ip6", "", "drop")
    source = "masquerade fully-random" if kind is RouterKind.SYMMETRIC else "masquerade"
    cone = kind is RouterKind.FULL_CONE
    used = "iifname lan update @used { tcp sport }" if cone else ""
    unexpected = "reject with tcp reset" if kind is RouterKind.RESETTING else "drop"
    forwarded = f"iifname wan tcp dport @used dnat to {inside}" if cone else ""
    return f"""
        table ip translation {{
            set used {{ type inet_service; flags dynamic, timeout; timeout 5m; }}
            chain before {{ type nat hook prerouting priority dstnat; {forwarded}; }}
            chain after {{ type nat hook postrouting priority srcnat; oifname wan {source}; }}
            chain passing {{ type filter hook forward priority -1; {used}; }}
        }}
        {_filter("ip", "iifname wan ct status dnat accept", unexpected)}
    """


def _filter(family: str, expected: str, unexpected: str) -> str:
    """Returns the rules for what comes in and no connection of the home expects."""
    tcp = "meta l4proto tcp" if unexpected != "drop" else ""
    return f"""
        table {family} firewall {{
            chain passing {{
                type filter hook forward priority filter;
                {expected}
                iifname wan ct state {{ new, invalid }} {tcp} {unexpected}
            }}
            chain own {{
                type filter hook input priority filter;
                {"icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept" if family == "ip6" else ""}
                iifname wan ct state {{ new, invalid }} {tcp} {unexpected}
            }}
        }}
    """
