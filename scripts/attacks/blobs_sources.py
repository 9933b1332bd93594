"""Fetches of honest blobs among 300 identities that advertise blobs and do not serve them, on the simulated network.

    python -m scripts.attacks.blobs_sources [--sybils 300] [--rounds 4] [--json]

Two situations, for every kind of attacker. *Groups*: each of five nodes fetches 32 groups a round within ten seconds,
as a learner does; half of them are advertised by attackers alone, the others by honest peers. *State*: a node fetches
a blob of 6 MiB within a minute from a list of all attackers and two honest peers, in the order of their reputation,
which is alike at first. The figures are the arrivals of honest blobs over those in calm, and what was left of 40 blobs
of our own in a store of 64 MiB, of the disk, and of the reputation of the attackers that were asked.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from protocol.limits import CHUNK_BYTES
from protocol.streams.blob_messages import BlobStatus, ChunkRange, encode_answer_header
from scripts.attacks.common.blobs_network import SYBILS, Answer, BlobNetwork, BlobNode, KnownBlobs, content, serve
from scripts.attacks.common.members import in_virtual_time
from scripts.bench.common.reporting import Figure, figures_parser, report
from swarm.api import Wanted
from swarm.host import PeerId, Stream

HONEST = 5
WANTED = 32
GROUP_SECONDS, STATE_SECONDS = 10.0, 60.0
GROUP_BYTES, STATE_BYTES, LIE_BYTES = 100_000, 6 << 20, 8 << 20
STORE_BYTES, OWN_BLOBS, OWN_BYTES = 64 << 20, 40, 1 << 20


@dataclass
class Outcome:
    arrived: int = 0
    asked: int = 0
    own_kept: float = 1.0
    disk_bytes: float = 0.0
    reputation_kept: float = 0.0
    asked_in_vain: list[tuple[BlobNode, PeerId]] = field(default_factory=list)


def answers(blobs: KnownBlobs) -> dict[str, Answer]:
    async def hang_up(stream: Stream, ranges: Sequence[ChunkRange]) -> None:
        await stream.send(blobs.head(ranges[0]))
        await anyio.sleep(0.5)
        await stream.reset()

    async def stay_silent(stream: Stream, ranges: Sequence[ChunkRange]) -> None:
        await anyio.sleep_forever()

    async def drip(stream: Stream, ranges: Sequence[ChunkRange]) -> None:
        await stream.send(blobs.head(ranges[0]))
        while True:
            await stream.send(b"x")
            await anyio.sleep(1.0)

    async def drip_above_the_limit(stream: Stream, ranges: Sequence[ChunkRange]) -> None:
        await stream.send(blobs.head(ranges[0]))
        while True:
            await stream.send(bytes(5000))
            await anyio.sleep(1.0)

    async def be_busy(stream: Stream, ranges: Sequence[ChunkRange]) -> None:
        await stream.send(encode_answer_header(BlobStatus.BUSY, 0) * len(ranges))

    async def lie(stream: Stream, ranges: Sequence[ChunkRange]) -> None:
        await stream.send(blobs.head(ranges[0]))
        await stream.send(bytes(CHUNK_BYTES))

    return {
        "hang up": hang_up,
        "stay silent": stay_silent,
        "a byte a second": drip,
        "5 kB a second": drip_above_the_limit,
        "always busy": be_busy,
        "wrong bytes": lie,
    }


async def groups(network: BlobNetwork, blobs: KnownBlobs, rounds: int) -> Outcome:
    outcome = Outcome()
    own = [[node.store.put(network.random.randbytes(OWN_BYTES)) for _ in range(OWN_BLOBS)] for node in network.nodes]
    for node in network.nodes:
        node.store._grace_seconds = 0.0  # the wall clock stands still here
    for _ in range(rounds):
        async with anyio.create_task_group() as tasks:
            for node in network.nodes:
                tasks.start_soon(_fetch_groups, network, blobs, node, outcome)
    outcome.own_kept = sum(
        node.store.has(blob) for node, blobs in zip(network.nodes, own, strict=True) for blob in blobs
    ) / (OWN_BLOBS * HONEST)
    partial = [p for node in network.nodes for p in (node.store.directory / "partial").glob("*.part")]
    outcome.disk_bytes = sum(path.stat().st_size for path in partial)
    now_seconds = anyio.current_time()
    kept = [node.reputations.of(peer, now_seconds) >= 0.5 for node, peer in outcome.asked_in_vain]
    outcome.reputation_kept = sum(kept) / max(1, len(kept))
    return outcome


async def _fetch_groups(network: BlobNetwork, blobs: KnownBlobs, node: BlobNode, outcome: Outcome) -> None:
    wanted: list[Wanted] = []
    honest: list[bool] = []
    for number in range(WANTED):
        if number % 2 and network.sybils:
            sybil = network.random.choice(network.sybils)
            outcome.asked_in_vain.append((node, sybil.peer_id))
            wanted.append(Wanted(blobs.make_up(LIE_BYTES, network.random), LIE_BYTES, (sybil.peer_id,)))
        else:
            other = network.random.choice([n for n in network.nodes if n is not node])
            blob, whole = content(network.random, GROUP_BYTES)
            other.store.put_verified(blob, whole)
            wanted.append(Wanted(blob, len(whole), (other.host.peer_id,)))
        honest.append(not (number % 2 and network.sybils))
    arrived = await node.fetch(wanted, deadline_seconds=GROUP_SECONDS)
    outcome.arrived += sum(came for came, is_honest in zip(arrived, honest, strict=True) if is_honest)
    outcome.asked += sum(honest)


async def states(network: BlobNetwork, blobs: KnownBlobs, rounds: int) -> Outcome:
    outcome = Outcome()
    for _ in range(rounds):
        blob, whole = content(network.random, STATE_BYTES)
        blobs.know(whole)
        donors = network.nodes[:2]
        for donor in donors:
            donor.store.put_verified(blob, whole)
        peers = [host.peer_id for host in (*network.sybils, *(donor.host for donor in donors))]
        network.random.shuffle(peers)
        (came,) = await network.nodes[2].fetch([Wanted(blob, len(whole), tuple(peers))], deadline_seconds=STATE_SECONDS)
        outcome.arrived += came
        outcome.asked += 1
    return outcome


SITUATIONS = {"groups": groups, "state": states}


def attack(situation: str, kind: str | None, sybils: int, rounds: int, directory: Path) -> Outcome:
    """Plays a situation beside attackers of one kind; in calm if there is none."""
    outcomes: list[Outcome] = []

    async def story() -> None:
        network, blobs = BlobNetwork(directory, seed=1), KnownBlobs()
        async with network.running(honest=HONEST, sybils=sybils if kind else 0, store_bytes=STORE_BYTES):
            for sybil in network.sybils:
                serve(sybil, answers(blobs)[kind or ""])
            outcomes.append(await SITUATIONS[situation](network, blobs, rounds))

    in_virtual_time(story)
    return outcomes[0]


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--sybils", type=int, default=SYBILS)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    figures: list[Figure] = []
    for situation in SITUATIONS:
        with tempfile.TemporaryDirectory() as directory:
            calm = attack(situation, None, 0, arguments.rounds, Path(directory))
        for kind in answers(KnownBlobs()):
            with tempfile.TemporaryDirectory() as directory:
                outcome = attack(situation, kind, arguments.sybils, arguments.rounds, Path(directory))
            ratio = outcome.arrived / outcome.asked / (calm.arrived / calm.asked)
            name = f"{situation}, {kind}: "
            figures.append(Figure(name + "honest fetches over calm", ratio, "ratio", "higher", "≥ 0.9"))
            if situation == "groups":
                figures += [
                    Figure(name + "own blobs kept", outcome.own_kept, "share", "higher", "1"),
                    Figure(name + "reserved by what did not arrive", outcome.disk_bytes / 1e6, "MB", "lower"),
                    Figure(
                        name + "attackers asked that keep their reputation", outcome.reputation_kept, "share", "lower"
                    ),
                ]
    report("blobs_sources", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
