"""The learner's newest events, and what the owner must be told because of them: rounds that no checkpoint holds,
checkpoints that are damaged, memory that ran out, an engine that was lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from typing import Any, Final, TypeVar

from node import events
from node.api.answers import (
    damaged_line,
    divided_anew_line,
    dropped_donor_line,
    engine_line,
    lost_stage_line,
    not_saved_line,
    out_of_memory_line,
)
from node.supervision.watching.learning_watch import LearningWatch
from node.supervision.watching.phase_watch import PhaseWatch

UNSAVED_NOTE_SECONDS: Final = 300.0  # between two notes that no checkpoint can be written

Kind = TypeVar("Kind", bound=events.Event)


class LearnerNews:
    """Sees every event of the learner that is recorded, over all its restarts."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` gives seconds from any fixed time, and never goes back."""
        self._clock = clock
        self._newest: dict[type[Any], Any] = {}
        self.averaged: events.Averaged | None = None  # the newest one with a partner
        self._unsaved_noted_at = -math.inf
        self._phases = PhaseWatch()
        self._learning = LearningWatch()
        self._lost_stages: Set[int] = set()  # the first layer of each place that was told to have lost its machine
        self._division: list[int] = []  # where layers were cut last
        self._noted: set[str] = set()  # what is told once: "NOTHING LEARNT" and "REWARD FALLS"
        self._heard_at = clock()

    def newest(self, kind: type[Kind]) -> Kind | None:
        """Returns the newest event of a kind. None if there was none, or if a later event ended what it told."""
        found: Kind | None = self._newest.get(kind)
        return found

    @property
    def rounds_done(self) -> int:
        done, ready = self.newest(events.RoundDone), self.newest(events.LearnerReady)
        return done.round if done is not None else ready.round if ready is not None else 0

    @property
    def device(self) -> str | None:
        """Returns torch's name of what the learner computes on; None before it was ready once."""
        ready = self.newest(events.LearnerReady)
        return ready.device if ready is not None else None

    @property
    def hangs(self) -> str | None:
        """Returns in words which phase lasts far longer than usual; None while none does."""
        return self._phases.hangs(self._clock() - self._heard_at)

    @property
    def nothing_learnt(self) -> str | None:
        """Returns in words why the newest rounds taught nothing, and what to do; None while the learner learns."""
        return self._learning.nothing_learnt

    @property
    def reward_falls(self) -> str | None:
        """Returns in words that the reward only falls, and what to do; None while it does not."""
        return self._learning.reward_falls

    def learner_starts(self) -> None:
        self._newest.pop(events.Stopped, None)

    def saw(self, event: events.Event) -> list[str]:
        """Takes one event and returns notes for the owner."""
        self._newest[type(event)] = event
        self._heard_at = self._clock()
        self._phases.saw(event)
        match event:
            case events.RoundDone():
                self._learning.saw(event)
                states = {"NOTHING LEARNT": self.nothing_learnt, "REWARD FALLS": self.reward_falls}
                new = {title: text for title, text in states.items() if text is not None and title not in self._noted}
                self._noted |= new.keys()
                return [f"{title}: {text}." for title, text in new.items()]
            case events.Averaged(partner=str()):
                self.averaged = event
            case events.Evaluated() | events.BaselineMeasured():
                self._newest.pop(events.PhaseBegan, None)  # the evaluation that it announced is over
            case events.CheckpointsDamaged():
                return [damaged_line(event)]
            case events.EngineChanged() if event.losses:
                return [engine_line(event)]
            case events.DonorsShared(donors=()):
                del self._newest[events.DonorsShared]  # the last one has left
            case events.DonorsShared():
                return [dropped_donor_line(donor) for donor in event.donors if donor.state == "dropped"]
            case events.StagesHeld():
                lost = {stage.first: stage for stage in event.stages if not stage.peer and stage.because}
                new_ones = [lost_stage_line(stage) for first, stage in lost.items() if first not in self._lost_stages]
                self._lost_stages = lost.keys()
                division = [stage.first for stage in event.stages]
                if division and self._division and division != self._division:
                    new_ones.append(divided_anew_line(event))
                self._division = division or self._division
                return new_ones
            case events.OutOfMemory():
                return [out_of_memory_line(event)]
            case events.NotSaved():
                unnoted_seconds = self._clock() - self._unsaved_noted_at
                if event.ends_in_seconds is not None or unnoted_seconds >= UNSAVED_NOTE_SECONDS:
                    self._unsaved_noted_at = self._clock()
                    return [not_saved_line(event)]
            case events.CheckpointSaved() if events.NotSaved in self._newest:
                del self._newest[events.NotSaved]
                self._unsaved_noted_at = -math.inf
                return [f"Saved again: the checkpoint of round {event.round} is whole, at {event.path}"]
            case _:
                pass
        return []
