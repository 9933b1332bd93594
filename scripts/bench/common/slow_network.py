"""Peers with their own links: a network namespace per peer, joined by a bridge in another one. Linux and root only.

Each peer's ``eth0`` has an address of 10.99.0.0/24 and is shaped by ``tc tbf`` to one rate each way: what it sends at
its own end, what it receives at the bridge's end. A delay is that of a cable whose frames a thread carries. Nothing
outside the namespaces changes, and leaving removes them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from scripts.bench.common.delayed_cable import DelayedCables

BURST_BYTES = 64 * 1024
QUEUE_MILLISECONDS = 50
TOGETHER, APART = SEGMENTS = ("br0", "br1")  # bridges that are not joined; every peer begins in the first


class NoSlowNetworkError(Exception):
    """This machine or this user cannot make network namespaces."""


@dataclass(frozen=True)
class SlowPeer:
    """One peer's place in the network."""

    namespace: str
    address: str
    bridge: str  # the namespace of the bridge
    port: str  # the peer's interface there

    def command(self, command: Sequence[str]) -> list[str]:
        """Returns the command that runs ``command`` in the peer's namespace."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def set_rate(self, megabits: float) -> None:
        """Shapes the peer's link anew, both ways."""
        for namespace, device in self._ends:
            run_tool("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", *_shape(megabits))

    def join(self, segment: str) -> None:
        """Plugs the peer's cable into ``segment``: peers reach each other within one segment."""
        run_tool("ip", "-n", self.bridge, "link", "set", self.port, "master", segment)

    def unplug(self) -> None:
        """Leaves the peer with its address and no way out, until it joins a segment again."""
        run_tool("ip", "-n", self.bridge, "link", "set", self.port, "nomaster")

    def set_up(self, up: bool) -> None:
        """Takes the peer's interface down, as where a card or a driver is restarted, or up again; addresses stay."""
        run_tool("ip", "-n", self.namespace, "link", "set", "eth0", "up" if up else "down")

    @property
    def _ends(self) -> tuple[tuple[str, str], tuple[str, str]]:
        return (self.namespace, "eth0"), (self.bridge, self.port)


@contextmanager
def slow_network(count: int, megabits: float, delay_seconds: float = 0.0) -> Iterator[list[SlowPeer]]:
    """Yields ``count`` peers that reach only each other, so long after they have sent. Raises ``NoSlowNetworkError``
    where that is impossible."""
    check_allowed(ip="iproute2", tc="iproute2")
    prefix = f"starling-{os.getpid()}"
    bridge = f"{prefix}-bridge"
    peers = [
        SlowPeer(f"{prefix}-{number}", f"10.99.0.{number + 1}", bridge, f"port{number}") for number in range(count)
    ]
    made: list[str] = []
    cables = ExitStack()
    try:
        for namespace in (bridge, *(peer.namespace for peer in peers)):
            run_tool("ip", "netns", "add", namespace)
            made.append(namespace)
        for segment in SEGMENTS:
            run_tool("ip", "-n", bridge, "link", "add", segment, "type", "bridge")
            run_tool("ip", "-n", bridge, "link", "set", segment, "up")
        names = [(f"far{os.getpid()}-{number}", f"near{os.getpid()}-{number}") for number in range(count)]
        if delay_seconds:
            cables.callback(DelayedCables(names, delay_seconds / 2).close)  # a frame goes through two of them
        for peer, ends in zip(peers, names, strict=True):
            _connect(peer, megabits, ends if delay_seconds else None)
        yield peers
    finally:
        cables.close()
        for namespace in made:  # removes its interfaces too
            subprocess.run(["ip", "netns", "delete", namespace], check=False)


def _connect(peer: SlowPeer, megabits: float, cable: tuple[str, str] | None) -> None:
    """``cable``: the devices at its two ends, where it is there already."""
    if cable is None:
        ends = ("type", "veth", "peer", "name", peer.port, "netns", peer.bridge)
        run_tool("ip", "-n", peer.namespace, "link", "add", "eth0", *ends)
    else:
        for end, namespace, name in zip(cable, (peer.namespace, peer.bridge), ("eth0", peer.port), strict=True):
            run_tool("ip", "link", "set", end, "netns", namespace, "name", name)
    run_tool("ip", "-n", peer.bridge, "link", "set", peer.port, "up")
    peer.join(TOGETHER)
    run_tool("ip", "-n", peer.namespace, "address", "add", f"{peer.address}/24", "dev", "eth0")
    for device in ("lo", "eth0"):
        run_tool("ip", "-n", peer.namespace, "link", "set", device, "up")
    peer.set_rate(megabits)


def _shape(megabits: float) -> list[str]:
    return f"rate {megabits}mbit burst {BURST_BYTES} latency {QUEUE_MILLISECONDS}ms".split()


def check_allowed(**package_of_tool: str) -> None:
    """Raises ``NoSlowNetworkError``, which says what to install, unless root has these tools."""
    missing = [tool for tool in package_of_tool if shutil.which(tool) is None]
    if missing:
        packages = sorted({package_of_tool[tool] for tool in missing})
        raise NoSlowNetworkError(
            f"{' and '.join(missing)} not found: install {' and '.join(packages)} (only Linux has network namespaces)"
        )
    if os.geteuid() != 0:
        raise NoSlowNetworkError("only root may make network namespaces: run this with sudo")


def run_tool(*command: str, typed: str = "") -> str:
    """Runs a command as root, with ``typed`` on its standard input; returns its output.

    Raises ``NoSlowNetworkError``.
    """
    result = subprocess.run(command, check=False, capture_output=True, text=True, input=typed)
    if result.returncode:
        raise NoSlowNetworkError(f"{' '.join(command)}: {result.stderr.strip()}: root in a container may not be enough")
    return result.stdout
