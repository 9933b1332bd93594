"""What is left of ``--rounds`` and ``--tokens`` for a learner that is started again after a pause."""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from node.events import CheckpointSaved, Event, LearnerReady, LearnerStart, RoundDone, Stopped

ROUNDS_REMEMBERED: Final = 256  # between a round and the end of its checkpoint


class RunBudget:
    """Sees every event of the learner. ``start`` counts from the first round of this node's run."""

    def __init__(self, first_line: bytes) -> None:
        """``first_line`` is ``LearnerStart`` as JSON."""
        self._first_line = first_line
        self._first_round: int | None = None
        self._first_tokens: int | None = None
        self._tokens: deque[tuple[int, int]] = deque(maxlen=ROUNDS_REMEMBERED)  # in total after each round
        self._kept_round = self._kept_tokens = 0

    def saw(self, event: Event) -> None:
        match event:
            case LearnerReady() if self._first_round is None:
                self._first_round = self._kept_round = event.round
            case RoundDone():
                if self._first_tokens is None:
                    self._first_tokens = self._kept_tokens = event.tokens_generated_total - event.tokens_generated
                self._tokens.append((event.round, event.tokens_generated_total))
            case CheckpointSaved():
                self._kept_round = max(self._kept_round, event.round)
                known = [total for number, total in self._tokens if number <= event.round]
                self._kept_tokens = max(self._kept_tokens, *known, 0)
            case Stopped() if event.checkpoint is not None:
                self._kept_round, self._kept_tokens = event.round, event.tokens_generated_total
            case _:
                pass

    def start(self) -> bytes:
        """Returns the first line with what the checkpoint, from which the next learner continues, has left to do: at
        least one round and one token."""
        start = msgspec.json.decode(self._first_line, type=LearnerStart)
        rounds, tokens = start.config.get("rounds", 0), start.config.get("tokens", 0)
        left = dict(start.config)
        if rounds and self._first_round is not None:
            left["rounds"] = max(1, rounds - (self._kept_round - self._first_round))
        if tokens and self._first_tokens is not None:
            left["tokens"] = max(1, tokens - (self._kept_tokens - self._first_tokens))
        return msgspec.json.encode(LearnerStart(start.home, left)) if rounds or tokens else self._first_line
