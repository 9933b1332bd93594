"""Homes behind routers: each machine, each router and the public segment is a network namespace. Linux and root only.

    home ── router ── public segment ── public machines
    home ── router ── carrier's router ── public segment

What a router does with the address that it translates is what decides who can meet whom:

- full cone: a port keeps its number, and everybody may send to it once the home has sent from it;
- port-restricted: a port keeps its number, and only an address and port may send to it to which the home has sent;
- symmetric: every connection gets a random port of its own, and only its other end may send to it;
- carrier: a port-restricted router behind another one, as behind the address that a provider shares among customers.

Routers drop what they do not expect, as the kernel's connection tracking sees it. A home is 192.168.n.2, a router or a
public machine an address of 203.0.113.0/24, which is for documentation, unless another network is given. Nothing leaves
the namespaces. They are named after this process, and leaving removes them, also after Ctrl-C. Needs ``ip`` (iproute2)
and ``nft`` (nftables).
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
FORWARDING = "net.ipv4.ip_forward=1"


class RouterKind(Enum):
    """The router between a home and the public segment; ``NONE`` for a machine on the segment itself."""

    NONE = "public"
    FULL_CONE = "full cone"
    PORT_RESTRICTED = "port-restricted"
    SYMMETRIC = "symmetric"
    CARRIER = "carrier"


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

    @property
    def multiaddr(self) -> str:
        return f"/ip4/{self.address}/tcp/{PORT}"


@contextmanager
def nat_lab(kinds: Sequence[RouterKind], *, public: str = "203.0.113") -> Iterator[list[NatPlace]]:
    """Yields one machine for each of ``kinds``; ``public`` begins every public address.

    Raises ``NoSlowNetworkError`` where that is impossible.
    """
    check_allowed(ip="iproute2", nft="nftables")
    lab = _Lab(f"starling-{os.getpid()}", public)
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # through the end below
    try:
        lab.add_segment()
        yield [lab.add_place(number, kind) for number, kind in enumerate(kinds, start=1)]
    finally:
        for namespace in lab.made:  # removes its interfaces and rules too
            subprocess.run(["ip", "netns", "delete", namespace], check=False)
        signal.signal(signal.SIGTERM, before)


class _Lab:
    def __init__(self, prefix: str, public: str) -> None:
        self.made: list[str] = []
        self._prefix = prefix
        self._public = public
        self._segment = f"{prefix}-segment"

    def add_segment(self) -> None:
        self._add(self._segment)
        run_tool("ip", "-n", self._segment, "link", "add", "br0", "type", "bridge")
        run_tool("ip", "-n", self._segment, "link", "set", "br0", "up")

    def add_place(self, number: int, kind: RouterKind) -> NatPlace:
        machine, public = f"{self._prefix}-{number}", f"{self._public}.{number}"
        self._add(machine)
        if kind is RouterKind.NONE:
            self._plug(machine, "eth0", public, f"port{number}")
            return NatPlace(machine, public, public, kind)
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

    def _add(self, namespace: str) -> None:
        run_tool("ip", "netns", "add", namespace)
        self.made.append(namespace)
        run_tool("ip", "-n", namespace, "link", "set", "lo", "up")

    def _plug(self, namespace: str, device: str, address: str, port: str) -> None:
        """Joins a namespace to the public segment."""
        ends = ("type", "veth", "peer", "name", port, "netns", self._segment)
        run_tool("ip", "-n", namespace, "link", "add", device, *ends)
        run_tool("ip", "-n", self._segment, "link", "set", port, "master", "br0", "up")
        _give_address(namespace, device, address)

    def _cable(self, router: str, inside: str, device: str, network: str) -> None:
        """Joins ``inside`` to a router, through which it reaches everything else."""
        ends = ("type", "veth", "peer", "name", device, "netns", inside)
        run_tool("ip", "-n", router, "link", "add", "lan", *ends)
        _give_address(router, "lan", f"{network}.1")
        _give_address(inside, device, f"{network}.2")
        run_tool("ip", "-n", inside, "route", "add", "default", "via", f"{network}.1")

    def _translate(self, router: str, kind: RouterKind, inside: str) -> None:
        run_tool("ip", "netns", "exec", router, "sysctl", "-qw", FORWARDING)
        rules = router_rules(kind, inside)
        run_tool("ip", "netns", "exec", router, "nft", "-f", "-", typed=rules)


def router_rules(kind: RouterKind, inside: str) -> str:
    """Returns the rules, in the language of nftables, of a router before the machine ``inside``."""
    source = "masquerade fully-random" if kind is RouterKind.SYMMETRIC else "masquerade"
    cone = kind is RouterKind.FULL_CONE
    used = "iifname lan update @used { tcp sport }" if cone else ""
    forwarded = f"iifname wan tcp dport @used dnat to {inside}" if cone else ""
    return f"""
        table ip translation {{
            set used {{ type inet_service; flags dynamic, timeout; timeout 5m; }}
            chain before {{ type nat hook prerouting priority dstnat; {forwarded}; }}
            chain after {{ type nat hook postrouting priority srcnat; oifname wan {source}; }}
            chain passing {{
                type filter hook forward priority filter;
                {used}
                iifname wan ct status dnat accept
                iifname wan ct state {{ new, invalid }} drop
            }}
            chain own {{ type filter hook input priority filter; iifname wan ct state {{ new, invalid }} drop; }}
        }}
    """


def _give_address(namespace: str, device: str, address: str) -> None:
    run_tool("ip", "-n", namespace, "address", "add", f"{address}/24", "dev", device)
    run_tool("ip", "-n", namespace, "link", "set", device, "up")
