"""What a generation engine offers to the learner.

Generation can be interrupted and gone on with (APRIL, arXiv 2509.18521). What has been sampled of a group when
``advance`` stops is its ``GenerationProgress``; given back as ``GenerationRequest.begun``, its ended completions are
kept as they are, and its begun ones continue: prompt and tokens are computed anew under the weights of that call, and
only tokens after them are sampled. The log-probabilities of a completion are those under which each of its tokens was
sampled,

    μ(y_t | y_<t) = π_v(t)(y_t | y_<t),   v(t) the version of the segment that t lies in,

so that the behaviour policy of a completion resumed under newer weights is known exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from node.engines.encoded_weights import EncodedWeights
from protocol.rollouts import FinishReason


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring tokens of one completion that were sampled from one version of the policy."""

    version: int
    tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One sampled completion in token space."""

    token_ids: NDArray[np.int64]  # (T,), end-of-sequence included when sampled
    logps: NDArray[np.float32]  # (T,) under the distribution that was sampled from, nats
    finish: FinishReason
    segments: tuple[Segment, ...]  # in order, at least one; T tokens together

    @property
    def oldest_version(self) -> int:
        """The version that sampled the first of its tokens."""
        return self.segments[0].version


@dataclass(frozen=True, slots=True, eq=False)
class Partial:
    """A completion that was begun and has not ended."""

    token_ids: NDArray[np.int64]  # (T,), T >= 1, no end-of-sequence among them
    logps: NDArray[np.float32]  # (T,)
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True, eq=False)
class GenerationProgress:
    """How far the completions of one prompt have come. Those in neither list have not been begun."""

    samples: tuple[Sample, ...] = ()
    partials: tuple[Partial, ...] = ()

    @property
    def sequences(self) -> tuple[Sample | Partial, ...]:
        return (*self.samples, *self.partials)

    @property
    def tokens(self) -> int:
        return sum(len(each.token_ids) for each in self.sequences)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt and how many completions to sample of it."""

    prompt_ids: Sequence[int]  # at least one
    completions: int  # those in ``begun`` included
    max_new_tokens: int  # of each completion, those it has already included
    begun: GenerationProgress | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. ``temperature`` 0 means greedy, with log-probabilities of that at temperature 1.

    With a ``seed``, a call's samples depend on that, the weights and the requests alone, whatever was drawn before: a
    round that is repeated after a restart is the same round.
    """

    temperature: float = 1.0
    seed: int | None = None


Weights = Mapping[str, torch.Tensor] | EncodedWeights  # those that are trained, by name, or as bytes
Enough = Callable[[int], bool]  # of the number of groups that are complete, asked before the first and after each token


class Engine(Protocol):
    @property
    def version(self) -> int:
        """The policy version whose weights the engine holds."""

    @property
    def owns_weights(self) -> bool:
        """Whether weights can be loaded that are not the learner's present ones, and while the learner changes them."""

    @property
    def in_process(self) -> bool:
        """Whether it can be handed tensors; an engine elsewhere takes ``EncodedWeights``."""

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[list[Sample]]:
        """``completions`` samples of each request, in the order of the requests."""

    def advance(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, enough: Enough | None = None
    ) -> list[GenerationProgress]:
        """Samples until every completion has ended or ``enough`` says so; how far each request has come.

        Requests that stand first are served first. What was begun is in the progress too.
        """

    def load_weights(self, version: int, weights: Weights) -> None:
        """Takes over new weights; later samples are of this version, the learner's step that they were published at.

        All of them or, where it raises, none: then weights and version are those before. Encoded ones are verified
        against their hash, and a diff against the weights that are here (``ProtocolError``). ``weights`` may be changed
        as soon as it returns.
        """
