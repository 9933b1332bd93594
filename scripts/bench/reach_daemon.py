"""What the Go daemon ``p2pd`` does behind routers if it is told to: relays, places at relays, hole punching.

    python -m scripts.bench.reach_daemon [--only "port-restricted,symmetric"] [--public-peers 4] [--json]

A node on the Go host does none of this (docs/reach.md says why), so here the daemon gets flags that the host does not
give it: the public daemons relay and say that they can be dialled, those of the two homes (``common.nat_lab``) say that
they cannot and take places at the public ones. Home two then dials home one through the first relay. Printed: how the
homes are connected ``WATCH_SECONDS`` later. Needs the extra ``go``; Linux and root only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread

from protocol.errors import TransportError
from protocol.identity import NodeKey
from scripts.bench.common.home_processes import is_loopback
from scripts.bench.common.nat_lab import PORT, ROUTABLE, NatPlace, nat_lab
from scripts.bench.common.nat_routers import RouterKind
from scripts.bench.common.reporting import Figure, add_json_flag, report
from scripts.bench.common.slow_network import NoSlowNetworkError
from swarm.hosts.go.daemon_process import find_daemon
from swarm.hosts.go.go_host import GoHost

KINDS: Final = (RouterKind.FULL_CONE, RouterKind.PORT_RESTRICTED, RouterKind.CARRIER, RouterKind.SYMMETRIC)
PLACE_SECONDS: Final = 60.0  # for home one to take a place
WATCH_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 15.0


async def serve(home: str, flags: str) -> None:
    """Runs a host whose daemon gets ``flags`` too, and does what the lines of standard input ask."""
    binary = Path(home) / "p2pd-with-flags"
    binary.write_text(f'#!/bin/sh\nexec "{find_daemon()}" "$@" {flags}\n')
    binary.chmod(0o700)
    host = GoHost(NodeKey.generate(), [f"/ip4/0.0.0.0/tcp/{PORT}"], home=Path(home), binary=binary)
    async with host.run():
        print(json.dumps({"peer": host.peer_id, "addresses": list(host.addresses())}), flush=True)
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            answer: dict[str, Any] = {"addresses": list(host.addresses())}
            asked = json.loads(line)
            if "connect" in asked:
                try:
                    await host.connect(asked["connect"], deadline_seconds=CONNECT_SECONDS)
                except TransportError as error:
                    answer["failed"] = str(error)
            answer["peers"] = {peer: "relayed" if host.is_relayed(peer) else "direct" for peer in host.peers()}
            print(json.dumps(answer), flush=True)


class DaemonProcess:
    """A host on a machine of the laboratory, in a process of its own."""

    def __init__(self, place: NatPlace, home: Path, flags: str) -> None:
        home.mkdir()
        command = [sys.executable, "-m", "scripts.bench.reach_daemon", "--serve", str(home), flags]
        self._process = subprocess.Popen(place.command(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        began = self._line()
        self.peer: str = began["peer"]
        self.addresses: list[str] = began["addresses"]

    def ask(self, **what: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline() or "{}")
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def meet(kinds: tuple[RouterKind, RouterKind], public_peers: int, directory: Path) -> str:
    """Returns how the homes are connected in the end, or why not."""
    with ExitStack() as stack:
        places = stack.enter_context(nat_lab([*[RouterKind.NONE] * public_peers, *kinds], public=ROUTABLE))
        relays = []
        for number, place in enumerate(places[:public_peers]):
            flags = "-relayService=true -forceReachabilityPublic"
            relays.append(DaemonProcess(place, directory / f"relay{number}", flags))
            stack.callback(relays[-1].close)
        addresses = [next(a for a in relay.addresses if not is_loopback(a)) for relay in relays]
        homes = []
        for number, place in enumerate(places[public_peers:]):
            flags = f"-forceReachabilityPrivate -trustedRelays {','.join(addresses)}"
            homes.append(DaemonProcess(place, directory / f"home{number}", flags))
            stack.callback(homes[-1].close)
            for address in addresses:
                homes[-1].ask(connect=address)
        one, two = homes
        if not _has_place(one):
            return "no place at a relay"
        dialled = two.ask(connect=f"{addresses[0]}/p2p-circuit/p2p/{one.peer}")
        until = time.monotonic() + WATCH_SECONDS
        while (how := two.ask()["peers"].get(one.peer, "none")) != "direct" and time.monotonic() < until:
            time.sleep(1.0)
        return how if how != "none" or "failed" not in dialled else str(dialled["failed"])


def _has_place(home: DaemonProcess) -> bool:
    until = time.monotonic() + PLACE_SECONDS
    while not any("/p2p-circuit/" in address for address in home.ask()["addresses"]):
        if time.monotonic() > until:
            return False
        time.sleep(1.0)
    return True


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", help='two kinds of router, such as "port-restricted,symmetric"; otherwise all pairs')
    parser.add_argument("--public-peers", type=int, default=4)
    parser.add_argument("--serve", nargs=2, metavar=("HOME", "FLAGS"), help=argparse.SUPPRESS)
    add_json_flag(parser)
    options = parser.parse_args(arguments)
    if options.serve:
        anyio.run(serve, *options.serve, backend="trio")
        return
    pairs = list(combinations_with_replacement(KINDS, 2))
    if options.only:
        one, _, other = options.only.partition(",")
        pairs = [(RouterKind(one), RouterKind(other or one))]
    figures = []
    for kinds in pairs:
        with tempfile.TemporaryDirectory() as directory:
            try:
                how = meet(kinds, options.public_peers, Path(directory))
            except NoSlowNetworkError as error:
                raise SystemExit(f"no namespaces here: {error}") from error
        print(f"| {kinds[0].value} | {kinds[1].value} | {how} |", file=sys.stderr)
        figures.append(
            Figure(f"{kinds[0].value} and {kinds[1].value}: direct", float(how == "direct"), "yes", "higher")
        )
    report("reach_daemon", figures, as_json=options.json)


if __name__ == "__main__":
    main()
