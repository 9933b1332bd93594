"""Events of weights that go to peers and come from them while learning continues."""

from __future__ import annotations

from typing import Literal

from node.events.timed import TimedEvent


class Averaged(TimedEvent, frozen=True, kw_only=True, tag="averaged"):
    """An offer of our weights to the family has ended, with or without an outer step."""

    round: int  # rounds done when it ended
    partner: str | None  # peer id; None: the weights stay as they were
    because: str  # how it ended, in words; names peers only by their ids
    seconds: float  # from the offer to the end; learning continues meanwhile
    encoding: str = ""  # of what was offered: all of it in bf16, or compressed
    rounds_between: int = 0  # learnt meanwhile, and kept
    sent_bytes: int = 0  # of our weights, as offered
    received_bytes: int = 0  # of the partner's
    weight: float | None = None  # of the partner's weights in the mean, where ours have 1; below 1 if unusually far
    # ‖θ_i − θ_j‖ / ‖θ_i‖ of the weights as offered, before the step. Compressed: of φ, from a sample.
    distance: float | None = None
    outer_steps: int = 0  # in all
    sent_bytes_total: int = 0  # over this learner process's life
    received_bytes_total: int = 0


class AveragingTakenBack(TimedEvent, frozen=True, kw_only=True, tag="averaging_taken_back"):
    """Own success fell after an outer step by more than noise explains: the weights from before it are back."""

    round: int  # that showed it
    partner: str  # peer id; not averaged with for a day
    because: str  # in words
    averaged_round: int  # rounds done when the step was taken
    success_before: float  # mean reward of own groups
    success_change: float
    groups: int  # since the step


class StatePublished(TimedEvent, frozen=True, kw_only=True, tag="state_published"):
    """The nodes of our family can fetch our weights."""

    round: int
    policy_version: int
    weights: str  # hash of the bf16 weights, hex
    kind: Literal["anchor", "diff"]
    size_bytes: int  # of the added anchor or diff
    diffs: int  # from the anchor to this state
    seconds: float  # spent on a thread of its own
