"""Turns requests, some of them begun, into what the batch must sample, and its samples into each request's progress.

Completions of one request that have no token yet share one start, the prompt. Each begun completion has a start of its
own, prompt and tokens together, so that the batch treats resumed completions like new ones. Of a conversation that
start has what was observed, too, each time in its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from node.engines.engine import GenerationProgress, GenerationRequest, Partial, Sample, Segment
from protocol.errors import ConfigurationError
from protocol.rollouts import FinishReason
from protocol.streams.engine_batches import Sampled

_NOTHING = GenerationProgress()
Reached = Mapping[int, Sample | Partial]  # of conversations, by completion


@dataclass(frozen=True, slots=True)
class SamplingStart:
    """Completions that continue from the same tokens."""

    request: int
    prefix_ids: Sequence[int]
    completions: int
    limit: int  # new tokens of each, at least 1
    begun: Partial | None


def token_limit(request: GenerationRequest, *, vocabulary: int, context: int | None) -> int:
    """Returns the number of new tokens that a completion may have, within the model's ``context``.

    Raises ``ValueError`` for a request that no engine can serve, ``ConfigurationError`` for a prompt that fills the
    context.
    """
    length = len(request.prompt_ids)
    if length < 1 or request.max_new_tokens < 1 or request.completions < 0:
        raise ValueError(
            f"a request of {request.completions} completions of up to {request.max_new_tokens} tokens after a "
            f"prompt of {length} tokens: at least 0, 1 and 1"
        )
    if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < vocabulary:
        raise ValueError(f"a prompt has token ids outside the model's {vocabulary}")
    if context is not None and length >= context:
        raise ConfigurationError(
            f"a prompt of {length} tokens leaves no room in the model's context of {context}: use shorter prompts, "
            "or a model with a longer context"
        )
    if context is not None and (request.conversation_tokens or 0) > context:
        raise ValueError(f"a conversation of {request.conversation_tokens} tokens in a model's context of {context}")
    return request.max_new_tokens if context is None else min(request.max_new_tokens, context - length)


def row_of(prompt_ids: Sequence[int], so_far: Sample | Partial) -> list[int]:
    """Returns all that the model has read and sampled, in order, since it last read a conversation anew."""
    *_, (row, begin, end) = _actions(prompt_ids, so_far)
    ids: list[int] = so_far.token_ids[begin:end].tolist()
    return row + ids


def sampled_since(prompt_ids: Sequence[int], so_far: Sample | Partial, tokens: int) -> list[tuple[list[int], Sampled]]:
    """Returns what was sampled after the first ``tokens``: of a conversation each action, and the rest of one that was
    begun; each with all that the model had read and sampled before it."""
    found: list[tuple[list[int], Sampled]] = []
    for row, begin, end in _actions(prompt_ids, so_far):
        since = max(begin, min(tokens, end))
        if since < end:
            before = row + so_far.token_ids[begin:since].tolist()
            found.append((before, (so_far.token_ids[since:end], so_far.logps[since:end])))
    return found


def _actions(prompt_ids: Sequence[int], so_far: Sample | Partial) -> Iterator[tuple[list[int], int, int]]:
    """Yields what was read before each action, in one list that grows, and where the action begins and ends; the last
    one may have no token yet."""
    row, begin = list(prompt_ids), 0
    for place, observed in so_far.observed:
        yield row, begin, place
        if place in so_far.anew:
            row.clear()
        else:
            row += so_far.token_ids[begin:place].tolist()
        row += observed
        begin = place
    yield row, begin, len(so_far.token_ids)


def room_of(request: GenerationRequest, limit: int, begun: Partial) -> int:
    """Returns how many tokens a begun completion may still have, of a conversation its action; 0 or less for none.
    ``limit`` as of ``starts_of``."""
    said = len(begun.token_ids) - (begun.observed[-1][0] if begun.observed else 0)
    if request.conversation_tokens is not None:
        before = len(row_of(request.prompt_ids, begun)) - said
        limit = min(limit, request.conversation_tokens - before)
    return limit - said


def starts_of(requests: Sequence[GenerationRequest], limits: Sequence[int]) -> list[SamplingStart]:
    """Returns what remains to be sampled, a request's begun completions before its new ones.

    ``limits``: the number of tokens that a completion of each request may have, of a conversation an action. A begun
    one at its limit is left out.
    """
    starts: list[SamplingStart] = []
    for index, (request, limit) in enumerate(zip(requests, limits, strict=True)):
        begun = request.begun or _NOTHING
        for partial in begun.partials:
            if (room := room_of(request, limit, partial)) > 0:
                starts.append(SamplingStart(index, row_of(request.prompt_ids, partial), 1, room, partial))
        fresh = request.completions - len(begun.samples) - len(begun.partials)
        if fresh < 0:
            raise ValueError(f"a request of {request.completions} completions has begun {request.completions - fresh}")
        if fresh > 0:
            starts.append(SamplingStart(index, request.prompt_ids, fresh, limit, None))
    return starts


def progress_of(
    requests: Sequence[GenerationRequest],
    starts: Sequence[SamplingStart],
    sequences: Sequence[Sampled],
    limits: Sequence[int],
    version: int,
    eos_ids: Sequence[int],
    conversed: Reached | None = None,
) -> list[GenerationProgress]:
    """Returns each request's progress after ``version`` sampled ``sequences``, one a completion of ``starts``.
    ``conversed``: of conversations, by completion, what they had reached when ``sequences`` began."""
    samples: list[list[Sample]] = [list((request.begun or _NOTHING).samples) for request in requests]
    partials: list[list[Partial]] = [[] for _ in requests]
    for index, request in enumerate(requests):
        for partial in (request.begun or _NOTHING).partials:
            if room_of(request, limits[index], partial) <= 0:
                samples[index].append(sample_of(partial, ()))
    for completion, (start, (token_ids, logps)) in enumerate(by_completion(starts, sequences)):
        reached = (conversed or {}).get(completion, start.begun)
        if isinstance(reached, Sample):
            samples[start.request].append(reached)
        elif len(token_ids) == 0:
            if reached is not None:
                partials[start.request].append(reached)
        else:
            whole = joined(reached, token_ids, logps, version)
            ends = token_ids[-1] in eos_ids or len(token_ids) == start.limit
            if ends and (reached is None or reached is start.begun):  # later actions have ended in ``conversed``
                samples[start.request].append(sample_of(whole, eos_ids))
            else:
                partials[start.request].append(whole)
    return [GenerationProgress(tuple(ended), tuple(begun)) for ended, begun in zip(samples, partials, strict=True)]


def by_completion(
    starts: Sequence[SamplingStart], sequences: Sequence[Sampled]
) -> Iterator[tuple[SamplingStart, Sampled]]:
    """Yields what was sampled of each completion, with its start."""
    each_start = (start for start in starts for _ in range(start.completions))
    return zip(each_start, sequences, strict=True)


def sample_of(whole: Partial, eos_ids: Sequence[int]) -> Sample:
    """Returns a completion that has ended: with one of ``eos_ids``, or at its limit."""
    finish = FinishReason.STOP if whole.token_ids[-1] in eos_ids else FinishReason.LENGTH
    return Sample(whole.token_ids, whole.logps, finish, whole.segments, whole.observed, whole.anew)


def joined(begun: Partial | None, token_ids: NDArray[np.int64], logps: NDArray[np.float32], version: int) -> Partial:
    """Returns one completion with the new tokens appended; consecutive segments of one version become one."""
    if begun is None:
        return Partial(token_ids, logps, (Segment(version, len(token_ids)),))
    *before, last = begun.segments
    if last.version == version:
        segments = (*before, Segment(version, last.tokens + len(token_ids)))
    else:
        segments = (*begun.segments, Segment(version, len(token_ids)))
    tokens = np.concatenate([begun.token_ids, token_ids]), np.concatenate([begun.logps, logps])
    return Partial(*tokens, segments, begun.observed, begun.anew)
