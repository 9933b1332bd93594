"""A step on trial: which groups count, how it ends, what is remembered of its partner, and over a restart."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import torch

from node.averaging.guard import (
    DOUBLINGS,
    PARTNERS,
    PAUSE_ROUNDS,
    REDEEMING,
    AveragingGuard,
    OwnGroup,
    PartnerRecord,
    StepTrial,
)
from node.averaging.trial import TRIAL_ROUNDS
from swarm.averaging.norm_history import FamilyPast

WEIGHTS = {"head": torch.arange(6.0).reshape(2, 3), "tail": torch.ones(2)}
GOOD, BAD = (1.0, 0.0, 1.0, 0.0), (0.0, 0.0, 0.0, 0.0)


def step(partner: str = "bob", version: int = 10) -> StepTrial:
    return StepTrial(partner, bytes(32), 5, version, WEIGHTS, FamilyPast(refused=2))


def own(rewards: tuple[float, ...], version: int, count: int = 8) -> list[OwnGroup]:
    return [OwnGroup("a", version, rewards) for _ in range(count)]


def guard_with_past() -> AveragingGuard:
    guard = AveragingGuard()
    for version in range(5, 10):
        assert guard.observe(own(GOOD, version)) is None
    return guard


def test_harm_is_seen_in_the_first_round_and_its_partner_avoided_for_a_while() -> None:
    guard = guard_with_past()
    guard.past = FamilyPast(refused=7)
    guard.began(step())
    found = guard.observe(own(BAD, 10))
    assert found is not None and found.before == 0.5 and found.change == -0.5
    ended = guard.failed(11)
    assert ended.before is WEIGHTS and guard.trial is None
    assert guard.past == FamilyPast(refused=2)  # distances as before the exchange
    assert guard.known(11 + PAUSE_ROUNDS - 1).avoided == ("bob",)
    assert guard.known(11 + PAUSE_ROUNDS).avoided == ()


def test_a_partner_that_harms_again_is_avoided_for_longer_and_steps_without_harm_make_up_for_it() -> None:
    record = PartnerRecord(score_sum=-4.9)
    pauses = []
    for _ in range(DOUBLINGS + 3):
        record = record.after_harm(1000)
        pauses.append((record.avoided_until - 1000) // PAUSE_ROUNDS)
    assert pauses[:4] == [1, 2, 4, 8] and pauses[-3:] == [2**DOUBLINGS] * 3
    assert record.score_sum == 0.0  # what accused it once does not accuse it again
    once = PartnerRecord().after_harm(1000)
    for _ in range(REDEEMING - 1):
        once = once.after_step(0.0)
    assert once.after_harm(2000).avoided_until == 2000 + 2 * PAUSE_ROUNDS
    assert once.after_step(0.0).after_harm(2000).avoided_until == 2000 + PAUSE_ROUNDS


def test_groups_of_older_weights_say_nothing_of_the_step_and_those_of_spoilt_ones_nothing_at_all() -> None:
    guard = guard_with_past()
    guard.began(step(version=20))
    assert guard.observe(own(BAD, 19, count=4)) is None  # generated ahead, before the step
    assert guard.trial is not None and guard.trial.rounds == 0
    assert guard.observe(own(BAD, 20)) is not None
    guard.failed(21)
    history = dict(guard.history)
    guard.observe(own(BAD, 20))  # generated ahead with it
    assert guard.history == history


def test_a_step_without_harm_passes_after_a_few_rounds_or_with_the_next_one() -> None:
    guard = guard_with_past()
    guard.began(step())
    for _ in range(TRIAL_ROUNDS):
        assert guard.trial is not None
        assert guard.observe(own(GOOD, 10)) is None
    assert guard.trial is None and guard.partners["bob"].steps == 1
    guard.began(step("ann", 11))
    guard.began(step("eve", 12))
    assert guard.partners["ann"].steps == 1 and guard.trial is not None and guard.trial.partner == "eve"


def test_small_harm_again_and_again_by_one_partner_is_found_in_its_sum() -> None:
    guard = AveragingGuard(history={"a": (0.0, 1.0) * 16})
    steps = 0
    found = None
    while found is None and steps < 30:
        guard.history = {"a": (0.0, 1.0) * 16}
        guard.began(step())
        for _ in range(TRIAL_ROUNDS):
            found = found or guard.observe(own((0.35,), 10, count=4))
        steps += 1
    assert found is not None and not found.is_harm and 3 <= steps < 30


def test_partners_are_bounded_and_harmless_ones_forgotten_first() -> None:
    guard = guard_with_past()
    guard.began(step("harmful"))
    guard.failed(11)
    for number in range(2 * PARTNERS):
        guard.began(step(str(number)))
    assert len(guard.partners) == PARTNERS and guard.known(12).avoided == ("harmful",)


def test_a_step_on_trial_and_the_past_come_back_from_a_checkpoint() -> None:
    guard = guard_with_past()
    guard.began(step("ann"))
    guard.failed(11)
    guard.past, guard.learnt = FamilyPast().after_averaging("ann", 3.0).after_refusal(), 4.5
    guard.began(step())
    guard.observe(own(GOOD, 10, count=2))
    written = msgspec.json.decode(msgspec.json.encode(guard.snapshot()))
    restored = AveragingGuard.restored(written, guard.tensors(), WEIGHTS)
    assert restored.trial is not None and guard.trial is not None
    assert all(torch.equal(restored.trial.before[name], tensor) for name, tensor in WEIGHTS.items())
    assert replace(restored.trial, before=WEIGHTS).__repr__() == guard.trial.__repr__()
    assert restored.snapshot() == guard.snapshot()
    assert restored.known(12) == guard.known(12)
    assert AveragingGuard.restored(written, {}, WEIGHTS).trial is None
