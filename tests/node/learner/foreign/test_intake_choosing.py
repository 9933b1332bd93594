"""The intake: what is fetched, what is remembered of each peer, what others announce of their success."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from node.configuration import LearnerSection
from node.learner.foreign.intake import ForeignGroup, Incoming, RolloutIntake
from node.learner.foreign.opening import TRIAL_DEADLINE_SECONDS
from node.learner.foreign.peer_records import HELD_TO_BE_PROVEN
from node.learner.foreign.replay import MAX_CANDIDATES
from protocol.errors import UnreachableError
from protocol.messages import Heartbeat, PromptRef
from protocol.rollouts import GROUP_MAGIC, Completion, FinishReason, Group, advert_of, encode_group
from swarm.api import Fetched, Judgement, PeerStatus, SeenGroup, SwarmStatus, Wanted

NOW = 1_000_000.0
HASH = bytes(16)
WAIT_SECONDS = 60.0  # a hang guard


class KnownTask:
    name, version, config_hash, max_new_tokens = "add", 1, HASH, 8


TASKS: dict[str, Any] = {"add": KnownTask()}


def group(number: int, rewards: Sequence[float] = (1, 0)) -> Group:
    completions = tuple(
        Completion(b"a", np.array([1]), np.array([1]), np.array([-0.1], np.float32), FinishReason.LENGTH, reward)
        for reward in rewards
    )
    return Group(PromptRef("add", 1, HASH, number), HASH, HASH, 0, completions)


@dataclass
class Board:
    """A swarm process that holds what was put on it."""

    folder: Path
    seen: list[SeenGroup] = field(default_factory=list)
    statuses: list[PeerStatus] = field(default_factory=list)
    judged: list[tuple[str, Judgement]] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)  # peers, one for each blob asked for
    hides_peers: bool = False

    def put(self, peer: str, each: Group, *, served: bool = True, blob: bytes | None = None) -> None:
        blob = blob or encode_group(each)
        advert = advert_of(each, blob)
        if served:
            (self.folder / advert.blob.hex()).write_bytes(blob)
        self.seen.append(SeenGroup(len(self.seen) + 1, peer, NOW, HASH, HASH, each.policy_version, advert))

    def status(self) -> SwarmStatus:
        return SwarmStatus("me", "test", "", (), 0.0, 1, None, 0, 0, 0, {}, {})

    def peers(self) -> list[PeerStatus]:
        if self.hides_peers:
            raise UnreachableError("no swarm process answers")
        return self.statuses

    def share(self, groups: Sequence[Group]) -> None:
        raise AssertionError("nothing is shared here")

    def seen_groups(self, after: int, limit: int) -> list[SeenGroup]:
        return self.seen[after : after + limit]

    def fetch(self, wanted: Sequence[Wanted], *, deadline_seconds: float) -> list[Fetched]:
        self.fetched += [each.peers[0] for each in wanted]
        paths = [(each.blob, self.folder / each.blob.hex()) for each in wanted]
        return [Fetched(b, str(p), None) if p.exists() else Fetched(b, None, "missing") for b, p in paths]

    def beat(self, heartbeat: Heartbeat) -> None:
        raise AssertionError("no heart beats here")

    def judge(self, peer: str, blob: bytes, judgement: Judgement, detail: str = "") -> None:
        self.judged.append((peer, judgement))


@dataclass
class SlowBoard(Board):
    """One on which a peer that does not serve is waited for until the deadline, in virtual time."""

    now_seconds: float = NOW
    waited_seconds: float = 0.0
    lots: list[int] = field(default_factory=list)  # peers asked at a time

    def fetch(self, wanted: Sequence[Wanted], *, deadline_seconds: float) -> list[Fetched]:
        self.lots.append(len({each.peers for each in wanted}))
        found = super().fetch(wanted, deadline_seconds=deadline_seconds)
        if any(each.path is None for each in found):
            self.now_seconds += deadline_seconds
            self.waited_seconds += deadline_seconds
        return found


@dataclass
class SharingBoard(Board):
    shared: list[Group] = field(default_factory=list)

    def share(self, groups: Sequence[Group]) -> None:
        self.shared += groups


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path)


@pytest.fixture
def intake(board: Board) -> Iterator[RolloutIntake]:
    made = RolloutIntake(board, TASKS, LearnerSection(foreign_groups=4, peer_share=0.5), lambda: NOW)
    yield made
    made.close()


def gathered(intake: RolloutIntake, seed: int = 0) -> Incoming:
    intake.begin(lambda _: 0.1, random.Random(seed))
    return intake.collect(WAIT_SECONDS)


def from_whom(incoming: Incoming) -> Counter[str]:
    return Counter(foreign.peer for foreign in incoming.groups)


def not_used(incoming: Incoming) -> Counter[str]:
    return Counter(decided.outcome for decided in incoming.decided)


def found_false(intake: RolloutIntake, foreign: ForeignGroup) -> None:
    intake.refuse(foreign, Judgement.FALSE_REWARD, "claimed reward 1, recomputed 0")


def test_only_what_was_chosen_is_fetched_and_a_second_use_costs_no_bytes(board: Board, intake: RolloutIntake) -> None:
    for number in range(4):
        board.put("ann", group(number, rewards=(1, 1)))
        board.put("bob", group(10 + number, rewards=(0, 0)))
    first, second = gathered(intake), gathered(intake)
    assert from_whom(first) == from_whom(second) == {"ann": 4}
    assert first.bytes_fetched == sum(seen.advert.size for seen in board.seen if seen.peer == "ann")
    assert second.bytes_fetched == 0
    assert [foreign.new for foreign in (*first.groups, *second.groups)] == [True] * 4 + [False] * 4


def test_liar_is_fetched_from_no_more_while_others_have_groups(board: Board, intake: RolloutIntake) -> None:
    for number in range(40):
        board.put("liar", group(number, rewards=(1, 1)))
        board.put("ann", group(100 + number, rewards=(1, 0, 0, 0)))
    for round_number in range(3):
        for foreign in gathered(intake, round_number).groups:
            if foreign.peer == "liar":
                found_false(intake, foreign)
            else:
                intake.judge(foreign.peer, foreign.blob, Judgement.USED)
    intake.settle(WAIT_SECONDS)
    assert Counter(board.judged)["liar", Judgement.FALSE_REWARD] == 2  # its turn in the first round
    assert from_whom(gathered(intake, 9)) == {"ann": 4}
    restored = RolloutIntake(board, TASKS, LearnerSection(foreign_groups=4), lambda: NOW, intake.position())
    assert from_whom(gathered(restored)) == {"ann": 4}  # remembered over a restart
    restored.close()


def test_peer_whose_blobs_do_not_decode_falls_behind_too(board: Board, intake: RolloutIntake) -> None:
    for number in range(8):
        board.put("eve", group(number, rewards=(1, 1)))
        (board.folder / board.seen[-1].advert.blob.hex()).write_bytes(b"nonsense")
    assert [gathered(intake, round_number).groups for round_number in range(2)] == [(), ()]
    assert board.fetched == ["eve"] * 4  # not asked again before it has rested
    for number in range(4):
        board.put("eve", group(50 + number, rewards=(1, 1)))
        board.put("ann", group(100 + number, rewards=(1, 0, 0, 0)))
    assert from_whom(gathered(intake)) == {"ann": 4}


def test_peer_that_floods_adverts_leaves_room_for_others(board: Board, intake: RolloutIntake) -> None:
    for number in range(MAX_CANDIDATES + 100):
        board.put("flood", group(number, rewards=(1, 1)), served=False)
    board.put("ann", group(10_000, rewards=(1, 0, 0, 0)))
    board.put("bob", group(10_001, rewards=(1, 0, 0, 0)))
    incoming = gathered(intake)
    assert from_whom(incoming) == {"ann": 1, "bob": 1}
    crowded_out = MAX_CANDIDATES + 102 - MAX_CANDIDATES // 8  # its own, and nobody else's
    assert not_used(incoming) == {"not_fetched": 2, "crowded_out": crowded_out}


def test_empty_pool_leaves_the_round_alone_and_says_why(intake: RolloutIntake) -> None:
    incoming = gathered(intake)
    assert incoming.groups == ()
    assert "none has announced a group that would help" in str(incoming.alone_because)
    assert incoming.bytes_fetched == 0


def test_when_all_are_passed_over_the_reasons_are_told_and_nothing_is_fetched(
    board: Board, intake: RolloutIntake
) -> None:
    for number in range(5):
        board.put("ann", group(number, rewards=(0, 0)))
    incoming = gathered(intake)
    assert not_used(incoming) == {"not_better": 5}
    assert incoming.groups == ()
    assert board.fetched == []
    assert incoming.alone_because is not None


def test_who_is_connected_is_asked_with_the_groups_and_not_again_at_once(board: Board, intake: RolloutIntake) -> None:
    board.statuses.append(PeerStatus("ann", True, (), None, None, 1.0, 0, 0, 0, 1.0, None))
    board.put("ann", group(0))
    assert len(gathered(intake).groups) == 1
    assert intake._pool.peers.connected == frozenset({"ann"})
    board.statuses.clear()
    gathered(intake)
    assert intake._pool.peers.connected == frozenset({"ann"})


def test_swarm_process_that_dies_while_asked_for_peers_leaves_the_round_alone(
    board: Board, intake: RolloutIntake
) -> None:
    board.put("ann", group(0))
    board.hides_peers = True
    incoming = gathered(intake)
    assert "does not answer" in str(incoming.alone_because)
    assert [fault.reason for fault in intake.faults()] == ["unreachable"]
    board.hides_peers = False
    assert from_whom(gathered(intake)) == {"ann": 1}


def test_measured_distance_survives_a_restart(intake: RolloutIntake) -> None:
    intake.measured({"ann": 10.0})
    intake.measured({"ann": 20.0, "bob": 1.0})
    restored = RolloutIntake(None, TASKS, LearnerSection(), lambda: NOW, intake.position())
    assert [record[:3] for record in restored.position()["peers"].values()] == [[0, 1.0, 12.0], [0, 1.0, 1.0]]
    restored.close()


def proven(intake: RolloutIntake, *peers: str) -> None:
    for number, peer in enumerate(peers):
        for group_number in range(HELD_TO_BE_PROVEN):
            intake.judge(peer, bytes([number, group_number]) * 16, Judgement.USED)


def test_recompressed_twin_counts_once_whoever_announces_it(board: Board, intake: RolloutIntake) -> None:
    original = group(1)
    board.put("ann", original)
    (used,) = gathered(intake).groups
    intake.judge(used.peer, used.blob, Judgement.USED)
    disguised = replace(original, policy_version=5, completions=original.completions[::-1])
    content = zstandard.compress(zstandard.decompress(encode_group(original)[4:]), 1)
    for peer in ("ann", "eve"):
        board.put(peer, original, blob=GROUP_MAGIC + content)
    board.put("eve", disguised)
    second = gathered(intake)
    assert [(foreign.peer, foreign.new) for foreign in second.groups] == [("ann", False)]
    assert not_used(second) == {"copy": 3}
    assert board.fetched.count("eve") == 0  # the adverts show it
    longer = tuple(
        replace(c, token_ids=np.array([1, 1]), token_bytes=np.array([1, 0]), logps=np.zeros(2, np.float32))
        for c in original.completions
    )
    board.put("mallory", replace(original, completions=longer))
    assert not_used(gathered(intake)) == {"copy": 1}  # its content shows it
    assert [peer for peer, judgement in board.judged if judgement is Judgement.MALFORMED] == []


def test_copy_of_our_own_group_teaches_nothing(tmp_path: Path) -> None:
    board = SharingBoard(tmp_path)
    intake = RolloutIntake(board, TASKS, LearnerSection(foreign_groups=4), lambda: NOW)
    own = group(1)
    intake.share([own])
    intake.settle(WAIT_SECONDS)
    assert board.shared == [own]
    board.put("eve", own)
    assert not_used(gathered(intake)) == {"copy": 1}
    intake.close()


def test_copies_announced_in_the_same_round_count_once(board: Board, intake: RolloutIntake) -> None:
    original = group(1)
    longer = tuple(
        replace(c, token_ids=np.array([1, 1]), token_bytes=np.array([1, 0]), logps=np.zeros(2, np.float32))
        for c in original.completions
    )
    board.put("ann", original)
    board.put("eve", replace(original, completions=longer))
    incoming = gathered(intake)
    assert len(incoming.groups) == 1
    assert not_used(incoming) == {"copy": 1}


def test_blob_of_our_own_store_that_is_not_the_size_advertised_is_not_read(board: Board, intake: RolloutIntake) -> None:
    board.put("eve", group(1))
    os.truncate(board.folder / board.seen[-1].advert.blob.hex(), 1 << 33)
    assert not_used(gathered(intake)) == {"integrity": 1}


def test_strangers_that_do_not_answer_take_a_small_part_of_the_time_and_nobody_elses_place(tmp_path: Path) -> None:
    board = SlowBoard(tmp_path)
    intake = RolloutIntake(board, TASKS, LearnerSection(foreign_groups=8), lambda: board.now_seconds)
    proven(intake, "ann", "bob")
    used = 0
    for number in range(120):
        for peer in ("ann", "bob"):
            for each in range(8):
                board.put(peer, group(1000 * number + 10 * each + len(peer) + ord(peer[0])))
        board.put(f"sybil {number}", group(10**6 + number), served=False)
        used += len(gathered(intake, number).groups)
        board.now_seconds += 0.5
    intake.close()
    assert used >= 0.9 * 120 * 8
    assert board.waited_seconds <= (board.now_seconds - NOW) / 9 + TRIAL_DEADLINE_SECONDS


def test_peers_are_tried_a_few_at_a_time_so_that_the_silent_ones_keep_nobody_out(tmp_path: Path) -> None:
    board = SlowBoard(tmp_path)
    intake = RolloutIntake(board, TASKS, LearnerSection(foreign_groups=32), lambda: board.now_seconds)
    for number in range(20):
        board.put(f"silent {number}", group(number), served=False)
    for number in range(10):
        board.put(f"honest {number}", group(100 + number))
    incoming = gathered(intake)
    intake.close()
    assert len(from_whom(incoming)) == 10
    assert board.lots == [8, 8, 8, 6]


def test_claim_that_could_not_be_checked_speaks_neither_for_nor_against_a_peer(
    board: Board, intake: RolloutIntake
) -> None:
    for number in range(8):
        board.put("slow to score", group(number))
    for foreign in gathered(intake).groups:
        intake.refuse(foreign, Judgement.UNUSED, "the scorer ran out of time")
    (record,) = intake.position()["peers"].values()
    assert record == [4, 1.0, None, 0, 0, 0.0]
