"""Honest groups that a learner uses in a round while strangers announce groups that are no good.

    python -m scripts.attacks.advert_liars [--rounds 60] [--json]

The learner's intake, choice and records and the swarm process's pool and reputations are the real ones; the network is
simulated in virtual time, with the fetcher's eight peers at a time. Eight honest peers announce 40 groups a round, of
which a round has places for 32. Beside them 40 identities of one kind, or of all six kinds at once, announce more than
that, from the first round on, when nobody is known to anybody:

| kind | what it announces |
|---|---|
| liars | right answers, which the learner's own scorer finds wrong |
| unreachable | right answers, at addresses that do not answer |
| slow | right answers, of which no blob arrives before a deadline |
| new | what liars announce, by 40 new identities each round |
| copies | the honest groups of the round under their own names, recompressed, half of them as of another version |
| malformed | right answers in blobs that do not decode |

A group counts once. A fetch that takes longer than generating counts for the rounds that it takes, as in a node.
"""

from __future__ import annotations

import heapq
import math
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from node.configuration import LearnerSection
from node.learner.foreign.intake import RolloutIntake
from protocol.messages import Heartbeat, PromptRef, RolloutAdvert
from protocol.rollouts import GROUP_MAGIC, Completion, FinishReason, Group, advert_of, encode_group
from scripts.bench.common.reporting import Figure, figures_parser, report
from swarm.announcements.crowding import Standing
from swarm.announcements.group_pool import GroupPool
from swarm.api import Fetched, Judgement, PeerStatus, SeenGroup, SwarmStatus, Wanted
from swarm.peers.peer_conduct import STRANGER_REPUTATION
from swarm.peers.reputation import Conduct, ReputationBook

KINDS = ("liars", "unreachable", "slow", "new", "copies", "malformed")
UNCONNECTED = ("unreachable", "new")
SILENT = ("unreachable", "slow")
IDENTITIES = 40  # of each kind
ANNOUNCED = 5  # groups of an honest peer in a round
ANNOUNCED_FALSE = 4  # of an attacker
HONEST = [f"honest {number}" for number in range(8)]
GENERATE_SECONDS = 4.0
SERVE_SECONDS = 0.3  # to connect to an honest peer and fetch what it has
SILENT_SECONDS = 10.0  # until the fetcher gives a silent peer up
PEERS_AT_ONCE = 8
WAIT_SECONDS = 60.0  # a hang guard
FAMILY = bytes(16)


class Addition:
    """As much of a task as choosing looks at."""

    name, version, config_hash, max_new_tokens = "add", 1, bytes(16), 8


TASKS: dict[str, Any] = {"add": Addition()}


def group(seed: int, *, claimed: Sequence[float], right: bool) -> Group:
    """A group whose texts say whether they are ``right``; ``claimed`` are its rewards."""
    completions = []
    for number, reward in enumerate(claimed):
        text = f"{'right' if right and reward else 'wrong'} {seed} {number}".encode()
        lengths = np.array([len(text) - 1, 1])
        logps = np.array([-0.1, -0.2], np.float32)
        completions.append(Completion(text, np.array([number, 7]), lengths, logps, FinishReason.LENGTH, reward))
    return Group(PromptRef("add", 1, bytes(16), seed), FAMILY, FAMILY, 0, tuple(completions))


def claims_hold(found: Group) -> bool:
    return all((c.reward > 0) == c.text.startswith(b"right") for c in found.completions)


def kind_of(peer: str) -> str:
    return peer.split()[0]


