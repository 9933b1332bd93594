"""What the gradient of a block of logits is made of (``bf16_logps`` has the formula)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Slopes:
    """Of each of n tokens, (n,), what ∂/∂z of its logits is made of; None where no gradient reaches an output."""

    lse: Tensor
    entropies: Tensor
    targets: Tensor  # int64
    logp_grad: Tensor | None
    entropy_grad: Tensor | None

    def rows(self, tokens: slice) -> Slopes:
        g, e = self.logp_grad, self.entropy_grad
        return Slopes(
            self.lse[tokens],
            self.entropies[tokens],
            self.targets[tokens],
            None if g is None else g[tokens],
            None if e is None else e[tokens],
        )
