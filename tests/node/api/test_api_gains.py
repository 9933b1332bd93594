"""Gains: made histories whose answers are known."""

from __future__ import annotations

import math
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.api.gains import MAX_PEERS, MAX_SOURCES, POOL_ROUNDS
from node.api.gains_words import MAX_TURNS_NAMED, OTHERS, turns_words
from node.api.losses import DECAY
from node.api.run_changes import RunChanges
from node.api.types import GainsAnswer, TaskGain
from node.events import BaselineMeasured, NamedPeer, PeersChanged, RoundDone, TurnsUsed
from tests.factories import round_done

Masses = dict[str, dict[str, float]]


def played(number: int, rewards: dict[str, float], masses: Masses | None = None, **changes: object) -> RoundDone:
    foreign = any(set(by_peer) - {"self"} for by_peer in (masses or {}).values())
    fields: dict[str, object] = {
        "reward_by_task": rewards,
        "success_by_task": rewards,
        "completions_by_task": dict.fromkeys(rewards, 8),
        "gradient_mass_by_task": masses or {},
        "foreign_groups_used": int(foreign),
    }
    return round_done(number, **{**fields, **changes})


def gains_of(*rounds: RoundDone) -> GainsAnswer:
    changes = RunChanges()
    for each in rounds:
        changes.add(each)
    return changes.gains()


def task(answer: GainsAnswer, name: str) -> TaskGain:
    return next(each for each in answer.tasks if each.task == name)


def test_a_skill_that_jumps_after_groups_of_one_peer_is_counted_to_that_peer() -> None:
    alone = [played(n, {"add": 0.0}, {"add": {}}) for n in range(1, 11)]
    taught = [played(11, {"add": 0.0}, {"add": {"bob": 5.0}})]
    after = [played(n, {"add": 1.0}, {"add": {"bob": 5.0}}) for n in range(12, 112)]
    answer = gains_of(*alone, *taught, *after)
    add = task(answer, "add")
    assert add.before == 0.0 and add.now == pytest.approx(1.0, abs=1e-3)
    assert add.from_others == pytest.approx(add.now) and add.from_itself == add.not_attributed == 0.0
    (bob,) = answer.peers
    assert (bob.peer, bob.last_round) == ("bob", 111) and bob.by_task["add"] == pytest.approx(add.now)
    assert answer.others_since_round == 11


def figures(text: str | None) -> list[float]:
    return [float(each) for each in re.findall(r"[0-9]+(?:\.[0-9]+)?", text or "")]


def test_turns_that_conversations_took_are_counted_over_rounds_of_which_earlier_ones_fade() -> None:
    used = [{"grid": (TurnsUsed(2, 4, 4), TurnsUsed(5, 4, 1))}, {"grid": (TurnsUsed(5, 4, 4),)}]
    rounds = [played(n, {"grid": 0.5, "add": 0.5}, turns_by_task=each) for n, each in enumerate(used, 1)]
    answer = gains_of(*rounds)
    won_in = (2 * 4 * DECAY + 5 * (DECAY + 4)) / (5 * DECAY + 4)
    won = (DECAY + 4) / (4 * DECAY + 4)
    assert figures(task(answer, "grid").turns) == pytest.approx([won_in, 2, 1, 5, won], abs=0.05)
    assert task(answer, "add").turns is None
    assert figures(turns_words([TurnsUsed(3, 2, 0)])) == [3, 0]
    assert (turns_words([TurnsUsed(n, n, 0) for n in range(1, 65)]) or "").count(":") == MAX_TURNS_NAMED


def test_a_rise_is_shared_by_the_weight_in_the_gradient() -> None:
    masses = {"add": {"self": 1.0, "bob": 3.0, "eve": 4.0}}
    answer = gains_of(*(played(n, {"add": 0.1 * min(n, 8)}, masses) for n in range(1, 200)))
    add = task(answer, "add")
    rise = add.now - add.before
    shares = {peer.peer: peer.gain for peer in add.peers}
    assert shares == {"bob": pytest.approx(rise * 3 / 8), "eve": pytest.approx(rise / 2)}
    assert add.from_itself == pytest.approx(rise / 8)


def test_what_the_node_learnt_before_any_peer_came_is_nobodys_gain() -> None:
    alone = [played(n, {"add": min(1.0, n / 50)}, {"add": {"self": 1.0}}) for n in range(1, 120)]
    answer = gains_of(*alone, *(played(n, {"add": 1.0}, {"add": {"bob": 1.0}}) for n in range(120, 160)))
    add = task(answer, "add")
    assert add.first < 0.1 and add.before == pytest.approx(1.0, abs=0.01)
    assert abs(add.from_others) < 0.01
    assert answer.mean_first is not None and answer.mean_first < 0.1


def test_a_fall_is_shared_out_like_a_rise() -> None:
    rise = [played(n, {"add": 1.0}, {"add": {"bob": 1.0}}) for n in range(1, 60)]
    calm = [played(n, {"add": 1.0}, {"add": {"eve": 1.0}}) for n in range(60, 100)]
    fall = [played(n, {"add": 0.2}, {"add": {"eve": 1.0}}) for n in range(100, 200)]
    add = task(gains_of(*rise, *calm, *fall), "add")
    shares = {peer.peer: peer.gain for peer in add.peers}
    assert shares["eve"] == pytest.approx(-0.8, abs=0.02) and shares["bob"] == pytest.approx(0.0, abs=0.02)
    assert add.from_others == pytest.approx(-0.8, abs=1e-3)


