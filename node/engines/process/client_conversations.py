"""The conversations of a generation in an engine whose client answers their actions."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Final

import numpy as np
from numpy.typing import NDArray

from node.engines.turns import NextAction
from protocol.streams.engine_batches import HandOver, Observation, SamplingBatch


class ClientConversations:
    """``BatchConversations`` of ``batch``. Actions go to ``hand_over``, and ``observe`` takes what follows them.

    The engine's thread calls ``acted`` and ``replies``, and the connection's thread the others.
    """

    def __init__(self, batch: SamplingBatch, hand_over: HandOver, *, vocabulary: int, context: int | None) -> None:
        owners = batch.owners
        self.converse: Final[NDArray[np.bool_]] = np.array([start.converses for start in owners])
        self._hand_over, self._vocabulary, self._context = hand_over, vocabulary, context
        self._rows = {number: [*start.prefix_ids] for number, start in enumerate(owners) if start.converses}
        self._drawn = dict.fromkeys(self._rows, 0)
        self._awaited: set[int] = set()  # conversations whose action the client has or gets, and has not answered
        self._without_reply = 0  # those of which the engine's thread does not know what follows
        self._answers = SimpleQueue[Observation | None]()  # None: nobody wants the rest
        self._unwanted = threading.Event()

    def acted(self, completion: int, token_ids: NDArray[np.int64], logps: NDArray[np.float32]) -> None:
        self._rows[completion] += token_ids.tolist()
        self._drawn[completion] += len(token_ids)
        self._awaited.add(completion)
        self._without_reply += 1
        self._hand_over(completion, (token_ids, logps))

    def replies(self, *, wait: bool) -> list[tuple[int, NextAction | None]]:
        """Returns nothing once the generation was interrupted."""
        found: list[tuple[int, NextAction | None]] = []
        while self._without_reply and not self._unwanted.is_set():
            try:
                answer = self._answers.get(block=wait and not found)
            except Empty:
                break
            if answer is not None:
                self._without_reply -= 1
                found.append((answer.completion, self._next(answer)))
        return found

    def observe(self, observations: Sequence[Observation]) -> None:
        """Raises ``ValueError`` for what does not follow an action, or does not suit the model; all are then awaited
        as before."""
        numbers = [each.completion for each in observations]
        if len(set(numbers)) != len(numbers) or not self._awaited.issuperset(numbers):
            raise ValueError("what follows an action was told of one that was not handed over")
        for each in observations:
            length = len(self._rows[each.completion]) + len(each.token_ids) + each.limit
            if max(each.token_ids, default=0) >= self._vocabulary:
                raise ValueError(f"what was observed has token ids outside the model's {self._vocabulary}")
            if self._context is not None and each.limit and length > self._context:
                raise ValueError(f"a conversation of {length} tokens in a model's context of {self._context}")
        for each in observations:
            self._awaited.remove(each.completion)
            self._answers.put(each)

    def interrupt(self) -> None:
        """Ends a wait for what follows."""
        self._unwanted.set()
        self._answers.put(None)

    def _next(self, answer: Observation) -> NextAction | None:
        row = self._rows[answer.completion]
        row += answer.token_ids
        if not answer.limit:
            return None
        return NextAction(answer.token_ids, answer.limit, self._drawn[answer.completion], row)
