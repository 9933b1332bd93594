"""Whether the learner hangs in a phase, decided from its events and the time since the last of them.

A phase hangs once nothing was heard of the learner for ``FACTOR`` times the phase's usual length, and for
``MIN_SECONDS`` at least. The usual length is the median over the last ``ROUNDS`` rounds. Short phases are not
announced: while none that was announced is under way, the length of a whole round counts. The first round of a learner
has no usual length, because what it compiles takes it longer than all others.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

import msgspec

from node.api.answers import PHASES
from node.events import Evaluated, Event, LearnerReady, PhaseBegan, RoundDone
from node.quantities import duration

FACTOR: Final = 10.0
MIN_SECONDS: Final = 30.0
ROUNDS: Final = 9
EVALUATION: Final = "evaluate"


class PhaseWatch:
    """Remembers how long the phases of the last rounds took, and which is under way."""

    def __init__(self) -> None:
        self._lengths: deque[dict[str, float]] = deque(maxlen=ROUNDS)  # seconds by phase; the whole round under ""
        self._evaluation_seconds: float | None = None
        self._phase: str | None = None  # under way; "": one that was not announced; None: the learner's first round

    def saw(self, event: Event) -> None:
        match event:
            case LearnerReady():
                self._phase = None
            case PhaseBegan() if self._phase is not None:
                self._phase = event.phase
            case Evaluated():
                self._evaluation_seconds = event.seconds
                if self._phase == EVALUATION:
                    self._phase = ""
            case RoundDone():
                self._phase = ""
                self._lengths.append({**msgspec.structs.asdict(event.phases), "": event.seconds})
            case _:
                pass

    def hangs(self, silent_seconds: float) -> str | None:
        """Returns in words what hangs, after ``silent_seconds`` without an event; None while nothing does."""
        usual_seconds = self._usual_seconds()
        if usual_seconds is None or silent_seconds < max(MIN_SECONDS, FACTOR * usual_seconds):
            return None
        usual = f"{usual_seconds:.1f} s" if usual_seconds < 10 else duration(usual_seconds)
        what = f'the phase "{PHASES[self._phase]}"' if self._phase in PHASES else "a round"
        return (
            f"the learner has reported nothing for {duration(silent_seconds)}, and {what} usually takes "
            f"{usual}: it may hang. HOME/logs/learner.log may say why; starling down and starling up "
            "go on from the last checkpoint"
        )

    def _usual_seconds(self) -> float | None:
        if self._phase == EVALUATION:
            return self._evaluation_seconds
        lengths = [each[self._phase] for each in self._lengths if self._phase in each]
        return median(lengths) if lengths else None
