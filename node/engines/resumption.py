"""Turns requests, some of them begun, into what the batch must sample, and its samples into each request's progress.

Completions of one request that have no token yet share one start, the prompt. Each begun completion has a start of its
own, prompt and tokens together, so that the batch treats resumed completions like new ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from node.engines.engine import GenerationProgress, GenerationRequest, Partial, Sample, Segment
from protocol.errors import ConfigurationError
from protocol.rollouts import FinishReason
from protocol.streams.engine_batches import Sampled

_NOTHING = GenerationProgress()


@dataclass(frozen=True, slots=True)
class SamplingStart:
    """Completions that continue from the same tokens."""

    request: int
    prefix_ids: Sequence[int]
    completions: int
    limit: int  # new tokens of each, at least 1
    begun: Partial | None
    conversation: int | None = None  # as of the request


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
    return request.max_new_tokens if context is None else min(request.max_new_tokens, context - length)


def starts_of(requests: Sequence[GenerationRequest], limits: Sequence[int]) -> list[SamplingStart]:
    """Returns what remains to be sampled, a request's begun completions before its new ones.

    ``limits``: the number of tokens that a completion of each request may have. A begun one at its limit is left out.
    """
    starts: list[SamplingStart] = []
    for index, (request, limit) in enumerate(zip(requests, limits, strict=True)):
        begun = request.begun or _NOTHING
        for partial in begun.partials:
            if (room := limit - len(partial.token_ids)) > 0:
                starts.append(
                    SamplingStart(index, [*request.prompt_ids, *partial.token_ids.tolist()], 1, room, partial)
                )
        fresh = request.completions - len(begun.samples) - len(begun.partials)
        if fresh < 0:
            raise ValueError(f"a request of {request.completions} completions has begun {request.completions - fresh}")
        if fresh > 0:
            starts.append(SamplingStart(index, request.prompt_ids, fresh, limit, None, request.conversation))
    return starts


def progress_of(
    requests: Sequence[GenerationRequest],
    starts: Sequence[SamplingStart],
    sequences: Sequence[Sampled],
    limits: Sequence[int],
    version: int,
    eos_ids: Sequence[int],
) -> list[GenerationProgress]:
    """Returns each request's progress after ``version`` sampled ``sequences``, one a completion of ``starts``."""
    samples: list[list[Sample]] = [list((request.begun or _NOTHING).samples) for request in requests]
    partials: list[list[Partial]] = [[] for _ in requests]
    for index, request in enumerate(requests):
        for partial in (request.begun or _NOTHING).partials:
            if len(partial.token_ids) >= limits[index]:
                samples[index].append(Sample(partial.token_ids, partial.logps, FinishReason.LENGTH, partial.segments))
    for start, (token_ids, logps) in _by_completion(starts, sequences):
        whole = _joined(start.begun, token_ids, logps, version)
        if len(token_ids) == 0:
            if start.begun is not None:
                partials[start.request].append(start.begun)
        elif token_ids[-1] in eos_ids:
            samples[start.request].append(Sample(whole.token_ids, whole.logps, FinishReason.STOP, whole.segments))
        elif len(token_ids) == start.limit:
            samples[start.request].append(Sample(whole.token_ids, whole.logps, FinishReason.LENGTH, whole.segments))
        else:
            partials[start.request].append(whole)
    return [GenerationProgress(tuple(ended), tuple(begun)) for ended, begun in zip(samples, partials, strict=True)]


def _by_completion(
    starts: Sequence[SamplingStart], sequences: Sequence[Sampled]
) -> Iterator[tuple[SamplingStart, Sampled]]:
    each_start = (start for start in starts for _ in range(start.completions))
    return zip(each_start, sequences, strict=True)


def _joined(begun: Partial | None, token_ids: NDArray[np.int64], logps: NDArray[np.float32], version: int) -> Partial:
    """Returns one completion with the new tokens appended; consecutive segments of one version become one."""
    if begun is None:
        return Partial(token_ids, logps, (Segment(version, len(token_ids)),))
    *before, last = begun.segments
    if last.version == version:
        segments = (*before, Segment(version, last.tokens + len(token_ids)))
    else:
        segments = (*begun.segments, Segment(version, len(token_ids)))
    return Partial(np.concatenate([begun.token_ids, token_ids]), np.concatenate([begun.logps, logps]), segments)
