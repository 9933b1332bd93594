"""The learning rate that "auto" finds while the node learns: steps that move its policy as far as was found best.

    κ        = KL(π_before‖π_after) / (factor · signal)²      nats a token, of a whole step at the model's own rate
    log κ̄    = the average of the measurements' log κ, of which the newest counts at least ``NEWEST``
    s̄        = the same average of the signal of these steps
    goal     ← √(min(TARGET, MOST_MOVED / s̄²) / κ̄), where that is more than b times what it was or less than a bth,
               b = BAND · (1 + FEW / n) after n measurements
    factor   ← towards the goal, at most ``UP`` times or a ``DOWN``th of itself a step

The rate is ``factor`` times what goes by the model's size (``optimizer.learning_rate_for``); ``signal`` is by how much
a step is shortened since its batch says little (``step.signal_share``), times the part of the batch that own
completions say: the others' part hardly moves what is measured. KL is measured on own completions of one pass
of the batch, before and after the step, which takes one forward pass more: ``FIRST_MEASURED`` times in every step, then
in every ``MEASURED_EVERY``th, and after ``SETTLED`` measurements in every ``SETTLED_EVERY``th. It grows with the square
of the rate, over a factor of thirty. One measurement is within a factor of four of the next, hence the average and the
band. Adam's first steps, whose moments are of few gradients, move a policy by ``FIRST_LONGER`` times as much KL as
later ones at the same rate, which is allowed for. An adapter's move it by next to none, since its B begins at 0: no
goal rises before ``FIRST_MEASURED`` measurements.

``TARGET`` is of a whole step, and was found where steps had a third of their length. Where nearly all of a batch says
something, as in conversations whose outcome is partly luck, steps would be taken whole: with up to eight times the KL,
in a direction that is mostly noise. Success falls then (docs/experiments/turns.md). So a step, as it is taken, moves
the policy by ``MOST_MOVED`` at most, which is what steps did where ``TARGET`` was found.

Control of KL by the rate is common practice of PPO for robots ("Learning to Walk in Minutes Using Massively Parallel
Deep Reinforcement Learning", arXiv 2109.11978), which multiplies the rate by 1.5 or divides it after each batch. What
``TARGET`` rests on, and what was tried: docs/experiments/settings.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from node.learner.steps.optimizer import SMALL_RATE

TARGET: Final = 0.02
MOST_MOVED: Final = 0.0025
NEWEST: Final = 0.2
BAND: Final = 2.0
FEW: Final = 3.0
UP: Final = 1.5
DOWN: Final = 3.0
LEAST_FACTOR: Final = 1 / 30
MOST_FACTOR: Final = 10.0
# Of a model larger than those that were measured. What is published of such models takes steps of less KL than
# ``TARGET``, so that theirs would all be found too short.
MOST_OF_LARGE: Final = 3.0
MOST_OF_ADAPTER: Final = 1.0  # steps that move the policy as far cost an adapter success (docs/experiments/settings.md)
FIRST_MEASURED: Final = 8
FIRST_LONGER: Final = 6.0
MEASURED_EVERY: Final = 8
SETTLED: Final = 24
SETTLED_EVERY: Final = 32


@dataclass(frozen=True, slots=True)
class RateState:
    """What is known of the length of steps; part of checkpoints."""

    factor: float = 1.0  # times the rate that goes by the model's size
    goal: float = 1.0  # where the factor goes
    log_kappa: float = 0.0  # of κ̄; without meaning before the first measurement
    measured: int = 0
    since_round: int = 0  # with the step of which the goal changed last; 0: it never did
    before: float = 1.0  # the goal until then
    because: str = ""
    signal: float = 0.0  # s̄; without meaning before the first measurement


def in_use(state: RateState, configured: float | str) -> RateState:
    """Returns the state that counts: none of what was found where a number is ``configured`` instead of "auto"."""
    return state if configured == "auto" else RateState()


def is_measured(state: RateState, round_number: int) -> bool:
    """Returns whether it is measured how far the step of this round moves the policy."""
    every = 1 if state.measured < FIRST_MEASURED else MEASURED_EVERY if state.measured < SETTLED else SETTLED_EVERY
    return round_number % every == 0


def most_factor(own_rate: float, *, adapter: bool) -> float:
    """Returns the largest factor of a model, or of its ``adapter``, whose rate by its size is ``own_rate``."""
    if adapter:
        return MOST_OF_ADAPTER
    return MOST_FACTOR if own_rate >= SMALL_RATE else MOST_OF_LARGE


def next_rate(
    state: RateState, kl: float | None, signal: float, round_number: int, *, most: float = MOST_FACTOR
) -> RateState:
    """Returns the state after the step of a round, which moved the policy by ``kl`` nats a token; None: not measured.
    Of the length of a whole step it had ``signal``, 0 to 1, from own completions. A measurement that tells nothing (not
    finite, no movement) changes nothing. No goal is above ``most``."""
    if kl is not None and math.isfinite(kl) and kl > 0 and signal > 0:
        state = _with_goal(_measured(state, kl, signal), round_number, most)
    change = min(UP, max(1 / DOWN, state.goal / state.factor))
    return replace(state, factor=state.factor * change)


def _measured(state: RateState, kl: float, signal: float) -> RateState:
    measured = state.measured + 1
    log_kappa = math.log(kl) - 2 * math.log(state.factor * signal)
    if measured <= FIRST_MEASURED:
        log_kappa -= math.log(FIRST_LONGER)
    newest = max(1 / measured, NEWEST)
    average = state.log_kappa + newest * (log_kappa - state.log_kappa)
    return replace(state, log_kappa=average, signal=state.signal + newest * (signal - state.signal), measured=measured)


def _with_goal(state: RateState, round_number: int, most: float) -> RateState:
    wanted = math.log(min(math.sqrt(TARGET), math.sqrt(MOST_MOVED) / state.signal)) - state.log_kappa / 2
    wanted = math.exp(min(math.log(most), max(math.log(LEAST_FACTOR), wanted)))
    band = BAND * (1 + FEW / state.measured)
    may_rise = state.measured >= FIRST_MEASURED
    if 1 / band <= wanted / state.goal and (wanted / state.goal <= band or not may_rise):
        return state
    than = "short" if wanted > state.goal else "long"
    times = max(wanted / state.goal, state.goal / wanted)
    because = f"steps were {times:.1f} times too {than}, by how far they moved the policy"
    return replace(state, goal=wanted, before=state.goal, since_round=round_number, because=because)
