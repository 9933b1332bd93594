"""A whole swarm of simulated nodes under churn: what arrives, what a node pays, and whether that grows with the swarm.

    python -m scripts.bench.swarm_scale [--nodes 100 1000] [--minutes 10] [--real-minutes N] [--sybils .1]
        [--json]

Every node is the swarm's own code (``SwarmService``) on a simulated host in virtual time, a random learner beside it:
each round of ten seconds it shares a group, in every third it fetches one of another node and judges it, and every two
minutes it seeks a peer to average weights with. Gossip goes through meshes of four, as on our libp2p host. Thirty
percent of the nodes are replaced every ten minutes, half of them without a goodbye, by newcomers that know three
addresses. Twice the network falls into two halves, for a minute or a ninth of a short run; once where two would leave
no calm after them. One node in ten is a sybil, which announces once a second, more than is accepted of it, and serves
nothing.

The nodes at the start are those of a swarm that was there before: each knows addresses of twelve others, has heard
everybody, and has used up what it may send at once. They start within five seconds. Counted five seconds later:

- delivered: of all announcements by honest nodes, the share of honest nodes that accepted them within 15 s, of those
  that were there for 30 s before and 15 s after: in calm, outside of partitions and of the 45 s after one, and apart
  from that by the time since a heal;
- bytes received and sent by a node, a second;
- processor time of the whole simulation, a node and a second. Each announcement is opened (signature, structure, types)
  once for all nodes that received it; what it would cost if each node had opened it, which is what a real node does,
  is computed from the measured cost of one opening and printed beside it;
- fetches that brought their blob, of groups of honest nodes that are still there, in calm;
- searches for a partner to average with that ended in a commit, of those that began and would have ended in calm; for
  the others, the reasons of their proposals (standard error);
- connections of a node at the end, and memory of the process over nodes.
"""

from __future__ import annotations

import gc
import logging
import math
import sys
import tempfile
from pathlib import Path
from typing import Final

import anyio
from trio.testing import MockClock

from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.common.shared_opening import SharedOpening
from scripts.bench.scale.delivery import CALM, HEALING, Phase
from scripts.bench.scale.searches import Search, committed_share, reasons
from scripts.bench.scale.swarm import Bounds, Swarm

SYBIL_SHARE: Final = 0.1
RECEIVED: Final = "received by a node"
COLLECTING: Final = (100_000, 20, 100)  # rarely: most of a million objects stay for as long as the run
IN_MEMORY: Final = Path("/dev/shm")  # for the stores of all nodes, where there is one
REASONS_SHOWN: Final = 8


def measure(nodes: int, sybils: float, bounds: Bounds) -> list[Figure]:
    swarm_of: list[Swarm] = []
    opening, clock = SharedOpening(), MockClock(autojump_threshold=0)
    place = IN_MEMORY if IN_MEMORY.is_dir() else None

    async def main() -> None:
        with tempfile.TemporaryDirectory(prefix="scale-", dir=place) as folder:
            swarm_of.append(Swarm(nodes, sybils, bounds, Path(folder), clock, opening))
            await swarm_of[0].run()

    opening.install()
    try:
        anyio.run(main, backend="trio", backend_options={"clock": clock})
    finally:
        opening.uninstall()
    show_failures(swarm_of[0].observed.searches)
    return figures(f"{nodes} nodes: ", nodes, swarm_of[0], opening.seconds_each)


def show_failures(searches: list[Search]) -> None:
    failed = [search for search in searches if not search.is_committed]
    candidates = sum(search.candidates for search in failed) / max(1, len(failed))
    print(f"{len(failed)} searches found nobody, with {candidates:.1f} candidates at the end", file=sys.stderr)
    for why, count in reasons(searches).most_common(REASONS_SHOWN):
        print(f"  {count} × {why}", file=sys.stderr)


def figures(name: str, nodes: int, swarm: Swarm, seconds_of_an_opening: float) -> list[Figure]:
    found, delivery = swarm.observed, swarm.delivery
    fetches, of_a_node = found.fetched.total(), max(1e-9, found.node_seconds)
    due = sum(delivery.due[phase] for phase in CALM)
    shares = [(phase, 100 * delivery.share(phase)) for phase in (*HEALING, Phase.AFTER) if delivery.due[phase]]
    searched = [100 * committed_share(found.searches)] if found.searches else []
    per_second = "announcements/s"
    return [
        Figure(name + "observed, of virtual time", found.seconds / 60.0, "min", "higher"),
        Figure(name + "receptions that were due", float(due), "", "higher"),
        Figure(name + "delivered", 100 * delivery.share(*CALM), "%", "higher", ">= 99.9 %"),
        *(Figure(f"{name}delivered {phase}", share, "%", "higher") for phase, share in shares),
        Figure(name + "accepted by a node", found.accepted / of_a_node, per_second, "lower"),
        Figure(name + "refused by a node for their sender's rate", found.refused / of_a_node, per_second, "lower"),
        Figure(name + RECEIVED, found.received_bytes / of_a_node / 1e3, "kB/s", "lower"),
        Figure(name + "sent by a node", found.sent_bytes / of_a_node / 1e3, "kB/s", "lower"),
        Figure(name + "fetches that brought the blob", 100 * found.fetched[True] / max(1, fetches), "%", "higher"),
        *(Figure(f"{name}searches that ended in averaging", share, "%", "higher") for share in searched),
        Figure(name + "fetches of groups", float(fetches), "", "higher"),
        Figure(name + "searches for a partner", float(len(found.searches)), "", "higher"),
        Figure(name + "connections of a node", found.connections, "", "lower"),
        Figure(name + "memory of the process over nodes", found.resident_bytes / nodes / 1e6, "MB", "lower"),
        Figure(name + "processor time of a node, opening shared", 1e3 * found.cpu_seconds, "ms/s", "lower"),
        Figure(name + "opening what it receives, computed", 1e3 * found.opening_seconds, "ms/s", "lower"),
        Figure(name + "one opening", 1e6 * seconds_of_an_opening, "us", "lower"),
    ]


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000], help="sizes of the swarm")
    parser.add_argument("--minutes", type=float, default=10.0, help="of virtual time, after ten seconds of starting")
    parser.add_argument("--real-minutes", type=float, default=math.inf, help="of one size; a longer run is cut short")
    parser.add_argument("--sybils", type=float, default=SYBIL_SHARE, help="share of the nodes that are sybils")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    gc.set_threshold(*COLLECTING)
    found: list[Figure] = []
    for nodes in arguments.nodes:
        found += measure(nodes, arguments.sybils, Bounds(arguments.minutes, arguments.real_minutes))
    received = [figure.value for figure in found if figure.name.endswith(RECEIVED)]
    if len(received) > 1:
        name = f"{RECEIVED}: {arguments.nodes[-1]} nodes over {arguments.nodes[0]}"
        found.append(Figure(name, received[-1] / received[0], "x", "lower", "<= 1.2"))
    report("swarm_scale", found, as_json=arguments.json)


if __name__ == "__main__":
    main()
