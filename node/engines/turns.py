"""The conversations of one call of an engine, while they run.

A conversation is a completion whose row others write to as well: once its action has ended, ``Turns`` says what the
model reads next, and the same row goes on. ``RunningConversations`` is for an engine that lets rows wait so while it
samples others, here or in another process. ``in_step`` is for any engine that knows single answers alone, and for
conversations that may be written again: a call for each turn of all, which computes every row anew.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from node.engines.engine import (
    Ended,
    Enough,
    GenerationProgress,
    GenerationRequest,
    Heard,
    Partial,
    Sample,
    Sampling,
    Turns,
)
from node.engines.resumption import SamplingStart, joined, room_of, row_of, sample_of
from protocol.streams.engine_batches import Start


@dataclass(frozen=True, slots=True, eq=False)
class NextAction:
    """What a conversation that goes on needs."""

    said: Sequence[int]  # read before the next action
    limit: int  # tokens of the next action, at least 1
    drawn: int  # tokens sampled in this call so far
    row: Sequence[int]  # all of it, ``said`` included


class BatchConversations(Protocol):
    """What a batch asks about the conversations among its completions."""

    @property
    def converse(self) -> NDArray[np.bool_]:
        """Which completions are conversations, (completions,)."""

    def acted(self, completion: int, token_ids: NDArray[np.int64], logps: NDArray[np.float32]) -> None:
        """Takes an action that has ended, or the rest of one that was begun."""

    def replies(self, *, wait: bool) -> list[tuple[int, NextAction | None]]:
        """Returns completions with what follows their action; None for those that have ended. With ``wait`` at least
        one, where any is awaited and the batch is still wanted."""


class RunningConversations:
    """``BatchConversations`` of ``requests``. ``limits`` as of ``starts_of``."""

    def __init__(
        self,
        requests: Sequence[GenerationRequest],
        starts: Sequence[SamplingStart],
        limits: Sequence[int],
        turns: Turns,
        version: int,
        eos_ids: Sequence[int],
    ) -> None:
        self._requests, self._limits, self._turns = requests, limits, turns
        self._version, self._eos_ids = version, eos_ids
        self._starts = [start for start in starts for _ in range(start.completions)]
        self.converse: NDArray[np.bool_] = np.array(
            [requests[start.request].conversation_tokens is not None for start in self._starts]
        )
        self._drawn: NDArray[np.int64] = np.zeros(len(self._starts), dtype=np.int64)
        self.reached: dict[int, Sample | Partial] = {}  # of conversations with an action that has ended, by completion
        self.awaited = 0  # conversations of which it is not known yet what follows

    def acted(self, completion: int, token_ids: NDArray[np.int64], logps: NDArray[np.float32]) -> None:
        start, before = self._starts[completion], self.reached.get(completion)
        assert not isinstance(before, Sample)
        begun = start.begun if before is None else before
        self.reached[completion] = sample = sample_of(joined(begun, token_ids, logps, self._version), self._eos_ids)
        self._drawn[completion] += len(token_ids)
        self.awaited += 1
        self._turns.acted(completion, start.request, sample)

    def replies(self, *, wait: bool) -> list[tuple[int, NextAction | None]]:
        found: list[tuple[int, NextAction | None]] = []
        for completion, heard in self._turns.replies(wait=wait) if self.awaited else ():
            self.awaited -= 1
            index = self._starts[completion].request
            request, sample = self._requests[index], self.reached[completion]
            partial = continued(request, self._limits[index], sample, heard)
            if partial is None or heard is None:
                found.append((completion, None))
                continue
            self.reached[completion] = partial
            room, drawn = room_of(request, self._limits[index], partial), int(self._drawn[completion])
            found.append((completion, NextAction(heard.ids, room, drawn, row_of(request.prompt_ids, partial))))
        return found

    def settle(self) -> None:
        """Waits until it is known of every conversation what follows its last action."""
        while self.awaited:
            self.replies(wait=True)


def asked_of(
    starts: Sequence[SamplingStart], requests: Sequence[GenerationRequest], turns: Turns | None
) -> tuple[Start, ...]:
    """Returns what an engine elsewhere is asked for. With ``turns`` it keeps the conversations among ``requests``."""
    converse = [turns is not None and each.conversation_tokens is not None for each in requests]
    return tuple(
        Start(each.request, tuple(each.prefix_ids), each.completions, each.limit, converse[each.request])
        for each in starts
    )


def continued(request: GenerationRequest, limit: int, so_far: Sample | Partial, heard: Heard | None) -> Partial | None:
    """Returns the conversation with the reply ``heard``; None where it has ended: nothing follows its action, or what
    follows leaves no room for another one."""
    if heard is None:
        return None
    place = len(so_far.token_ids)
    observed = (*so_far.observed, (place, tuple(heard.ids)))
    anew = (*so_far.anew, place) if heard.anew else so_far.anew
    partial = Partial(so_far.token_ids, so_far.logps, so_far.segments, observed, anew)
    return partial if room_of(request, limit, partial) > 0 else None


class Advance(Protocol):
    """``Engine.advance`` without turns: a conversation to the end of its action."""

    def __call__(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        enough: Enough | None = None,
        ended: Ended | None = None,
    ) -> list[GenerationProgress]: ...


def in_step(
    advance: Advance,
    requests: Sequence[GenerationRequest],
    sampling: Sampling,
    enough: Enough | None,
    ended: Ended | None,
    turns: Turns | None,
) -> list[GenerationProgress]:
    """``Engine.advance`` by calls that know no turns: one for the single answers, then one for each turn of all
    conversations. ``enough`` ends it between two turns; within one where it does so whatever the count."""
    conversations = [at for at, each in enumerate(requests) if each.conversation_tokens is not None]
    if turns is None or not conversations:
        return advance(requests, sampling, enough, ended)
    progress = [each.begun or GenerationProgress() for each in requests]
    answers = [at for at, each in enumerate(requests) if each.conversation_tokens is None]
    if answers:
        tell = None if ended is None else _at(answers, ended)
        for at, reached in zip(answers, advance([requests[at] for at in answers], sampling, enough, tell), strict=True):
            progress[at] = reached
    turn = 0
    while True:
        complete = sum(len(each.samples) == of.completions for of, each in zip(requests, progress, strict=True))
        going = [at for at in conversations if len(progress[at].samples) < requests[at].completions]
        if not going or (enough is not None and enough(complete)):
            return progress
        calls = [call for at in going for call in _calls(at, requests[at], progress[at])]
        enough_now = None if enough is None else _whatever(enough, complete)
        reached_now = advance([call for _, call in calls], _seeded(sampling, turn), enough_now)
        if not _heard(requests, calls, reached_now, progress, turns):
            return progress
        turn += 1


def _calls(at: int, request: GenerationRequest, reached: GenerationProgress) -> list[tuple[int, GenerationRequest]]:
    """Returns what a turn of one group asks for: begun conversations each alone, those not begun from one prompt."""
    fresh = request.completions - len(reached.sequences)

    def asked(completions: int, begun: GenerationProgress | None) -> tuple[int, GenerationRequest]:
        of_all = request.prompt_ids, completions, request.max_new_tokens, begun, request.conversation_tokens
        return at, GenerationRequest(*of_all)

    begun = [asked(1, GenerationProgress(partials=(partial,))) for partial in reached.partials]
    return [*begun, asked(fresh, None)] if fresh else begun


def _heard(
    requests: Sequence[GenerationRequest],
    calls: Sequence[tuple[int, GenerationRequest]],
    reached: Sequence[GenerationProgress],
    progress: list[GenerationProgress],
    turns: Turns,
) -> bool:
    """Puts into ``progress`` what a turn has sampled, with what follows each action. Returns whether no action was
    interrupted."""
    acted = [(at, sample) for (at, _), each in zip(calls, reached, strict=True) for sample in each.samples]
    for number, (at, sample) in enumerate(acted):
        turns.acted(number, at, sample)
    said: dict[int, Heard | None] = {}
    while len(said) < len(acted):
        said.update(turns.replies(wait=True))
    samples = {at: list(progress[at].samples) for at, _ in calls}
    partials: dict[int, list[Partial]] = {at: [] for at in samples}
    for (at, _), each in zip(calls, reached, strict=True):
        partials[at] += each.partials
    for number, (at, sample) in enumerate(acted):
        partial = continued(requests[at], requests[at].max_new_tokens, sample, said[number])
        if partial is None:
            samples[at].append(sample)
        else:
            partials[at].append(partial)
    for at, of_group in samples.items():
        progress[at] = GenerationProgress(tuple(of_group), tuple(partials[at]))
    return all(len(each.samples) == call.completions for (_, call), each in zip(calls, reached, strict=True))


def _at(places: Sequence[int], ended: Ended) -> Ended:
    return lambda index, reached: ended(places[index], reached)


def _whatever(enough: Enough, complete: int) -> Callable[[int], bool]:
    return lambda _: enough(complete)


def _seeded(sampling: Sampling, turn: int) -> Sampling:
    """Returns the sampling of a turn, the first of which is that of the whole."""
    if sampling.seed is None or turn == 0:
        return sampling
    return Sampling(sampling.temperature, random.Random(f"starling/turn/{sampling.seed}/{turn}").getrandbits(63))