def test_a_change_long_after_the_last_group_of_the_task_is_counted_to_nobody() -> None:
    taught = [played(n, {"add": 0.5}, {"add": {"bob": 1.0}}) for n in range(1, 20)]
    quiet = [played(n, {"add": 0.5}) for n in range(20, 21 + POOL_ROUNDS)]
    fall = [played(n, {"add": 0.0}) for n in range(21 + POOL_ROUNDS, 200)]
    add = task(gains_of(*taught, *quiet, *fall), "add")
    assert add.not_attributed == pytest.approx(-0.5, abs=1e-3)
    assert add.from_others == pytest.approx(0.0, abs=1e-9)


def test_a_task_first_practised_later_begins_at_its_first_round() -> None:
    first = [played(n, {"add": 0.5}, {"add": {"bob": 1.0}}) for n in range(1, 5)]
    later = [played(n, {"add": 0.5, "sort": 0.3}, {"sort": {"bob": 1.0}}) for n in range(5, 10)]
    sort = task(gains_of(*first, *later), "sort")
    assert sort.first == sort.before == pytest.approx(0.3) and sort.samples == 40


def test_a_change_within_the_scatter_of_rounds_is_none_and_one_beyond_it_is_told_in_the_same_sentence() -> None:
    draws = random.Random(7)
    masses = {"add": {"bob": 1.0}, "sort": {"bob": 1.0}}
    rounds = [
        played(n, {"add": draws.gauss(0.5, 0.1), "sort": draws.gauss(0.8 if n < 60 else 0.5, 0.1)}, masses)
        for n in range(1, 200)
    ]
    alone = [played(n, {"add": draws.gauss(0.5, 0.1), "sort": draws.gauss(0.8, 0.1)}) for n in range(1, 40)]
    answer = gains_of(*alone, *rounds)
    add, sort = task(answer, "add"), task(answer, "sort")
    assert add.change is None and sort.change == pytest.approx(sort.now - sort.before)
    assert sort.change is not None and sort.change < -0.2
    assert "add" not in answer.sentence and "sort" in answer.sentence


def test_the_baseline_is_what_was_measured_before_the_first_step_and_not_the_first_round() -> None:
    measured = BaselineMeasured(time_seconds=1.0, round=0, prompts=32, reward_by_task={"add": 0.25}, seconds=1.0)
    changes = RunChanges()
    for event in (measured, played(1, {"add": 1.0}), played(2, {"add": 0.0}), measured):
        changes.add(event)
    (add,) = changes.gains().tasks
    assert add.first == 0.25 and add.now == pytest.approx((0.81 * 32 * 0.25 + 0.9 * 8) / (0.81 * 32 + 0.9 * 8 + 8))
    assert add.change is None, "two rounds of eight answers, one all right and one all wrong"


finite = st.floats(0, 1e6) | st.sampled_from([math.nan, math.inf])
histories = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from("abc"), st.floats(-1, 1), max_size=3),
        st.dictionaries(st.sampled_from("abc"), st.dictionaries(st.sampled_from(["self", "p", "q"]), finite)),
    ),
    max_size=80,
)


@given(histories)
def test_the_parts_add_up_whatever_happened(history: list[tuple[dict[str, float], Masses]]) -> None:
    answer = gains_of(*(played(n, rewards, masses) for n, (rewards, masses) in enumerate(history, 1)))
    for each in answer.tasks:
        parts = each.from_others + each.from_itself + each.not_attributed
        assert parts == pytest.approx(each.now - each.before, abs=1e-6)
    if answer.mean_now is not None and answer.mean_before is not None:
        whole = answer.from_others + answer.from_itself + answer.not_attributed
        assert whole == pytest.approx(answer.mean_now - answer.mean_before, abs=1e-6)
        assert sum(peer.gain for peer in answer.peers) == pytest.approx(answer.from_others, abs=1e-6)


def test_a_lucky_first_round_is_not_a_tasks_best() -> None:
    add = task(gains_of(*(played(n, {"add": 1.0 if n == 1 else 0.2}) for n in range(1, 60))), "add")
    assert add.first == 1.0 and add.best < 0.5


def test_thousands_of_peers_are_bounded_and_still_add_up() -> None:
    rounds = [played(n, {"add": n / 60}, {"add": {f"peer{32 * n + i}": 1.0 for i in range(32)}}) for n in range(1, 60)]
    answer = gains_of(*rounds)
    add = task(answer, "add")
    assert len(answer.peers) == MAX_PEERS and answer.peers_left_out <= MAX_SOURCES
    assert any(peer.peer == OTHERS for peer in answer.peers)
    assert add.from_others + add.not_attributed == pytest.approx(add.now - add.before)


def test_the_sentence_names_who_gave_most_and_keeps_the_name_of_a_peer_that_left() -> None:
    changes = RunChanges()
    bob = NamedPeer("12D3KooWbob", "bob", "builtin:robin")
    changes.add(PeersChanged(time_seconds=0.0, round=0, came=(bob,), left=(), came_total=1, left_total=0, present=1))
    for n in range(1, 100):
        changes.add(played(n, {"add": float(n > 2), "sort": 0.5}, {"add": {"12D3KooWbob": 1.0}, "sort": {"self": 1.0}}))
    changes.add(PeersChanged(time_seconds=99.0, round=99, came=(), left=(bob,), came_total=0, left_total=1, present=0))
    answer = changes.gains()
    assert (answer.peers[0].name, answer.peers[0].model) == ("bob", "builtin:robin")
    assert "most from bob, most on add: 0.00 to 1.00" in answer.sentence and "+0.50 came" in answer.sentence


def test_without_a_round_and_without_peers_the_sentence_says_so() -> None:
    assert "not finished a round" in gains_of().sentence
    alone = gains_of(played(1, {"add": 0.25}, {"add": {"self": 1.0}}))
    assert "from nobody else" in alone.sentence and "0.25" in alone.sentence
    assert alone.others_since_round is None and alone.peers == ()
