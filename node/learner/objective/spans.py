"""The spans of B completions, one after the other without padding: N tokens in S spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from node.learner.objective.alignment import span_sums
from node.learner.objective.batch import TrainingCompletion


@dataclass(frozen=True, slots=True, eq=False)
class RaggedSpans:
    """What the objective needs of the completions of one micro-batch; the N tokens lie in the completions' order."""

    span_of_token: Tensor  # (N,) int64
    sequence_of_span: Tensor  # (S,) int64
    behaviour_logps: Tensor  # (S,)
    advantages: Tensor  # (B,)
    foreign: Tensor  # (B,) bool
    as_text: Tensor  # (B,) bool
    counts: Tensor  # (B,) how often each completion counts
    lengths: Tensor  # (B,) own tokens
    peers: tuple[str, ...]  # (B,)

    @classmethod
    def of(
        cls,
        completions: Sequence[TrainingCompletion],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> RaggedSpans:
        """Lays the completions out in the order given, in which the N tokens must lie too."""
        counts = [c.alignment.spans for c in completions]
        starts = np.cumsum([0, *counts[:-1]])
        span_of_token = np.concatenate(
            [c.alignment.span_of_token + s for c, s in zip(completions, starts, strict=True)]
        )

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        def flags(values: list[bool]) -> Tensor:
            return torch.tensor(values, dtype=torch.bool, device=device)

        behaviour = torch.from_numpy(np.concatenate([c.alignment.behaviour_logps for c in completions]))
        return cls(
            torch.from_numpy(span_of_token).to(device),
            torch.from_numpy(np.repeat(np.arange(len(completions)), counts)).to(device),
            behaviour.to(device, dtype),
            column([c.advantage for c in completions]),
            flags([c.foreign for c in completions]),
            flags([c.as_text for c in completions]),
            column([c.count for c in completions]),
            column([len(c.token_ids) for c in completions]),
            tuple(c.peer for c in completions),
        )

    @property
    def sequence_of_token(self) -> Tensor:
        return self.sequence_of_span[self.span_of_token]  # (N,)

    def log_ratios(self, logps: Tensor) -> Tensor:
        """Returns log π − log μ of each span (S,) from the log-probabilities (N,) of policy π; 0 for text."""
        ratios = span_sums(logps, self.span_of_token, len(self.behaviour_logps)) - self.behaviour_logps
        return torch.where(self.as_text[self.sequence_of_span], 0.0, ratios)