@dataclass
class SimulatedSwarm:
    """What a swarm process is to its learner, in virtual time."""

    folder: Path
    now_seconds: float = 1_790_000_000.0
    blobs: dict[bytes, bytes] = field(default_factory=dict)
    peers_known: dict[str, bool] = field(default_factory=dict)  # whether connected
    book: ReputationBook = field(default_factory=ReputationBook)

    def __post_init__(self) -> None:
        self.pool = GroupPool(self._standing)

    def _standing(self, peer: str) -> Standing:
        reputation = self.book.of(peer, self.now_seconds)
        if self.book.has_held(peer, self.now_seconds):
            return Standing.PROVEN
        connected = self.peers_known.get(peer, False) and reputation >= STRANGER_REPUTATION
        return Standing.STRANGER if connected else Standing.LAST

    def announce(self, peer: str, groups: Sequence[tuple[Group, bytes]]) -> None:
        self.peers_known[peer] = kind_of(peer) not in UNCONNECTED
        if self.book.banned_because(peer, self.now_seconds) is None:
            self.blobs.update({advert_of(each, blob).blob: blob for each, blob in groups})
            for version in {each.policy_version for each, _ in groups}:
                adverts = tuple(advert_of(each, blob) for each, blob in groups if each.policy_version == version)
                self.pool.add(peer, RolloutAdvert(FAMILY, FAMILY, version, adverts), self.now_seconds)

    def status(self) -> SwarmStatus:
        return SwarmStatus("me", "test", "", (), 0.0, len(self.peers_known), None, 0, 0, 0, {}, {})

    def peers(self) -> list[PeerStatus]:
        return [
            PeerStatus(peer, connected, (), None, None, None, 0, 0, 0, 0.5, None)
            for peer, connected in self.peers_known.items()
        ]

    def share(self, groups: Sequence[Group]) -> None:
        raise AssertionError("the learner shares nothing here")

    def beat(self, heartbeat: Heartbeat) -> None:
        raise AssertionError("no heart beats here")

    def seen_groups(self, after: int, limit: int) -> list[SeenGroup]:
        return self.pool.after(after, limit, self.now_seconds)

    def fetch(self, wanted: Sequence[Wanted], *, deadline_seconds: float) -> list[Fetched]:
        """Serves peers in the order in which they are wanted, ``PEERS_AT_ONCE`` at a time."""
        free = [0.0] * PEERS_AT_ONCE
        served: set[str] = set()
        for peer in dict.fromkeys(each.peers[0] for each in wanted):
            if self.book.banned_because(peer, self.now_seconds) is not None:
                continue
            silent = kind_of(peer) in SILENT
            ends = free[0] + (SILENT_SECONDS if silent else SERVE_SECONDS)
            heapq.heapreplace(free, ends)
            if ends <= deadline_seconds and not silent:
                served.add(peer)
            elif silent and kind_of(peer) not in UNCONNECTED:
                self._observe(peer, Conduct.STALLED)
        self.now_seconds += min(deadline_seconds, max(free))
        return [self._outcome(each) if each.peers[0] in served else Fetched(each.blob, None, "late") for each in wanted]

    def _outcome(self, wanted: Wanted) -> Fetched:
        path = self.folder / wanted.blob.hex()
        path.write_bytes(self.blobs[wanted.blob])
        return Fetched(wanted.blob, str(path), None)

    def judge(self, peer: str, blob: bytes, judgement: Judgement, detail: str = "") -> None:
        self._observe(peer, Conduct(judgement))

    def _observe(self, peer: str, conduct: Conduct) -> None:
        if self.book.observe(peer, conduct, self.now_seconds) is not None:
            self.pool.forget(peer)


