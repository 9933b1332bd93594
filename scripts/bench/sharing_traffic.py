"""Bytes that each of 16 peers sends in a round of sharing: 16 swarm processes, real libp2p, loopback.

    python -m scripts.bench.sharing_traffic [--peers 16] [--rounds 5] [--json]

A round: every peer shares 4 groups of 8 completions of 256 characters (one token per character, as with a
character-level tokenizer), and fetches 4 groups of others once all peers have seen all adverts. Bytes are those of the
sockets, with everything: Noise, Yamux, gossip, heartbeats, DHT, peer exchange. What an idle swarm sends in the duration
of a round is measured first and reported separately.

The bar is a tenth of genrl 0.3.0 on a hivemind DHT: 1,293 kB a peer and round for the same load. Then larger groups
and such of ``limits.GROUP_TOKENS`` tokens are sent once, from every peer to another. No group of any size may be lost.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

from protocol import limits
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.common.swarm_processes import SwarmProcess, group, swarm_of, wait_for_peers
from swarm import api

GENRL_BYTES = 1_293_000  # sent by each peer in a round, genrl 0.3.0 with hivemind 1.1.12
REST_SECONDS = 20.0  # until the mesh and the DHT have settled, and again to measure them idle
SETTLE_SECONDS = 1.0  # for what gossip sends after all peers have the adverts
MAX_ADVERT_SECONDS = 120.0  # an advert that a peer has not seen by then counts as lost


@dataclass(frozen=True)
class Load:
    """The work of each peer in a round."""

    characters: int
    completions: int
    shared: int
    used: int


SMALL = Load(characters=256, completions=8, shared=4, used=4)
LARGE = Load(characters=4096, completions=8, shared=1, used=1)
LARGEST = Load(characters=limits.COMPLETION_TOKENS, completions=4, shared=1, used=1)


@dataclass(frozen=True)
class SharingRound:
    """Mean bytes that a peer sent, and what was lost."""

    adverts_bytes: float
    blobs_bytes: float
    seconds: float
    group_bytes: float  # mean size of the blobs
    lost_share: float  # of the adverts or of the groups to be fetched, whichever is more


def sent(swarm: Sequence[SwarmProcess]) -> float:
    """Returns the mean bytes that a peer has sent since its start."""
    return sum(p.client.status().sent_bytes for p in swarm) / len(swarm)


def run_round(swarm: Sequence[SwarmProcess], random: Random, load: Load) -> SharingRound:
    versions = [random.randrange(10_000) for _ in swarm]  # all groups that a peer shares in a round have one
    groups = [[group(random, load.characters, load.completions, v) for _ in range(load.shared)] for v in versions]
    known = [len(p.client.seen_groups(0, 4096)) for p in swarm]
    choices = [Random(random.random()) for _ in swarm]
    with ThreadPoolExecutor(len(swarm)) as learners:
        began, before_bytes = time.monotonic(), sent(swarm)
        list(learners.map(lambda p, mine: p.client.share(mine), swarm, groups))
        expected = load.shared * (len(swarm) - 1)
        until = time.monotonic() + MAX_ADVERT_SECONDS
        while True:
            seen = [p.client.seen_groups(0, 4096)[k:] for p, k in zip(swarm, known, strict=True)]
            if min(map(len, seen)) >= expected or time.monotonic() > until:
                break
            time.sleep(0.1)
        time.sleep(SETTLE_SECONDS)
        adverts_bytes = sent(swarm) - before_bytes

        def use(process: SwarmProcess, offered: list[api.SeenGroup], choice: Random) -> list[api.Fetched]:
            chosen = choice.sample(offered, min(load.used, len(offered)))
            wanted = [api.Wanted(s.advert.blob, s.advert.size, (s.peer,)) for s in chosen]
            return process.client.fetch(wanted, deadline_seconds=300.0)

        fetched = [f for of_peer in learners.map(use, swarm, seen, choices) for f in of_peer]
        blobs_bytes = sent(swarm) - before_bytes - adverts_bytes
    arrived = sum(f.is_here for f in fetched)
    sizes = [s.advert.size for of_peer in seen for s in of_peer]
    return SharingRound(
        adverts_bytes=adverts_bytes,
        blobs_bytes=blobs_bytes,
        seconds=time.monotonic() - began,
        group_bytes=sum(sizes) / len(sizes),
        lost_share=1.0 - min(sum(map(len, seen)) / (expected * len(swarm)), arrived / (load.used * len(swarm))),
    )


def measure(count: int, rounds: int, directory: Path) -> list[Figure]:
    random = Random(1)
    with swarm_of(count, directory) as swarm:
        wait_for_peers(swarm, min(count - 1, 8), at_most_seconds=120.0)
        time.sleep(REST_SECONDS)
        began, idle_bytes = time.monotonic(), sent(swarm)
        time.sleep(REST_SECONDS)
        idle_rate = (sent(swarm) - idle_bytes) / (time.monotonic() - began)
        small = [run_round(swarm, random, SMALL) for _ in range(rounds)]
        large, largest = run_round(swarm, random, LARGE), run_round(swarm, random, LARGEST)
    blobs = sum(r.blobs_bytes for r in small) / rounds
    total = blobs + sum(r.adverts_bytes for r in small) / rounds
    seconds = sum(r.seconds for r in small) / rounds
    idle = idle_rate * seconds
    bar = f"≤ {GENRL_BYTES / 10 / 1e3:.0f}, a tenth of genrl's {GENRL_BYTES / 1e3:,.0f}"
    large_name, largest_name = (f"sent for a group of {r.group_bytes / 1e3:,.0f} kB" for r in (large, largest))
    return [
        Figure("sent by each peer in a round", total / 1e3, "kB", "lower", bar),
        Figure("… of it adverts and groups", (total - idle) / 1e3, "kB", "lower"),
        Figure("… of it what it sends when idle in that time", idle / 1e3, "kB", "lower"),
        Figure("… sent until all adverts were seen", (total - blobs) / 1e3, "kB", "lower"),
        Figure("… sent from then until all groups were fetched", blobs / 1e3, "kB", "lower"),
        Figure("length of a round", seconds, "s", "lower"),
        Figure("one group", sum(r.group_bytes for r in small) / rounds / 1e3, "kB", "lower"),
        Figure(large_name, large.blobs_bytes / 1e3, "kB", "lower"),
        Figure(largest_name, largest.blobs_bytes / 1e3, "kB", "lower"),
        Figure("lost, of any size", max(r.lost_share for r in (*small, large, largest)), "share", "lower", "0"),
    ]


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--peers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        figures = measure(arguments.peers, arguments.rounds, Path(directory))
    report("sharing_traffic", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
