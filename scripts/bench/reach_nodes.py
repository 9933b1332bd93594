"""Whole nodes behind routers learn from each other, and go on when the public peer is gone. Linux and root only.

    python -m scripts.bench.reach_nodes [--kinds port-restricted,port-restricted] [--public relay] [--private] [--json]

Network namespaces (``common.nat_lab``): a public peer, by default a node that trains too, and two nodes with the
smallest built-in model behind routers, which know the public one's address alone. With ``--private`` they are members
of a private cluster, to whom the public one sent invites, and a process that has none tries to connect to it. Printed:
the seconds from the start of the second home to the first group of the first home that it trained on, and to their
first direct connection; how many such groups it had trained on before that. Where they are connected directly, the
public peer is then killed, and what the second home does with the first one's groups and weights is counted for
``AFTER_SECONDS`` and until it has averaged weights, ``ALONE_SECONDS`` at most.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from node.tasks.registry import default_manifest_tasks
from protocol.manifest import Manifest
from scripts.bench.common.home_processes import connection
from scripts.bench.common.nat_lab import PORT, NatPlace, nat_lab
from scripts.bench.common.nat_routers import RouterKind
from scripts.bench.common.reporting import Figure, add_json_flag, report
from scripts.bench.common.swarm_processes import SwarmProcess
from scripts.bench.common.whole_nodes import WholeNode, starling

BAR_SECONDS: Final = 60.0
GIVE_UP_SECONDS: Final = 150.0
PUNCH_SECONDS: Final = 30.0  # after the first group, for the hole to be punched
AFTER_SECONDS: Final = 60.0
ALONE_SECONDS: Final = 240.0
SWARM: Final = "starling"


def invite(public: NatPlace, home: Path, name: str) -> list[str]:
    """Returns the options with which ``name`` joins the public node's cluster."""
    invitation = home.parent / f"{name}.invite"
    invitation.touch(mode=0o600)
    invitation.write_text(starling(public, "invite", "--for", name, "--home", str(home)))
    return ["--join", str(invitation)]


def meet(kinds: Sequence[RouterKind], verb: str, *, private: bool) -> list[Figure]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        public, *homes, stranger = stack.enter_context(nat_lab([RouterKind.NONE, *kinds, RouterKind.NONE]))
        door_home = directory / "door"
        if private:
            starling(public, "swarm", "create", "--private", "--name", "lab", "--home", str(door_home))
        door = WholeNode(public, door_home, verb=verb)
        stack.callback(door.close)
        nodes = []
        for name, place in zip(("one", "two"), homes, strict=True):
            ways_in = invite(public, door_home, name) if private else ["--peer", door.address]
            nodes.append(WholeNode(place, directory / name, *ways_in))
            stack.callback(nodes[-1].close)
        figures = watch(door, nodes[0], nodes[1])
        if private:
            figures.append(_connections_of_a_stranger(stranger, door.address, directory))
        if connection(nodes[1].client, nodes[0].peer) == "direct":
            door.process.kill()
            figures += alone(nodes[0], nodes[1])
        return figures


def watch(door: WholeNode, one: WholeNode, two: WholeNode) -> list[Figure]:
    """Watches until the second home has trained on a group of the first and is connected to it directly."""
    used_at = direct_at = None
    relayed = through = 0
    while two.seconds() < GIVE_UP_SECONDS and (used_at is None or two.seconds() < used_at + PUNCH_SECONDS):
        used, how = two.used_of(one.peer), connection(two.client, one.peer)
        if how == "direct" and direct_at is None:
            direct_at = two.seconds()
        if direct_at is None:
            relayed, through = used, door.client.status().reach.relayed_bytes
        if used and used_at is None:
            used_at = two.seconds()
        if used and direct_at is not None:
            break
        time.sleep(0.5)
    figures = [
        Figure(what, seconds, "s", "lower", bar)
        for what, seconds, bar in (
            ("first group of the other home trained on", used_at, f"≤ {BAR_SECONDS:g}"),
            ("connected directly", direct_at, None),
        )
        if seconds is not None
    ]
    return [
        *figures,
        Figure("groups trained on that came through the relay", float(relayed), "groups", "higher"),
        Figure("relayed until then", float(through), "bytes", "lower"),
    ]


def alone(one: WholeNode, two: WholeNode) -> list[Figure]:
    """Counts what the second home does with the first one's work once the public peer is gone, until it has averaged
    weights with it too, or ``ALONE_SECONDS`` are over."""
    began, averaged, used = time.monotonic(), two.averaged, two.used_of(one.peer)
    while (seconds := time.monotonic() - began) < ALONE_SECONDS:
        if seconds > AFTER_SECONDS and two.averaged > averaged:
            break
        time.sleep(0.5)
    after = f"in {seconds:.0f} s without the public peer"
    used = two.used_of(one.peer) - used
    return [
        Figure(f"groups of the other home trained on {after}", float(used), "groups", "higher", "> 0"),
        Figure(f"outer steps with it {after}", float(two.averaged - averaged), "steps", "higher", "> 0"),
    ]


def _connections_of_a_stranger(place: NatPlace, address: str, directory: Path) -> Figure:
    swarm_id = Manifest(SWARM, default_manifest_tasks()).swarm_id.hex()
    listen = f"/ip4/0.0.0.0/tcp/{PORT}"
    stranger = SwarmProcess(9, directory, [address], prefix=place.command([]), listen=listen, swarm_id=swarm_id)
    try:
        time.sleep(10.0)
        connected = stranger.client.status().connected_peers
    finally:
        stranger.close()
    return Figure("members that a stranger is connected to", float(connected), "peers", "lower", "0")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kinds", default="port-restricted,port-restricted", help="of router, as in docs/reach.md")
    parser.add_argument("--public", choices=("node", "relay"), default="node", help="what the public peer is")
    parser.add_argument("--private", action="store_true", help="a private cluster")
    add_json_flag(parser)
    options = parser.parse_args(arguments)
    kinds = [RouterKind(kind) for kind in options.kinds.split(",")]
    figures = meet(kinds, "up" if options.public == "node" else "relay", private=options.private)
    report("reach_nodes", figures, as_json=options.json)


if __name__ == "__main__":
    main()
