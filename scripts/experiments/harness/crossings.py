"""What hidden states and their gradients lose where they cross from one stage of a model to the next.

A ``Crossing`` stands at one cut. The forward pass gives the later stage what arrives of the earlier one's hidden states
x (N, D), the backward pass gives the earlier one what arrives of the later one's gradients g (N, D):

    all          b bits a number, and a scale for a whole token or for each block of it, so that the largest magnitude
                 is the last of the levels: x̂ = scale · round(x / scale)
    subspace     x̂ = m + (x - m) U Uᵀ and ĝ = g U Uᵀ, U (D, k) orthonormal, k numbers a token each way
    top-k        the k largest magnitudes of a token with their places; with error feedback what was left out is added
                 to the next pass's of equal shape, place by place

ĝ of the subspace is the exact gradient of the model that has the projection in it, so one U serves both directions.
U and m are the principal directions and the mean of the hidden states that crossed so far, found by the earlier stage
and sent to the later one in ``REFRESHED`` passes and then in every ``REFRESH_EVERY``th. "Protocol Models: Scaling
Decentralized Training with Communication-Efficient Model Parallelism" (arXiv 2506.01260) and "Heterogeneous
Low-Bandwidth Pre-Training of LLMs" (arXiv 2601.02360) instead train a model from its first step so that its hidden
states lie in a fixed U beside what each stage knows of the token: ``language_model/subspace_weights.py``. A model that
was trained elsewhere does not lie in any.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor

Kind = Literal["exact", "all", "subspace", "top-k"]

REFRESHED: Final = 8
REFRESH_EVERY: Final = 32
KEPT_MOMENTS: Final = 0.95  # of the moments of earlier passes, at each pass
SENT_BYTES: Final = 2  # of a number that is sent as it is: bfloat16
SCALE_BYTES: Final = 2
TINY: Final = 1e-30


@dataclass(frozen=True, slots=True)
class Crosses:
    """How hidden states cross. ``share``: of D, kept by the subspace or as the largest; ``bits``: of a number that is
    sent, where that is not bfloat16; ``block``: how many numbers share a scale, by default all of a token."""

    kind: Kind
    share: float = 1.0
    bits: int | None = None
    block: int | None = None
    feedback: bool = False

    def token_bytes(self, width: int) -> float:
        """Returns the bytes of one token in one direction."""
        numbers = max(1, round(width * self.share))
        each = SENT_BYTES if self.bits is None else self.bits / 8
        scales = 0 if self.bits is None else 1 if self.block is None else math.ceil(numbers / self.block)
        place = math.ceil(math.log2(width)) / 8 if self.kind == "top-k" else 0
        return numbers * (each + place) + scales * SCALE_BYTES


class Crossing:
    """One cut; call it with the hidden states (…, D) of every pass. Counts tokens and bytes of both directions.

    A pass without gradients is not counted, and nothing is learnt from it.
    """

    def __init__(self, crosses: Crosses) -> None:
        self._crosses = crosses
        self._basis: Tensor | None = None  # U (D, k)
        self._mean: Tensor | None = None  # m (D)
        self._moments: tuple[Tensor, Tensor] | None = None  # means of x (D) and of x xᵀ (D, D) over earlier passes
        self._left_out: dict[str, Tensor] = {}  # by direction
        self._passes = 0
        self.tokens = 0
        self.bytes = 0.0

    @property
    def bytes_of_a_token(self) -> float:
        """In both directions together."""
        return self.bytes / self.tokens

    def __call__(self, hidden: Tensor) -> Tensor:
        if not hidden.requires_grad:
            return self._arrived(hidden.flatten(0, -2), None).view_as(hidden)
        crossed: Tensor = _Crossed.apply(hidden, self)  # type: ignore[no-untyped-call]  # torch
        return crossed

    def forward(self, hidden: Tensor) -> Tensor:
        """Returns what arrives of hidden states (N, D)."""
        width = hidden.shape[1]
        self.tokens += len(hidden)
        self.bytes += len(hidden) * self._crosses.token_bytes(width)
        if self._crosses.kind == "subspace":
            self._learn_basis(hidden)
        return self._arrived(hidden, "forward")

    def backward(self, gradient: Tensor) -> Tensor:
        """Returns what arrives of their gradients (N, D)."""
        self.bytes += len(gradient) * self._crosses.token_bytes(gradient.shape[1])
        return self._arrived(gradient, "backward")

    def _arrived(self, sent: Tensor, direction: str | None) -> Tensor:
        """``direction``: whose left-out numbers are added, and kept anew; None: of neither."""
        match self._crosses.kind:
            case "exact":
                return sent
            case "all":
                return quantised(sent, self._crosses.bits, self._crosses.block)
            case "subspace":
                assert self._basis is not None and self._mean is not None
                mean = torch.zeros_like(self._mean) if direction == "backward" else self._mean
                said = quantised((sent - mean) @ self._basis, self._crosses.bits, self._crosses.block)
                return mean + said @ self._basis.T
            case "top-k":
                left = self._left_out.get(direction) if direction is not None else None
                wanted = sent if left is None else sent + left
                arrived = quantised(largest(wanted, self._crosses.share), self._crosses.bits)
                if self._crosses.feedback and direction is not None:
                    self._left_out[direction] = wanted - arrived
                return arrived

    def _learn_basis(self, hidden: Tensor) -> None:
        mean, second = hidden.mean(dim=0), hidden.T @ hidden / len(hidden)
        if self._moments is not None:
            earlier, (earlier_mean, earlier_second) = KEPT_MOMENTS, self._moments
            mean = earlier * earlier_mean + (1 - earlier) * mean
            second = earlier * earlier_second + (1 - earlier) * second
        self._moments = (mean, second)
        if self._passes < REFRESHED or self._passes % REFRESH_EVERY == 0:
            width = len(mean)
            kept = max(1, round(width * self._crosses.share))
            values = torch.linalg.eigh((second - torch.outer(mean, mean)).double())
            self._basis, self._mean = values.eigenvectors[:, -kept:].to(hidden.dtype), mean
            self.bytes += SENT_BYTES * width * (kept + 1)
        self._passes += 1


class _Crossed(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, hidden: Tensor, crossing: Crossing) -> Tensor:
        context.crossing = crossing
        return crossing.forward(hidden.flatten(0, -2)).view_as(hidden)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return context.crossing.backward(gradient.flatten(0, -2)).view_as(gradient), None


def quantised(numbers: Tensor, bits: int | None, block: int | None = None) -> Tensor:
    """Returns what arrives of (N, D) in ``bits`` a number, with a scale for every ``block`` of D, which it divides;
    None: in bfloat16, and one scale for all of D."""
    if bits is None:
        return numbers.to(torch.bfloat16).to(numbers.dtype)
    if block is not None:
        return quantised(numbers.reshape(-1, block), bits).view_as(numbers)
    levels = 2 ** (bits - 1) - 1
    scale = quantised(numbers.abs().amax(dim=1, keepdim=True).clamp_min(TINY) / levels, None)
    return scale * (numbers / scale).round().clamp(-levels, levels)


def largest(numbers: Tensor, share: float) -> Tensor:
    """Returns (N, D) with the largest magnitudes of each token, a ``share`` of them, and zeros."""
    kept = max(1, round(numbers.shape[1] * share))
    places = numbers.abs().topk(kept, dim=1).indices
    return torch.zeros_like(numbers).scatter(1, places, numbers.gather(1, places))
