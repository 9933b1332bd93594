"""What trackers get: every number of a round, an evaluation or an averaging, and nothing that strangers named."""

from __future__ import annotations

import math

from node.events import Averaged, CheckpointSaved, Evaluated
from node.trackers.records import MAX_TASKS, record_of
from tests.factories import round_done

EVALUATED = Evaluated(
    time_seconds=5.0,
    round=50,
    policy_version=49,
    prompts=16,
    reward=0.4,
    reward_by_task={"add": 0.3, "spell": 0.5},
    validation=0.35,
    best_round=40,
    best_reward=0.45,
    seconds=1.5,
)


def test_round_becomes_numbers_by_group() -> None:
    record = record_of(round_done(7, loss=0.25, kl=None))
    assert record is not None
    assert (record.round, record.time_seconds) == (7, 7.0)
    numbers = record.numbers
    assert numbers["round/loss"] == 0.25
    assert numbers["round/tokens_generated_total"] == 700.0
    assert (numbers["reward/add"], numbers["success/add"], numbers["seconds/generate"]) == (0.25, 0.5, 0.2)
    assert not {"round/kl", "round/round", "round/time_seconds", "round/alone_because"} & numbers.keys()


def test_evaluation_and_averaging_become_numbers_and_an_offer_without_a_partner_does_not() -> None:
    evaluated = record_of(EVALUATED)
    assert evaluated is not None
    assert evaluated.numbers["held-out/reward"] == 0.4
    assert (evaluated.numbers["held-out/add"], evaluated.numbers["held-out/best_reward"]) == (0.3, 0.45)
    averaged = Averaged(time_seconds=1.0, round=9, partner="12D3x", because="committed", seconds=2.0, distance=0.01)
    record = record_of(averaged)
    assert record is not None
    assert (record.round, record.numbers["averaging/distance"], record.numbers["averaging/seconds"]) == (9, 0.01, 2.0)
    assert record_of(Averaged(time_seconds=1.0, round=9, partner=None, because="nobody", seconds=2.0)) is None
    assert record_of(CheckpointSaved(time_seconds=1.0, round=9, path="p", size_bytes=1, seconds=1.0)) is None


def test_names_of_peers_and_reasons_of_strangers_become_no_numbers() -> None:
    record = record_of(round_done(divergence_by_peer={"12D3x": 0.1}, foreign_rejected={"eve": 3}))
    assert record is not None
    assert not [name for name in record.numbers if "12D3x" in name or "eve" in name]


def test_numbers_are_finite_and_bounded_in_count() -> None:
    record = record_of(round_done(entropy=math.inf, reward_by_task={f"task {n:03}": 0.5 for n in range(MAX_TASKS + 9)}))
    assert record is not None
    assert "round/entropy" not in record.numbers
    assert sum(name.startswith("reward/") for name in record.numbers) == MAX_TASKS
