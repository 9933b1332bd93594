"""The guard on a learner's own success: who teaches, who is blamed when it falls, and when weights go back."""

from __future__ import annotations

import json
from random import Random

import msgspec
import numpy as np
import pytest

from node.learner.influence.guard import Guard, Harm, InfluenceState
from node.learner.influence.shares import masses_by_peer, own_mass
from node.learner.influence.standing import PROBATION_ROUNDS, SET_ASIDE_ROUNDS, Standings
from node.learner.objective.alignment import text_alignment
from node.learner.objective.batch import TrainingCompletion, TrainingGroup
from node.learner.steps.undo import Undo
from tests.node.learner.influence.own_success import own_groups


class Copy(Undo):
    """Stands in for a copy of weights, and counts how often it is put back."""

    def __init__(self) -> None:
        self.restored = 0

    def restore(self) -> None:
        self.restored += 1


def group(peer: str, not_copied: tuple[str, ...] = ()) -> tuple[str, TrainingGroup]:
    completion = TrainingCompletion(np.ones(4, np.int64), text_alignment(4), 0.5, peer, count=4)
    completions = () if not_copied else (completion,)
    return peer, TrainingGroup((1,), completions, 16, 4, not_copied=not_copied)


class Run:
    """Rounds of a learner whose success the test decides."""

    def __init__(self, *, trusting: bool = False) -> None:
        self.guard = Guard(InfluenceState(standings=Standings(trusting)), completions=4, staleness=0, seed="test")
        self.number, self.copies, self.rng = 0, dict[int, Copy](), Random(1)
        self.given: list[Undo | None] = []  # with each copy: the one whose memory it may use

    def rounds(self, count: int, success: float, *foreign: tuple[str, TrainingGroup]) -> list[Harm]:
        own = [group("self")[1]] * 16
        harms = []
        for _ in range(count):
            self.number += 1
            self.used = [each.influence for each in self.guard.shaped(self.number, own, foreign)]
            harm = self.guard.after_round(self.number, own_groups(self.rng, success, 32), self._copy)
            harms += [] if harm is None else [harm]
        return harms

    def _copy(self, oldest: Undo | None) -> Copy:
        self.given.append(oldest)
        self.copies[self.number] = Copy()
        return self.copies[self.number]


def test_newcomers_teach_from_the_first_round_and_gain_influence_once_own_success_is_known() -> None:
    run = Run()
    run.rounds(1, 0.5, group("bob"))
    assert run.used[0] > 0
    assert run.guard.state.standings.influence("bob", 2) == 1 / PROBATION_ROUNDS
    run.rounds(10, 0.5, group("bob"))
    assert run.guard.state.standings.of("bob").proven


def test_newcomers_together_do_as_much_as_our_own_groups_from_the_first_round() -> None:
    run, own = Run(), [group("self")[1]]
    newcomers = [group(f"newcomer-{n}") for n in range(6)]
    shaped = run.guard.shaped(1, own, newcomers)
    masses = masses_by_peer([(peer, each) for (peer, _), each in zip(newcomers, shaped, strict=True)])
    assert sum(masses.values()) == pytest.approx(own_mass(own))
    assert max(masses.values()) == pytest.approx(own_mass(own) / PROBATION_ROUNDS)


def test_poisoner_that_is_there_from_the_first_round_is_found_and_the_weights_go_back() -> None:
    run = Run()
    harms = [harm for success in (0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.1) for harm in run.rounds(1, success, group("eve"))]
    assert harms and harms[0].peers == ("eve",) and harms[0].weights_of_round in (1, 2)


def test_poisoner_is_found_by_own_success_and_the_weights_go_back_to_before_it() -> None:
    run = Run()
    assert run.rounds(30, 0.6, group("bob")) == []
    assert run.guard.state.standings.of("bob").proven
    joined = run.number
    (harm,) = run.rounds(6, 0.1, group("bob"), group("eve"), group("eve"))[:1]
    assert harm.peers == ("eve",)
    assert harm.weights_of_round is not None and harm.weights_of_round <= joined + 1
    assert run.copies[harm.weights_of_round].restored
    assert not run.guard.admits(run.number + 1)("eve")
    assert run.guard.state.standings.of("bob").proven
    assert joined < harm.until_round - SET_ASIDE_ROUNDS <= run.number and not harm.suspected


def test_sleeper_with_full_influence_loses_it_within_a_few_rounds() -> None:
    run = Run()
    run.rounds(30, 0.6, group("bob"), group("sleeper"))
    harms = run.rounds(6, 0.1, group("bob"), group("sleeper"))
    assert harms and harms[0].weights_of_round is not None
    assert not run.guard.state.standings.of("sleeper").proven


def test_small_fall_takes_influence_and_leaves_the_weights() -> None:
    run = Run()
    run.rounds(30, 0.95, group("bob"))
    harms = run.rounds(40, 0.76, group("bob"))
    assert harms and all(harm.weights_of_round is None for harm in harms)
    assert harms[0].peers == ("bob",)


def test_without_peers_nothing_is_copied_and_nobody_blamed() -> None:
    run = Run()
    run.rounds(20, 0.6)
    assert run.rounds(10, 0.1) == []
    assert run.copies == {}


def test_a_third_copy_is_made_in_the_memory_of_the_first() -> None:
    run = Run()
    run.rounds(60, 0.6, group("bob"))
    made = list(run.copies.values())
    assert len(made) > 3
    assert run.given == [None, None, *made[:-2]]


def test_friends_teach_from_the_first_round_and_are_not_beyond_suspicion() -> None:
    run = Run(trusting=True)
    run.rounds(1, 0.6, group("ann"))
    assert run.used == [1.0]
    run.rounds(30, 0.6, group("ann"))
    assert run.rounds(6, 0.05, group("ann"))[0].peers == ("ann",)


def test_whoever_sends_forms_that_are_not_copied_is_not_fetched_any_more() -> None:
    run = Run()
    run.rounds(3, 0.5, group("padder", ("not in the task's own form",)))
    assert not run.guard.admits(4)("padder")


def test_the_state_survives_a_checkpoint() -> None:
    run = Run()
    run.rounds(PROBATION_ROUNDS + 6, 0.6, group("bob"), group("ann"))
    run.rounds(4, 0.1, group("bob"), group("ann"))
    saved = json.dumps(msgspec.to_builtins(run.guard.state, str_keys=True))
    assert msgspec.convert(json.loads(saved), InfluenceState, str_keys=True) == run.guard.state
