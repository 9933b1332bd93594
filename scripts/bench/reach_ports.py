"""A home's router opens a port for its node: a real router, miniupnpd on nftables. Linux and root only.

    python -m scripts.bench.reach_ports [--method pcp|upnp] [--miniupnpd FILE] [--json]

Each machine, the router and the segment between them is a network namespace: three public swarm processes, and one
behind a port-restricted router, which knows two of them. Such a router keeps a port's number and lets in what the home
has sent to; the rest it drops, as the kernel's connection tracking sees it. Printed: the seconds from the start of that
one until two peers have dialled it and it knows; until a public process that knows nothing but the router's address has
connected to it; whether the router holds a port for it then, and after it has ended. ``docs/reach.md`` has the figures.
Needs Debian's miniupnpd-nftables. Nothing leaves the namespaces, and leaving removes them, also after Ctrl-C.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.common.slow_network import NoSlowNetworkError, check_allowed, run_tool
from scripts.bench.common.swarm_processes import SwarmProcess
from swarm.peers.reachability import Reach

PORT: Final = 4001  # of every node
PUBLIC: Final = "5.5.5"  # miniupnpd opens nothing at addresses for documentation
HOME: Final = "192.168.4"
PUBLIC_MACHINES: Final = 3
GIVE_UP_SECONDS: Final = 60.0
BAR_SECONDS: Final = 60.0
PORT_RESTRICTED: Final = """
    table ip translation {
        chain after { type nat hook postrouting priority srcnat; oifname wan masquerade; }
    }
    table ip firewall {
        chain passing {
            type filter hook forward priority filter;
            iifname wan ct status dnat accept
            iifname wan ct state { new, invalid } drop
        }
        chain own { type filter hook input priority filter; iifname wan ct state { new, invalid } drop; }
    }
"""
RULES: Final = """
    table inet miniupnpd {
        chain miniupnpd { }
        chain prerouting_miniupnpd { }
        chain postrouting_miniupnpd { }
        chain forward { type filter hook forward priority 10; policy accept; jump miniupnpd; }
        chain prerouting { type nat hook prerouting priority dstnat; policy accept; jump prerouting_miniupnpd; }
        chain postrouting { type nat hook postrouting priority srcnat; policy accept; jump postrouting_miniupnpd; }
    }
