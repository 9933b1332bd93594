"""Replicas of one small language model that learn side by side, each from its own documents.

A transformer (pre-norm, RMS norms, learned positions, untied head) for all replicas at once: every weight is a tensor
(R, …), row r of which belongs to replica r alone. AdamW works element by element and gradients are clipped per replica,
so R replicas here compute what R processes would, in a fraction of the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from scripts.experiments.language_model.language import TOKENS, VOCABULARY

WIDTH: Final = 64
HEADS: Final = 4
INNER: Final = 2  # × the width
LAYERS: Final = 2
WARM_UP_STEPS: Final = 50
LAST_RATE: Final = 0.1  # share of the highest learning rate at the end of a decay
CLIP: Final = 1.0

Stacked = Mapping[str, Tensor]  # each (R, *shape)
Cut = Callable[[int, Tensor], Tensor]  # number of a layer, what leaves it (R, B T, W) → what the next one is given


def shapes(width: int = WIDTH) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of one replica's weights, by name."""
    inner = INNER * width
    found: dict[str, tuple[int, ...]] = {"embedding": (VOCABULARY, width), "position": (TOKENS, width)}
    for layer in range(LAYERS):
        found |= {f"{layer}.{name}": (width,) for name in ("norm_attention", "norm_inner")}
        found |= {f"{layer}.{name}": (width, width) for name in ("query", "key", "value", "out")}
        found |= {f"{layer}.up": (width, inner), f"{layer}.down": (inner, width)}
    return found | {"norm": (width,), "head": (width, VOCABULARY)}


def initial(seed: int, width: int = WIDTH) -> dict[str, Tensor]:
    """Returns one replica's weights before training."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in shapes(width).items():
        if len(shape) == 1:
            weights[name] = torch.ones(shape)
        else:
            scale = 0.02 if name in ("embedding", "position") else shape[0] ** -0.5
            weights[name] = scale * torch.randn(shape, generator=generator)
    return weights


def uncut(layer: int, x: Tensor) -> Tensor:
    return x


def losses(weights: Stacked, tokens: Tensor, cut: Cut = uncut) -> Tensor:
    """Returns (R,) mean cross-entropy of the next token, in nats; ``tokens`` (R, B, TOKENS)."""
    replicas, batch, length = tokens.shape
    given, wanted = tokens[..., :-1], tokens[..., 1:]
    length -= 1
    one_hot = functional.one_hot(given.reshape(replicas, -1), VOCABULARY).float()  # (R, B T, V)
    x = torch.bmm(one_hot, weights["embedding"])
    x = x + weights["position"][:, None, :length].expand(-1, batch, -1, -1).reshape(x.shape)  # (R, B T, W)
    for layer in range(LAYERS):
        x = x + _attention(weights, layer, x, batch)
        inner = functional.gelu(torch.bmm(_norm(x, weights[f"{layer}.norm_inner"]), weights[f"{layer}.up"]))
        x = cut(layer, x + torch.bmm(inner, weights[f"{layer}.down"]))
    logits = torch.bmm(_norm(x, weights["norm"]), weights["head"])  # (R, B T, V)
    each = functional.cross_entropy(logits.flatten(0, 1), wanted.reshape(-1), reduction="none")
    return each.view(replicas, -1).mean(dim=1)


def _attention(weights: Stacked, layer: int, x: Tensor, batch: int) -> Tensor:
    replicas, rows, width = x.shape
    normed = _norm(x, weights[f"{layer}.norm_attention"])
    query, key, value = (
        torch.bmm(normed, weights[f"{layer}.{name}"])
        .view(replicas * batch, rows // batch, HEADS, width // HEADS)
        .transpose(1, 2)
        for name in ("query", "key", "value")
    )
    mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return torch.bmm(mixed.transpose(1, 2).reshape(replicas, rows, width), weights[f"{layer}.out"])


def _norm(x: Tensor, scale: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-6) * scale[:, None]


def rate_share(step: int, steps: int | None) -> float:
    """Returns the share of the highest learning rate at ``step``, counted from 1: a warm-up, then half a cosine down to
    ``LAST_RATE`` at ``steps``, or no decay for None."""
    warm = min(1.0, step / WARM_UP_STEPS)
    if steps is None or step <= WARM_UP_STEPS:
        return warm
    done = min(1.0, (step - WARM_UP_STEPS) / max(1, steps - WARM_UP_STEPS))
    return LAST_RATE + (1.0 - LAST_RATE) * 0.5 * (1.0 + math.cos(math.pi * done))


class Replicas:
    """``count`` replicas of ``weights``, each with its AdamW. ``replica(r)`` returns views of the weights."""

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        count: int,
        *,
        learning_rate: float,
        steps: int | None = None,
        cut: Cut = uncut,
    ) -> None:
        """The learning rate decays over ``steps``, or never."""
        self.count = count
        self._rate, self._decay_steps, self._cut = learning_rate, steps, cut
        self._weights = {
            name: tensor.expand(count, *tensor.shape).clone().requires_grad_() for name, tensor in weights.items()
        }
        self._adamw = torch.optim.AdamW(self._weights.values(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.0)
        self._steps = 0

    def replica(self, number: int) -> dict[str, Tensor]:
        return {name: tensor.detach()[number] for name, tensor in self._weights.items()}

    def step(self, tokens: Tensor, away: Sequence[int] = ()) -> None:
        """Takes one optimizer step of every replica on its own documents, (R, B, TOKENS).

        Nothing of those ``away`` changes, their moments included.
        """
        self._steps += 1
        kept = [(tensor, tensor[list(away)].clone()) for tensor in self._rows()] if away else []
        for group in self._adamw.param_groups:
            group["lr"] = self._rate * rate_share(self._steps, self._decay_steps)
        losses(self._weights, tokens, self._cut).sum().backward()  # type: ignore[no-untyped-call]  # torch
        gradients = [tensor.grad for tensor in self._weights.values() if tensor.grad is not None]
        squares = sum(gradient.flatten(1).square().sum(dim=1) for gradient in gradients)
        scale = (CLIP / torch.as_tensor(squares).sqrt().clamp_min(1e-12)).clamp_max(1.0)  # (R,)
        for gradient in gradients:
            gradient.mul_(scale.view(-1, *[1] * (gradient.dim() - 1)))
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)
        for tensor, rows in kept:
            tensor[list(away)] = rows

    def _rows(self) -> list[Tensor]:
        """Returns every tensor that a step changes and that has a row for each replica."""
        weights = [tensor.detach() for tensor in self._weights.values()]
        states = self._adamw.state.values()
        return weights + [state[name] for state in states for name in ("exp_avg", "exp_avg_sq")]


@torch.no_grad()
def held_out_loss(weights: Mapping[str, Tensor], documents: Tensor, cut: Cut = uncut) -> float:
    """Returns the loss of one replica's weights on ``documents`` (N, TOKENS)."""
    return float(losses({name: tensor[None] for name, tensor in weights.items()}, documents[None], cut))
