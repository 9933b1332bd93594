"""A model whose hidden states lie in a known subspace from its first step, so that k numbers a token say all of them.

    x_l = F[token] + P[place] + s_l,   s_l in S = span(U), U (W, k) orthonormal, F, P and U fixed and drawn from a seed

After every optimizer step the weights that write to the residual stream are projected: W ← W U Uᵀ for what leaves
attention and MLP, and the learnt part of embedding and positions likewise ("Protocol Models: Scaling Decentralized
Training with Communication-Efficient Model Parallelism", arXiv 2506.01260). Every stage can draw F and P from the seed
and is told the tokens, so s_l Uᵀ is all that crosses, and nothing of x_l is lost. Departures: U is not moved while
training, and the optimizer is plain AdamW.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from scripts.experiments.language_model.replicas import Replicas, initial, uncut

FIXED_SCALE: Final = 1.0  # of F, as in the authors' code
WRITING: Final = ("out", "down")  # matrices whose products are added to the residual stream


class SubspaceReplica(Replicas):
    """One replica from its first step on, in a subspace of a ``share`` of ``width``."""

    def __init__(self, seed: int, width: int, share: float, *, learning_rate: float) -> None:
        weights = initial(seed, width)
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(width, max(1, round(width * share)), generator=generator)
        self.basis = torch.linalg.qr(drawn).Q  # U (W, k)
        fixed = FIXED_SCALE * torch.randn(weights["embedding"].shape, generator=generator)
        self.fixed = {"embedding": fixed, "position": weights["position"]}
        super().__init__({**weights, **self.fixed}, 1, learning_rate=learning_rate, cut=uncut)
        self._project()

    def step(self, tokens: Tensor) -> None:  # type: ignore[override]  # one replica is never away
        super().step(tokens)
        self._project()

    def _project(self) -> None:
        for name, tensor in self.replica(0).items():
            if name in self.fixed or name.split(".")[-1] in WRITING:
                apart = self.fixed.get(name, torch.zeros_like(tensor))
                tensor.copy_(apart + (tensor - apart) @ self.basis @ self.basis.T)