"""
SETTINGS: Final = """
ext_ifname=wan
listening_ip=lan
enable_natpmp={pcp}
enable_upnp={upnp}
secure_mode=yes
upnp_table_name=miniupnpd
upnp_nat_table_name=miniupnpd
uuid=00000000-0000-4000-8000-000000000001
allow 1024-65535 192.168.0.0/16 1024-65535
deny 0-65535 0.0.0.0/0 0-65535
"""


@dataclass(frozen=True)
class Machine:
    """A namespace, and the address at which the public segment sees it."""

    namespace: str
    public_address: str

    def command(self, command: Sequence[str] = ()) -> list[str]:
        """Returns the command that runs ``command`` on this machine."""
        return ["ip", "netns", "exec", self.namespace, *command]


class Laboratory:
    """Makes namespaces, which it adds to ``made``, and the cables between them."""

    def __init__(self, made: list[str]) -> None:
        self._made = made
        self._ports = 0
        self._segment = self.add("segment")
        self._on_segment("link", "add", "br0", "type", "bridge")
        self._on_segment("link", "set", "br0", "up")

    def add(self, name: str) -> str:
        namespace = f"starling-{os.getpid()}-{name}"
        run_tool("ip", "netns", "add", namespace)
        self._made.append(namespace)
        run_tool("ip", "-n", namespace, "link", "set", "lo", "up")
        return namespace

    def plug(self, namespace: str, device: str, address: str) -> None:
        """Joins a namespace to the public segment."""
        self._ports += 1
        port = f"port{self._ports}"
        ends = ("type", "veth", "peer", "name", port, "netns", self._segment)
        run_tool("ip", "-n", namespace, "link", "add", device, *ends)
        self._on_segment("link", "set", port, "master", "br0", "up")
        self.address(namespace, device, address)

    def cable(self, router: str, inside: str) -> None:
        """Joins ``inside`` to a router, through which it reaches everything else."""
        ends = ("type", "veth", "peer", "name", "eth0", "netns", inside)
        run_tool("ip", "-n", router, "link", "add", "lan", *ends)
        self.address(router, "lan", f"{HOME}.1")
        self.address(inside, "eth0", f"{HOME}.2")
        run_tool("ip", "-n", inside, "route", "add", "default", "via", f"{HOME}.1")

    @staticmethod
    def address(namespace: str, device: str, address: str) -> None:
        run_tool("ip", "-n", namespace, "address", "add", f"{address}/24", "dev", device)
        run_tool("ip", "-n", namespace, "link", "set", device, "up")

    def _on_segment(self, *words: str) -> None:
        run_tool("ip", "-n", self._segment, *words)


@contextmanager
def laboratory() -> Iterator[tuple[list[Machine], Machine, str]]:
    """Yields the public machines, the home, and the namespace of its router.

    Raises ``NoSlowNetworkError`` where that is impossible.
    """
    check_allowed(ip="iproute2", nft="nftables")
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # through the end below
    made: list[str] = []
    try:
        lab = Laboratory(made)
        public = [Machine(lab.add(str(n)), f"{PUBLIC}.{n}") for n in range(1, PUBLIC_MACHINES + 1)]
        for machine in public:
            lab.plug(machine.namespace, "eth0", machine.public_address)
        router, home = lab.add("router"), Machine(lab.add("home"), f"{PUBLIC}.{PUBLIC_MACHINES + 1}")
        lab.plug(router, "wan", home.public_address)
        lab.cable(router, home.namespace)
        on_router(router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        on_router(router, "nft", "-f", "-", typed=PORT_RESTRICTED)
        yield public, home, router
    finally:
        for namespace in made:  # removes its interfaces and rules too
            subprocess.run(["ip", "netns", "delete", namespace], check=False)
        signal.signal(signal.SIGTERM, before)


def on_router(router: str, *command: str, typed: str = "") -> str:
    return run_tool("ip", "netns", "exec", router, *command, typed=typed)


@contextmanager
def opening_ports(router: str, method: str, binary: str, directory: Path) -> Iterator[None]:
    """Runs miniupnpd on the router."""
    on_router(router, "nft", "-f", "-", typed=RULES)
    settings = directory / "miniupnpd.conf"
    settings.write_text(
        SETTINGS.format(pcp="yes" if method == "pcp" else "no", upnp="yes" if method == "upnp" else "no")
    )
    command = ["ip", "netns", "exec", router, binary, "-d", "-f", str(settings), "-P", str(directory / "pid")]
    with (directory / "miniupnpd.log").open("wb") as log:
        daemon = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        time.sleep(1.0)
        if daemon.poll() is not None:
            raise SystemExit((directory / "miniupnpd.log").read_text())
        yield
    finally:
        daemon.terminate()
        daemon.wait()


def ports_open(router: str) -> int:
    """Returns how many ports the router has opened."""
    return on_router(router, "nft", "list", "chain", "inet", "miniupnpd", "prerouting_miniupnpd").count("dnat")


def seconds_until(holds: Callable[[], bool], began: float) -> float | None:
    while time.monotonic() - began < GIVE_UP_SECONDS:
        if holds():
            return time.monotonic() - began
        time.sleep(0.25)
    return None


def opened(method: str, binary: str) -> list[Figure]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        public, home, router = stack.enter_context(laboratory())
        stack.enter_context(opening_ports(router, method, binary, directory))
        listen = f"/ip4/0.0.0.0/tcp/{PORT}"

        def start(number: int, machine: Machine, known: Sequence[str], *, port_mapping: bool = False) -> SwarmProcess:
            process = SwarmProcess(
                number, directory, known, prefix=machine.command(), listen=listen, port_mapping=port_mapping
            )
            stack.callback(process.close)
            return process

        known: list[str] = []
        for number, machine in enumerate(public[:2]):
            known += [a for a in start(number, machine, known).addresses if machine.public_address in a]
        began = time.monotonic()
        inside = start(3, home, known, port_mapping=True)
        reached = seconds_until(lambda: inside.client.status().reach.reach == Reach.INTERNET, began)
        status = inside.client.status()
        print(f"    {status.reach.in_words}", file=sys.stderr)
        during = ports_open(router)
        began = time.monotonic()
        at_router = f"/ip4/{home.public_address}/"
        seconds_until(lambda: any(a.startswith(at_router) for a in inside.client.status().addresses), began)
        stranger = start(2, public[2], [a for a in inside.client.status().addresses if a.startswith(at_router)])
        met = seconds_until(lambda: stranger.client.status().connected_peers > 0, began)
        inside.process.terminate()
        inside.process.wait()
        return [
            Figure(f"{method}: until two peers dialled the node", reached, "s", "lower", f"≤ {BAR_SECONDS:g}")
            if reached is not None
            else Figure(f"{method}: two peers dialled the node", 0.0, "times", "higher", "> 0"),
            Figure(f"{method}: a third, by the router's address, connected", float(met is not None), "yes", "higher"),
            Figure(f"{method}: ports that the router held", float(during), "ports", "higher", "> 0"),
            Figure(
                f"{method}: ports that it held after the node's end", float(ports_open(router)), "ports", "lower", "0"
            ),
        ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = figures_parser(__doc__)
    parser.add_argument(
        "--method", choices=("pcp", "upnp"), help="that the router offers; otherwise one after the other"
    )
    parser.add_argument("--miniupnpd", default="miniupnpd", help="the program, if it is not installed")
    options = parser.parse_args(arguments)
    binary = shutil.which(options.miniupnpd)
    if binary is None:
        raise SystemExit(f"there is no {options.miniupnpd} here: apt-get install miniupnpd-nftables")
    figures: list[Figure] = []
    for method in [options.method] if options.method else ["pcp", "upnp"]:
        try:
            figures += opened(method, binary)
        except NoSlowNetworkError as error:
            raise SystemExit(f"no namespaces here: {error}") from error
    report("reach_ports", figures, as_json=options.json)


if __name__ == "__main__":
    main()
