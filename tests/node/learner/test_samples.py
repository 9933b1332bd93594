"""Which question and answers people may look at."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.events import SAMPLE_ANSWERS, SAMPLE_CHARACTERS, SAMPLES_SECONDS, Samples, encode_event
from node.learner.answers.samples import best_and_worst
from node.learner.round.record import RoundRecord
from node.printable import printable_lines
from tests.node.learner.letter_node import MemorySwarm, Node, right_group

HOSTILE = "\x1b[2J\u202e\x00"


def samples_of(node: Node) -> list[Samples]:
    return [event for event in node.events if isinstance(event, Samples)]


def test_a_round_shows_one_group_of_ours_with_its_rewards() -> None:
    node = Node("ann")
    node.round()
    (shown,) = samples_of(node)
    assert shown.round == 1 and shown.learnt_from is None and shown.ours is not None
    assert (
        shown.ours.peer is None and shown.ours.question.endswith(">") and shown.ours.expected == shown.ours.question[0]
    )
    for answer in shown.ours.answers:
        assert answer.reward == float(answer.text.startswith(shown.ours.expected or "-"))


def test_rounds_that_follow_each_other_at_once_show_one_sample_every_few_seconds() -> None:
    node = Node("ann")
    for _ in range(11):
        node.round()  # a second each
    times = [each.time_seconds for each in samples_of(node)]
    assert len(times) == 3 and all(b - a >= SAMPLES_SECONDS for a, b in pairwise(times))


def test_a_group_of_a_peer_that_was_learnt_from_is_shown_under_its_id(swarm: MemorySwarm) -> None:
    node = Node("ann", swarm.member("ann"))
    swarm.put("bob", right_group(node.policy))
    rounds = [node.round() for _ in range(12)]
    assert any(done.foreign_groups_used for done in rounds)
    shown = [each.learnt_from for each in samples_of(node) if each.learnt_from is not None]
    assert shown and all(each.peer == "bob" and each.task == "first" for each in shown)
    assert {answer.reward for each in shown for answer in each.answers} == {1.0}


def test_what_a_step_was_taken_on_is_recorded_by_task_and_peer(swarm: MemorySwarm) -> None:
    node = Node("ann", swarm.member("ann"))
    swarm.put("bob", right_group(node.policy))
    masses = [node.round().gradient_mass_by_task for _ in range(3)]
    by_peer = [peer for each in masses for peer in each.get("first", {})]
    assert "bob" in by_peer and "self" in by_peer
    assert all(mass > 0 for each in masses for of_task in each.values() for mass in of_task.values())


def test_peers_beyond_the_bound_are_counted_together() -> None:
    record = RoundRecord()
    record.learnt_from(
        [("add", "self", 1.0), *(("add", f"p{i}", 1.0) for i in range(100)), ("add", "p0", float("nan"))]
    )
    masses = record.gradient_mass_by_task["add"]
    assert len(masses) == 34 and masses["others"] == 68.0 and sum(masses.values()) == 101.0


@given(st.lists(st.tuples(st.binary(max_size=3), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=20))
def test_the_best_and_the_worst_answers_are_chosen_and_none_twice(group: list[tuple[bytes, float]]) -> None:
    texts, rewards = [text for text, _ in group], [reward for _, reward in group]
    chosen = best_and_worst(texts, rewards)
    shown = [rewards[i] for i in chosen]
    assert 1 <= len(chosen) <= SAMPLE_ANSWERS and len({texts[i] for i in chosen}) == len(chosen)
    assert shown == sorted(shown, reverse=True) and max(rewards) in shown
    assert len(set(texts)) < len(texts) or len(chosen) == 1 or min(rewards) in shown


@pytest.mark.parametrize("text", ["a\nb" * 1000, HOSTILE * 500, "\n" * 5000, "x" * 601])
def test_shown_text_is_bounded_in_characters_and_lines_and_moves_no_cursor(text: str) -> None:
    shown = printable_lines(text, SAMPLE_CHARACTERS)
    assert len(shown) <= SAMPLE_CHARACTERS and shown.count("\n") < 60 and shown.endswith("…")
    assert all(line.isprintable() for line in shown.split("\n"))


def test_a_sample_is_a_small_event() -> None:
    node = Node("ann")
    node.round()
    assert len(encode_event(samples_of(node)[0])) < 8 * SAMPLE_CHARACTERS * (SAMPLE_ANSWERS + 2)
