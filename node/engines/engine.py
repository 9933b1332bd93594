"""What a generation engine offers to the learner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.rollouts import FinishReason


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt and how many completions to sample of it."""

    prompt_ids: Sequence[int]  # at least one
    completions: int
    max_new_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One sampled completion in token space."""

    token_ids: NDArray[np.int64]  # (T,), end-of-sequence included when sampled
    logps: NDArray[np.float32]  # (T,) under the distribution that was sampled from, nats
    finish: FinishReason


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. ``temperature`` 0 means greedy, with log-probabilities of that at temperature 1.

    With a ``seed``, a call's samples depend on that, the weights and the requests alone, whatever was drawn before: a
    round that is repeated after a restart is the same round.
    """

    temperature: float = 1.0
    seed: int | None = None


class Engine(Protocol):
    @property
    def version(self) -> int:
        """The policy version whose weights the engine holds."""

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[list[Sample]]:
        """``completions`` samples of each request, in the order of the requests."""

    def load_weights(self, version: int, weights: Mapping[str, torch.Tensor]) -> None:
        """Takes over new weights; later samples are of this version."""
