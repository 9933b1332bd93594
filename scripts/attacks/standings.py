"""Identities that are banned on purpose, and others that do next to nothing, against what a node knows of its peers.

``--honest`` peers have a standing from claims that held. Then ``--identities`` of one stranger each make the three
false claims that a ban takes, as many others are seen to stall, and as many more send one heartbeat. Counted is what is
left of the honest peers' standings and notes, and of the 700 places of the list that a client is given.

    python -m scripts.attacks.standings [--identities 5000] [--honest 200] [--json]

Nothing here uses a network; CPU is of the three attacks.
"""

from __future__ import annotations

from time import process_time

from scripts.bench.common.reporting import Figure, figures_parser, report
from swarm.peers.peer_listing import MAX_BANNED_LISTED, MAX_PEERS_LISTED
from swarm.peers.peer_table import PeerTable
from swarm.peers.reputation import Conduct, ReputationBook

NOW = 1_790_000_000.0


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--identities", type=int, default=5000)
    parser.add_argument("--honest", type=int, default=200)
    arguments = parser.parse_args()
    book, table = ReputationBook(), PeerTable()
    honest = [f"honest {number}" for number in range(arguments.honest)]
    for peer in honest:
        book.observe(peer, Conduct.USED, NOW)
        table.of(peer).groups_used += 1
    began = process_time()
    for number in range(arguments.identities):
        for _ in range(3):
            book.observe(f"banned {number}", Conduct.FALSE_REWARD, NOW + 1.0)
        book.observe(f"idle {number}", Conduct.STALLED, NOW + 1.0)
        table.of(f"heartbeat {number}")
    cpu_seconds = process_time() - began
    kept = sum(book.of(peer, NOW + 1.0) > 0.5 for peer in honest) / len(honest)
    noted = sum(table.known(peer).groups_used for peer in honest) / len(honest)
    banned = book.banned(NOW + 1.0)
    room = MAX_PEERS_LISTED - min(len(banned), MAX_BANNED_LISTED)
    figures = [
        Figure("honest standings that are left", kept, "share", "higher", ">= .9"),
        Figure("notes on honest peers that are left", noted, "share", "higher", ">= .9"),
        Figure("places in the list for peers that are not banned", max(0, room), "of 700", "higher", "> 0"),
        Figure("records kept", len(book._records), "", "lower"),
        Figure("CPU, each identity", 1e6 * cpu_seconds / (3 * arguments.identities), "µs", "lower"),
    ]
    report(f"standings, {arguments.identities} identities of each kind", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
