"""A home's router opens a port for its node: a real router, miniupnpd on nftables. Linux and root only.

    python -m scripts.bench.reach_ports [--method pcp|upnp] [--miniupnpd FILE] [--json]

Network namespaces (``common.nat_lab``): three public swarm processes, and one behind a port-restricted router, which
knows two of them. Printed: the seconds from the start of that one until two peers have dialled it and it knows; until a
public process that knows nothing but the router's address has connected to it; whether the router holds a port for it
then, and after it has ended. ``docs/reach.md`` has the figures. Needs Debian's miniupnpd-nftables.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from scripts.bench.common.nat_lab import PORT, NatPlace, RouterKind, nat_lab
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.common.slow_network import NoSlowNetworkError, run_tool
from scripts.bench.common.swarm_processes import SwarmProcess
from swarm.peers.reachability import Reach

GIVE_UP_SECONDS: Final = 60.0
BAR_SECONDS: Final = 60.0
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


@contextmanager
def opening_ports(place: NatPlace, method: str, binary: str, directory: Path) -> Iterator[None]:
    """Runs miniupnpd on the router before a machine."""
    run_tool("ip", "netns", "exec", place.router, "nft", "-f", "-", typed=RULES)
    settings = directory / "miniupnpd.conf"
    settings.write_text(
        SETTINGS.format(pcp="yes" if method == "pcp" else "no", upnp="yes" if method == "upnp" else "no")
    )
    command = ["ip", "netns", "exec", place.router, binary, "-d", "-f", str(settings), "-P", str(directory / "pid")]
    with (directory / "miniupnpd.log").open("wb") as log:
        router = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        time.sleep(1.0)
        if router.poll() is not None:
            raise SystemExit((directory / "miniupnpd.log").read_text())
        yield
    finally:
        router.terminate()
        router.wait()


def ports_open(place: NatPlace) -> int:
    """Returns how many ports the router has opened."""
    command = ("ip", "netns", "exec", place.router, "nft", "list", "chain", "inet", "miniupnpd", "prerouting_miniupnpd")
    return run_tool(*command).count("dnat")


def seconds_until(holds: Callable[[], bool], began: float) -> float | None:
    while time.monotonic() - began < GIVE_UP_SECONDS:
        if holds():
            return time.monotonic() - began
        time.sleep(0.25)
    return None


def opened(method: str, binary: str) -> list[Figure]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kinds = [RouterKind.NONE] * 3 + [RouterKind.PORT_RESTRICTED]
        *public, home = stack.enter_context(nat_lab(kinds))
        stack.enter_context(opening_ports(home, method, binary, directory))
        listen = f"/ip4/0.0.0.0/tcp/{PORT}"

        def start(number: int, place: NatPlace, known: Sequence[str], *, port_mapping: bool = False) -> SwarmProcess:
            process = SwarmProcess(
                number, directory, known, prefix=place.command([]), listen=listen, port_mapping=port_mapping
            )
            stack.callback(process.close)
            return process

        known: list[str] = []
        for number, place in enumerate(public[:2]):
            known += [a for a in start(number, place, known).addresses if place.address in a]
        began = time.monotonic()
        inside = start(3, home, known, port_mapping=True)
        reached = seconds_until(lambda: inside.client.status().reach.reach == Reach.INTERNET, began)
        status = inside.client.status()
        print(f"    {status.reach.in_words}", file=sys.stderr)
        during = ports_open(home)
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
                f"{method}: ports that it held after the node's end", float(ports_open(home)), "ports", "lower", "0"
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
