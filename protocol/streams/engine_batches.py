"""What a generation samples, and its results, as values: the columns of ``Generate``, ``Observe``, ``EngineProgress``.

A *start* is a sequence of tokens that completions continue: a prompt, or a prompt with the tokens of a completion that
was begun earlier. Completions are numbered from 0 in the order of the starts. One that is a conversation has several
actions: each is handed over when it has ended, and the next one begins after what was observed. An engine sends only
tokens that it sampled itself; what was begun before stays with the client, so that no engine can change it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from protocol import limits
from protocol.errors import MalformedError, OversizedError
from protocol.streams.engine_messages import EngineProgress, Generate, Observe

Sampled = tuple[NDArray[np.int64], NDArray[np.float32]]  # tokens and log-probabilities of one completion, (T,) each
HandOver = Callable[[int, Sampled], None]  # takes a completion's number and what was sampled of it
LOGP_ROUNDING = 1e-3  # nats above 0 that rounding may give a certain token


@dataclass(frozen=True, slots=True)
class Start:
    group: int
    prefix_ids: tuple[int, ...]  # at least one
    completions: int  # at least one
    limit: int  # new tokens of each completion, at least one; of a conversation, of its first action
    converses: bool = False  # its completions are conversations


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """What one generation samples."""

    starts: tuple[Start, ...]
    groups: int  # a group without a start is complete from the beginning
    temperature: float
    seed: int
    rows: int
    enough: int | None  # complete groups that suffice

    @property
    def owners(self) -> list[Start]:
        """The start of each completion."""
        return [start for start in self.starts for _ in range(start.completions)]

    @property
    def converses(self) -> bool:
        """Whether any completion is a conversation."""
        return any(start.converses for start in self.starts)


@dataclass(frozen=True, slots=True)
class Observation:
    """What follows an action of conversation ``completion``."""

    completion: int
    token_ids: tuple[int, ...]
    limit: int  # tokens of its next action; 0: there is none, and it has ended


def generate_message(batch: SamplingBatch) -> Generate:
    """Raises ``ValueError`` for what every engine would refuse: that is our own bug."""
    starts = batch.starts
    message = Generate(
        temperature=batch.temperature,
        seed=batch.seed,
        rows=batch.rows,
        groups=batch.groups,
        enough=batch.enough,
        group_of=_column([start.group for start in starts]),
        completions=_column([start.completions for start in starts]),
        limits=_column([start.limit for start in starts]),
        prefix_lengths=_column([len(start.prefix_ids) for start in starts]),
        prefix_ids=_column([token for start in starts for token in start.prefix_ids]),
        converse=_column([start.converses for start in starts]) if batch.converses else b"",
    )
    try:
        opened_batch(message)
    except (MalformedError, OversizedError) as error:
        raise ValueError(f"this generation must not be asked for: {error}") from error
    return message


def opened_batch(message: Generate) -> SamplingBatch:
    """Raises ``MalformedError`` or ``OversizedError`` for columns that do not make a batch."""
    group_of, completions = _numbers(message.group_of, "groups"), _numbers(message.completions, "completions")
    most, lengths = _numbers(message.limits, "limits"), _numbers(message.prefix_lengths, "prefix lengths")
    prefix_ids = _numbers(message.prefix_ids, "prefix ids")
    converse = _numbers(message.converse, "conversations") if message.converse else np.zeros_like(group_of)
    counts = {len(column) for column in (group_of, completions, most, lengths, converse)}
    if len(counts) != 1 or not len(group_of):
        raise MalformedError(f"columns of {sorted(counts)} starts: each needs one number for each start, at least one")
    if completions.sum() > limits.ENGINE_COMPLETIONS or most.max() > limits.ENGINE_COMPLETION_TOKENS:
        raise OversizedError(
            f"{completions.sum()} completions of up to {most.max()} tokens; at most {limits.ENGINE_COMPLETIONS} of "
            f"{limits.ENGINE_COMPLETION_TOKENS} are allowed"
        )
    if min(completions.min(), most.min(), lengths.min()) < 1 or lengths.sum() != len(prefix_ids):
        raise MalformedError("a start without tokens, completions or room, or tokens that belong to no start")
    if group_of.max() >= message.groups or prefix_ids.max() > limits.TOKEN_ID:
        raise MalformedError("a group or a token beyond the highest that there can be")
    if message.converse and converse.max() != 1:
        raise MalformedError("a column of conversations that has other numbers than 0 and 1, or names none")
    ends = [0, *np.cumsum(lengths).tolist()]
    ids = prefix_ids.tolist()
    starts = tuple(
        Start(group, tuple(ids[begin:end]), count, limit, bool(converses))
        for (begin, end), group, count, limit, converses in zip(
            pairwise(ends), group_of.tolist(), completions.tolist(), most.tolist(), converse.tolist(), strict=True
        )
    )
    return SamplingBatch(starts, message.groups, message.temperature, message.seed, message.rows, message.enough)


def observe_message(observations: Sequence[Observation]) -> Observe:
    return Observe(
        which=_column([each.completion for each in observations]),
        lengths=_column([len(each.token_ids) for each in observations]),
        token_ids=_column([token for each in observations for token in each.token_ids]),
        limits=_column([each.limit for each in observations]),
    )


def opened_observations(message: Observe) -> list[Observation]:
    """Raises ``MalformedError`` or ``OversizedError`` for columns that disagree, or that no conversation can have."""
    which, lengths = _numbers(message.which, "conversations"), _numbers(message.lengths, "lengths")
    token_ids, most = _numbers(message.token_ids, "tokens"), _numbers(message.limits, "limits")
    if not len(which) == len(lengths) == len(most) or lengths.sum() != len(token_ids):
        raise MalformedError(
            f"{len(which)} conversations with {len(lengths)} lengths, {len(most)} limits, and {len(token_ids)} tokens "
            f"where the lengths make {lengths.sum()}"
        )
    if max(most, default=0) > limits.ENGINE_COMPLETION_TOKENS or max(token_ids, default=0) > limits.TOKEN_ID:
        raise OversizedError("an action, or the id of a token, beyond the highest that there can be")
    ends = [0, *np.cumsum(lengths).tolist()]
    ids = token_ids.tolist()
    return [
        Observation(completion, tuple(ids[begin:end]), limit)
        for (begin, end), completion, limit in zip(pairwise(ends), which.tolist(), most.tolist(), strict=True)
    ]


def progress_message(
    completions: Sequence[tuple[int, Sampled]],
    *,
    version: int,
    weights: bytes,
    running: bool,
    steps: int,
    complete: int,
    left: int,
) -> EngineProgress:
    """``completions``: the number of each one that is handed over, and what was sampled of it."""
    return EngineProgress(
        version=version,
        weights=weights,
        running=running,
        steps=steps,
        complete=complete,
        left=left,
        which=_column([number for number, _ in completions]),
        lengths=_column([len(token_ids) for _, (token_ids, _) in completions]),
        token_ids=b"".join(token_ids.astype("<u4").tobytes() for _, (token_ids, _) in completions),
        logps=b"".join(logps.astype("<f4").tobytes() for _, (_, logps) in completions),
    )


def opened_completions(message: EngineProgress) -> list[tuple[int, Sampled]]:
    """The completions that an answer hands over. Raises ``MalformedError`` where its columns disagree,
    ``OversizedError`` for more than a generation has."""
    which, lengths = _numbers(message.which, "completions"), _numbers(message.lengths, "lengths")
    if len(lengths) > limits.ENGINE_COMPLETIONS:
        raise OversizedError(f"{len(lengths)} completions; a generation has {limits.ENGINE_COMPLETIONS} at most")
    token_ids = _numbers(message.token_ids, "tokens")
    if len(message.logps) % 4:
        raise MalformedError(f"a column of {len(message.logps)} bytes for log-probabilities of 4 bytes")
    logps = np.frombuffer(message.logps, "<f4").astype(np.float32)
    if len(which) != len(lengths) or not lengths.sum() == len(token_ids) == len(logps):
        raise MalformedError(
            f"{len(which)} completions with {len(lengths)} lengths, {lengths.sum()} tokens by these, {len(token_ids)} "
            f"tokens and {len(logps)} log-probabilities"
        )
    ends = np.cumsum(lengths)[:-1]
    return list(
        zip(which.tolist(), zip(np.split(token_ids, ends), np.split(logps, ends), strict=True), strict=True)
        if len(which)
        else ()
    )


@dataclass(frozen=True, slots=True)
class Taken:
    """What is new with one answer."""

    groups: list[int]  # of single answers, that are complete now
    actions: list[tuple[int, Sampled]]  # that have ended, each with the number of its conversation


class Received:
    """The completions of one generation as they come from its engine, each checked before it counts.

    ``take`` says which actions of conversations have ended; ``observed`` must then be told what follows them.
    """

    def __init__(self, batch: SamplingBatch, *, vocabulary: int, end_ids: Collection[int]) -> None:
        self._batch, self._owners, self._vocabulary = batch, batch.owners, vocabulary
        self._end_ids = np.array(sorted(end_ids), np.int64)
        self._came: dict[int, Sampled] = {}
        self._missing = Counter(start.group for start in self._owners)  # completions that have not ended
        # of each completion that is sampled, the tokens that it may have; of a conversation, its action
        self._limits = {number: start.limit for number, start in enumerate(self._owners)}
        self._over: set[int] = set()

    def take(self, message: EngineProgress) -> Taken:
        """Raises ``MalformedError`` for completions that nobody asked for, or that cannot have been sampled."""
        taken = Taken([], [])
        came = opened_completions(message)
        if not came and message.left and not message.running:
            raise MalformedError(f"{message.left} completions are left, and none is handed over")
        for number, sampled in came:
            limit = self._limits.pop(number, None)
            if limit is None:
                raise MalformedError(f"completion {number} of {len(self._owners)}, or one handed over twice")
            self._check(number, limit, *sampled)
            if not self._has_ended(limit, sampled[0]):
                self._came[number] = sampled
            elif self._owners[number].converses:
                taken.actions.append((number, sampled))
            else:
                self._came[number] = sampled
                taken.groups.extend(self._ended(number))
        return taken

    def observed(self, observations: Sequence[Observation]) -> None:
        """Takes what follows actions."""
        for each in observations:
            if each.limit:
                self._limits[each.completion] = each.limit
            else:
                self._ended(each.completion)

    def group(self, group: int) -> list[Sampled]:
        """Tokens and log-probabilities of the completions of one group, which is complete."""
        return [self._came[number] for number, start in enumerate(self._owners) if start.group == group]

    def all(self, *, interrupted: bool) -> list[Sampled]:
        """Tokens and log-probabilities of every completion; those never begun have none. Of a conversation they are
        those of an action that was interrupted.

        Raises ``MalformedError`` where some have not ended, and the generation was neither interrupted nor had reached
        the number of groups that suffices.
        """
        nothing = np.empty(0, np.int64), np.empty(0, np.float32)
        open_groups = {group for group, missing in self._missing.items() if missing}
        enough = self._batch.enough
        suffices = enough is not None and self._batch.groups - len(open_groups) >= enough
        if open_groups and not interrupted and not suffices:
            missing = self._missing.total()
            raise MalformedError(f"{missing} completions have not ended, and nothing interrupted them")
        return [self._came.get(number, nothing) for number in range(len(self._owners))]

    def _ended(self, number: int) -> list[int]:
        """Counts a completion that has ended. Returns its group, if that is complete now."""
        group = self._owners[number].group
        self._missing[group] -= 1
        return [] if self._missing[group] else [group]

    def _check(self, number: int, limit: int, token_ids: NDArray[np.int64], logps: NDArray[np.float32]) -> None:
        if not 1 <= len(token_ids) <= limit:
            raise MalformedError(f"completion {number} has {len(token_ids)} tokens: 1 to {limit} were asked for")
        if token_ids.max() >= self._vocabulary:
            raise MalformedError(f"completion {number} has token {token_ids.max()}: there are {self._vocabulary}")
        if not (logps <= LOGP_ROUNDING).all() or not np.isfinite(logps).all():
            raise MalformedError(f"completion {number} has a log-probability that is none")
        if np.isin(token_ids[:-1], self._end_ids).any():
            raise MalformedError(f"completion {number} goes on after its end")

    def _has_ended(self, limit: int, token_ids: NDArray[np.int64]) -> bool:
        return len(token_ids) == limit or bool(len(token_ids) and token_ids[-1] in self._end_ids)


def _column(numbers: Sequence[int]) -> bytes:
    return np.array(numbers, dtype=np.int64).astype("<u4").tobytes()


def _numbers(column: bytes, what: str) -> NDArray[np.int64]:
    if len(column) % 4:
        raise MalformedError(f"a column of {len(column)} bytes for {what} of 4 bytes")
    return np.frombuffer(column, "<u4").astype(np.int64)