class Strangers:
    """What the swarm announces in a round: honest groups, and those of some kinds of attackers."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self._kinds = kinds
        self._seeds = iter(range(2**62))
        self._lots = 0

    def announce(self, swarm: SimulatedSwarm) -> None:
        """Announces one round's groups: attackers after the honest ones, whose groups they have to hear first."""
        self._lots += 1
        lot = [(peer, self._groups(ANNOUNCED, [1, 1, 0, 0], right=True)) for peer in HONEST]
        honest = [each for _, groups in lot for each in groups]
        for kind in self._kinds:
            names = [f"{kind} {self._lots if kind == 'new' else 0}.{number}" for number in range(IDENTITIES)]
            lot += [(name, self._of_attacker(kind, number, honest)) for number, name in enumerate(names)]
        for peer, groups in lot:
            swarm.announce(peer, groups)

    def _groups(self, count: int, claimed: Sequence[float], *, right: bool) -> list[tuple[Group, bytes]]:
        made = [group(next(self._seeds), claimed=claimed, right=right) for _ in range(count)]
        return [(each, encode_group(each)) for each in made]

    def _of_attacker(self, kind: str, number: int, honest: Sequence[tuple[Group, bytes]]) -> list[tuple[Group, bytes]]:
        if kind == "copies":
            return [_disguised(each, blob, number) for each, blob in honest]
        groups = self._groups(ANNOUNCED_FALSE, [1, 1, 1, 1], right=False)
        if kind == "malformed":
            return [(each, blob[:-3] + b"\0\0\0") for each, blob in groups]
        return groups


def _disguised(original: Group, blob: bytes, number: int) -> tuple[Group, bytes]:
    """Returns a copy with an id of its own."""
    named = replace(original, policy_version=number % 2 * number)
    content = zstandard.decompress((encode_group(named) if named.policy_version else blob)[len(GROUP_MAGIC) :])
    return named, GROUP_MAGIC + zstandard.compress(content, 1 + number % 20)


@contextmanager
def learner(folder: Path) -> Iterator[tuple[SimulatedSwarm, RolloutIntake]]:
    swarm = SimulatedSwarm(folder)
    intake = RolloutIntake(swarm, TASKS, LearnerSection(), lambda: swarm.now_seconds)
    yield swarm, intake
    intake.close()


def used_in_rounds(rounds: int, kinds: Sequence[str]) -> list[float]:
    """Returns, for each round, the honest groups that were used for the first time in it."""
    used_before: set[int] = set()
    used: list[float] = []
    strangers = Strangers(kinds)
    with tempfile.TemporaryDirectory() as folder, learner(Path(folder)) as (swarm, intake):
        strangers.announce(swarm)
        while len(used) < rounds:
            began_seconds = swarm.now_seconds
            intake.begin(lambda _: 0.1, random.Random(len(used)))
            incoming = intake.collect(WAIT_SECONDS)
            new: set[int] = set()
            for foreign in incoming.groups:
                if not claims_hold(foreign.group):
                    intake.refuse(foreign, Judgement.FALSE_REWARD, "")
                    continue
                if foreign.new:
                    intake.judge(foreign.peer, foreign.blob, Judgement.USED)
                new.add(foreign.group.prompt.seed)
            intake.settle(WAIT_SECONDS)
            spanned = max(1, math.ceil((swarm.now_seconds - began_seconds) / GENERATE_SECONDS))
            used += [0.0] * (spanned - 1) + [float(len(new - used_before))]
            used_before |= new
            for _ in range(spanned):
                strangers.announce(swarm)
            swarm.now_seconds = began_seconds + GENERATE_SECONDS * spanned
        for fault in intake.faults():
            raise fault
    return used[:rounds]


def figures(rounds: int) -> list[Figure]:
    calm = used_in_rounds(rounds, ())
    found = [Figure("calm: honest groups used a round", sum(calm) / rounds, "groups", "higher")]
    for name, kinds in (*((kind, (kind,)) for kind in KINDS), ("all six kinds", KINDS)):
        used = used_in_rounds(rounds, kinds)
        later = slice(rounds // 3, None)
        share, share_later = sum(used) / sum(calm), sum(used[later]) / sum(calm[later])
        found += [
            Figure(f"{name}: used beside {IDENTITIES * len(kinds)}", share, "of calm", "higher", "≥ 0.8"),
            Figure(f"{name}: … from round {rounds // 3} on", share_later, "of calm", "higher"),
        ]
    return found


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    report("advert_liars", figures(arguments.rounds), as_json=arguments.json)


if __name__ == "__main__":
    main()
