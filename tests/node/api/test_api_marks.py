"""Marks of a chart, and which peers came and went."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from node.api.marks import MAX_MARKS, MAX_OF_A_KIND, Marks
from node.api.presence import ABSENT_SECONDS, MAX_NAMED, Presence
from node.api.run_changes import Change, RunChanges
from node.api.types import HeartbeatView, PeerView
from node.events import (
    Averaged,
    CheckpointSaved,
    Evaluated,
    FoundRate,
    LearnerReady,
    NamedPeer,
    PeersChanged,
    Stopped,
)
from tests.factories import round_done

HOSTILE = "\x1b[31m<script>\u202e\n"


def saved(number: int) -> CheckpointSaved:
    return CheckpointSaved(time_seconds=float(number), round=number, path="/c", size_bytes=1, seconds=0.1)


def changed(second: float, *names: str, left: bool = False) -> PeersChanged:
    peers = tuple(NamedPeer(f"id-{name}", name, "wren") for name in names)
    return PeersChanged(
        time_seconds=second, round=7, came=() if left else peers, left=peers if left else (),
        came_total=0 if left else len(peers), left_total=len(peers) if left else 0, present=1,
    )  # fmt: skip


def view(name: str, *, connected: bool = True, age_seconds: float | None = 1.0, model: str = "wren") -> PeerView:
    beat = HeartbeatView(name, "starling", model, "ab", "ab", 1, 1, "learning", 1.0, 0, 0, {})
    return PeerView(
        f"id-{name}", connected, (), None, None if age_seconds is None else beat, age_seconds, 0, 0, 0, 1.0, None
    )


def marks_of(*events: Change) -> Marks:
    changes = RunChanges()
    for event in events:
        changes.add(event)
    return changes.marks


def test_what_happened_stands_in_order_with_its_words() -> None:
    ready = LearnerReady(
        time_seconds=1.0, model="m", family="", tokenizer="", parameters=1, trainable_parameters=1, device="cpu",
        dtype="float32", tasks=(), round=0, checkpoint=None, seconds=1.0,
    )  # fmt: skip
    marks = marks_of(
        ready,
        changed(3.0, "bob", "eve"),
        saved(2),
        Averaged(time_seconds=4.0, round=9, partner="id-bob", because="", seconds=1.0),
        msgspec.structs.replace(ready, time_seconds=5.0, round=9),
        changed(6.0, "bob", left=True),
    )
    told = [(mark.kind, mark.text, mark.count) for mark in marks.answer()]
    assert told == [
        ("start", "the run began", 1),
        ("checkpoint", "checkpoint of round 2", 1),
        ("came", "2 peers came: bob, eve", 2),
        ("averaged", "weights averaged with bob", 1),
        ("restart", "the learner started again", 1),
        ("left", "bob left", 1),
    ]
    assert [mark.kind for mark in marks.answer(since_seconds=4.0)] == ["averaged", "restart", "left"]


def test_pauses_ends_and_the_one_best_checkpoint_are_marks() -> None:
    def evaluated(number: int, reward: float, best_round: int) -> Evaluated:
        return Evaluated(
            time_seconds=float(number), round=number, policy_version=number, prompts=8, reward=reward,
            reward_by_task={}, validation=reward, best_round=best_round, best_reward=reward, seconds=1.0,
        )  # fmt: skip

    def stopped(second: float, because: str) -> Stopped:
        return Stopped(time_seconds=second, round=9, because=because, tokens_generated_total=1, checkpoint=None)

    marks = marks_of(
        evaluated(1, 0.25, 1),
        evaluated(2, 0.5, 2),
        evaluated(3, 0.375, 2),
        stopped(4.0, "paused"),
        stopped(7.0, "asked"),
    )
    told = [(mark.kind, mark.time_seconds) for mark in marks.answer()]
    assert told == [("best", 2.0), ("paused", 4.0), ("stopped", 7.0)]
    assert "round 2" in marks.answer()[0].text and "0.50" in marks.answer()[0].text


def test_a_new_learning_rate_is_one_mark_in_the_round_that_found_it() -> None:
    found = FoundRate(since_round=7, before=3e-4, to=1e-4, because="steps were too long")
    marks = marks_of(round_done(6), *(round_done(number, found_rate=found) for number in (7, 8, 9)))
    assert [(mark.kind, mark.round, mark.text) for mark in marks.answer()] == [
        ("rate", 7, "learning rate 0.0003 → 0.0001")
    ]


def test_dense_marks_are_merged_and_sparse_ones_stay() -> None:
    kept = marks_of(*map(saved, (*range(1, 1001), 5000, 9000))).answer()
    assert len(kept) == MAX_OF_A_KIND <= MAX_MARKS
    assert sum(mark.count for mark in kept) == 1002
    assert [(mark.round, mark.count) for mark in kept[-2:]] == [(5000, 1), (9000, 1)]
    assert all(earlier.until_seconds < later.time_seconds for earlier, later in pairwise(kept))


def test_a_name_that_a_stranger_chose_moves_no_cursor() -> None:
    (mark,) = marks_of(changed(1.0, HOSTILE)).answer()
    assert mark.text.isprintable() and "\\x1b" in mark.text


def test_a_peer_comes_when_it_has_said_its_model_and_leaves_after_an_absence() -> None:
    presence = Presence()
    assert presence.look(0.0, 1, [view("bob", model="")]) is None
    came = presence.look(1.0, 2, [view("bob")])
    assert came is not None and (came.came, came.left, came.present) == ((NamedPeer("id-bob", "bob", "wren"),), (), 1)
    assert presence.look(10.0, 3, []) is None  # it may come back at once
    assert presence.look(12.0, 3, [view("bob")]) is None
    gone = [presence.look(12.0 + second, 4, []) for second in range(1, 40)]
    (left,) = [each for each in gone if each is not None]
    assert left.left == (NamedPeer("id-bob", "bob", "wren"),) and left.time_seconds == 12.0 + ABSENT_SECONDS


def test_a_connected_peer_that_never_says_its_name_comes_under_the_end_of_its_id() -> None:
    presence = Presence()
    silent = msgspec.structs.replace(view("x", age_seconds=None), peer="12D3KooWabcde")
    reports = [presence.look(float(second), 1, [silent]) for second in range(20)]
    (came,) = [each for each in reports if each is not None]
    assert came.came == (NamedPeer("12D3KooWabcde", "…abcde", ""),) and came.time_seconds == 15.0


def test_a_peer_that_is_heard_through_others_is_present_until_its_heartbeats_are_old() -> None:
    presence = Presence()
    assert presence.look(0.0, 1, [view("bob", connected=False, age_seconds=5.0)]) is not None
    stale = view("bob", connected=False, age_seconds=100.0)
    reports = [presence.look(10.0 + second, 1, [stale]) for second in range(40)]
    assert sum(report is not None and report.left_total == 1 for report in reports) == 1


def test_a_peer_that_takes_another_name_is_known_by_it_and_does_not_come_again() -> None:
    presence = Presence()
    presence.look(0.0, 1, [view("bob")])
    renamed = msgspec.structs.replace(view("rob"), peer="id-bob")
    assert presence.look(10.0, 2, [renamed]) is None
    assert presence.renamed == [NamedPeer("id-bob", "rob", "wren")]
    assert presence.look(11.0, 2, [renamed]) is None and presence.renamed == []


def test_thousands_that_come_at_once_are_counted_and_few_are_named() -> None:
    presence = Presence()
    report = presence.look(0.0, 1, [view(f"p{i}") for i in range(6000)])
    assert report is not None and len(report.came) == MAX_NAMED
    assert report.came_total == report.present == 4096


@pytest.mark.parametrize("name", ["bob", HOSTILE])
def test_a_report_is_small_and_its_names_are_escaped(name: str) -> None:
    report = Presence().look(0.0, 1, [view(f"{name}{i}") for i in range(100)])
    assert report is not None and len(msgspec.json.encode(report)) < 4096
    assert all(peer.name.isprintable() for peer in report.came)
