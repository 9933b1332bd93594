"""NoLoCo's outer step (arXiv 2506.10911), for replica i in a group of n (here a pair, itself included):

    m ← μ m + η · mean_j(θ_j − φ_j) + γ · (mean_j φ_j − φ_i)
    φ ← φ + m
    θ ← φ

φ outer weights, θ weights after the inner steps, m outer momentum. If η = γ, as in the released constants
(η = γ = 0.7, μ = 0.5), every φ_j cancels except our own,

    m ← μ m + η · (mean_j θ_j − φ_i),

so that a node sends one vector, θ_j, and not two: ``outer_step``. ``overlapped`` applies a step to weights that kept
learning while it was under way:

    θ ← φ + (θ − θ_offered)

This is exactly θ ← φ if there was no inner step in between; otherwise it keeps what was learnt since.

Guarantees: nothing passed in is written to, so a step that is not taken leaves no trace; a step uses only weights that
``unfit_weights`` accepted; everything is float32, and replicas that hold bit-equal φ, m and the same two θ make
bit-equal steps, whichever of them is "own". Moments of the inner optimizer are not averaged.

Departures: a partner's θ may arrive rounded (bf16), ours enters unrounded; the two means then differ by half the
rounding error of either, which later steps average like any other difference between replicas. A member may count less
than we do, by its share w ≤ 1: the mean is then Σ w_j θ_j / Σ w_j, of a pair (θ_i + w θ_j) / (1 + w).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from protocol.errors import StorageError

Weights = Mapping[str, Tensor]  # by parameter name; each of the parameter's shape

MAX_MAGNITUDE: Final = 65_536.0  # no weight of a working model is larger
AT_ONCE: Final = 1 << 15  # values of a step, which then stay in a cache
STEPS_KEY: Final = "averaging/steps"
_OUTER, _MOMENTUM = "averaging/outer/", "averaging/momentum/"


@dataclass(frozen=True, slots=True)
class NolocoConstants:
    """The constants released with the paper."""

    outer_rate: float = 0.7  # η = γ
    momentum: float = 0.5  # μ

    @property
    def stretch(self) -> float:
        """The longest time between two outer steps, in periods, after which the second undoes nothing learnt meanwhile.

        At a steady progress of Δ a period, m = η Δ / (1 − μ); a step after k periods moves φ by μ m + η k Δ, which is
        at least k Δ for k ≤ η μ / ((1 − μ) (1 − η)): 2.3 with the released constants.
        """
        lost = (1.0 - self.momentum) * (1.0 - self.outer_rate)
        return self.outer_rate * self.momentum / lost if lost > 0 else math.inf


@dataclass(frozen=True, slots=True, eq=False)
class OuterState:
    """φ and m of one replica, float32, and the number of outer steps taken. Never written to."""

    outer: Weights
    momentum: Weights
    steps: int = 0


def copied(weights: Weights) -> dict[str, Tensor]:
    """Returns the weights in float32, copied to main memory."""
    return {name: tensor.detach().to("cpu", torch.float32, copy=True) for name, tensor in weights.items()}


def begin(weights: Weights, *, steps: int = 0) -> OuterState:
    """The state before the first outer step, or a fresh one after ``steps``: φ = θ, m = 0. Always in main memory."""
    outer = copied(weights)
    return OuterState(outer, {name: torch.zeros_like(tensor) for name, tensor in outer.items()}, steps)


def unfit_weights(own: Weights, theirs: Weights) -> str | None:
    """Returns why a partner's weights must not enter a step (the tensor, the value seen, the limit), or None.

    Reads every value.
    """
    if own.keys() != theirs.keys():
        odd = sorted(own.keys() ^ theirs.keys())
        return f"{len(odd)} tensors are on one side only, {odd[0]!r} among them"
    for name, tensor in theirs.items():
        if tensor.shape != own[name].shape:
            return f"{name}: shape {tuple(tensor.shape)}; ours is {tuple(own[name].shape)}"
        if not tensor.is_floating_point():
            return f"{name}: {tensor.dtype}; weights are floating-point numbers"
        if tensor.numel() == 0:
            continue
        # Both are NaN if any value is, and then fail every comparison.
        lowest, highest = (float(bound) for bound in torch.aminmax(tensor.detach()))
        if not (lowest >= -MAX_MAGNITUDE and highest <= MAX_MAGNITUDE):
            return f"{name}: values from {lowest:g} to {highest:g}; at most ±{MAX_MAGNITUDE:g}"
    return None


def outer_step(
    state: OuterState, group: Sequence[Weights], constants: NolocoConstants, *, shares: Sequence[float] | None = None
) -> OuterState:
    """Returns φ and m after averaging with a group; the new θ is the new φ.

    ``group`` holds θ_j of every member, our own included, each accepted by ``unfit_weights``; ``shares`` are their
    weights in the mean, equal by default.
    """
    counts = shares or [1.0] * len(group)
    momentum, outer = {}, {}
    for name, phi in state.outer.items():
        momentum[name], outer[name] = torch.empty_like(phi), torch.empty_like(phi)
        members = [member[name].detach().reshape(-1) for member in group]
        before, m = state.momentum[name].reshape(-1), momentum[name].view(-1)
        old, new = phi.reshape(-1), outer[name].view(-1)
        for start in range(0, phi.numel(), AT_ONCE):
            here = slice(start, start + AT_ONCE)
            pull = _mean([member[here] for member in members], counts, out=m[here])
            pull.sub_(old[here]).mul_(constants.outer_rate).add_(before[here], alpha=constants.momentum)
            torch.add(old[here], pull, out=new[here])
    return OuterState(outer, momentum, state.steps + 1)


def overlapped(weights: Weights, offered: Weights, outer: Weights) -> dict[str, Tensor]:
    """Returns the new θ, on the device of ``weights``: ``outer`` plus what was learnt since ``offered``."""
    moved = {}
    for name, tensor in weights.items():
        learnt = tensor.detach() - offered[name].to(tensor.device)
        moved[name] = learnt.add_(outer[name].to(tensor.device))  # exactly outer if nothing was learnt
    return moved


def snapshot(state: OuterState) -> dict[str, Tensor]:
    """Returns the whole state as tensors by name, for a checkpoint. They share memory with the state."""
    tensors = {_OUTER + name: tensor for name, tensor in state.outer.items()}
    tensors |= {_MOMENTUM + name: tensor for name, tensor in state.momentum.items()}
    return tensors | {STEPS_KEY: torch.tensor(state.steps, dtype=torch.int64)}


def restore(tensors: Weights, weights: Weights) -> OuterState | None:
    """Returns the state in a checkpoint's tensors, for a policy with ``weights``; None if they hold none.

    It lies in main memory, where steps are computed.
    Raises ``StorageError`` for a state that is incomplete or belongs to another policy.
    """
    if STEPS_KEY not in tensors:
        return None
    outer, momentum = (saved_part(tensors, prefix, weights) for prefix in (_OUTER, _MOMENTUM))
    return OuterState(outer, momentum, int(tensors[STEPS_KEY]))


def saved_part(tensors: Weights, prefix: str, weights: Weights) -> dict[str, Tensor]:
    """Returns copies of a checkpoint's tensors under ``prefix``, one for each of ``weights``."""
    part = copied({key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)})
    unfit = unfit_weights(weights, part)
    if unfit is not None:
        raise misfit(f"{prefix}: {unfit}")
    return part


def misfit(detail: str) -> StorageError:
    return StorageError(
        f"the checkpoint's state of averaging does not fit this policy ({detail}): resume with the policy that it was "
        "made with, or from an older checkpoint"
    )


def _mean(values: Sequence[Tensor], counts: Sequence[float], *, out: Tensor) -> Tensor:
    """Writes the mean to ``out``, float32. For two with equal counts, either order gives equal bits."""
    torch.mul(values[0], counts[0], out=out)
    for each, count in zip(values[1:], counts[1:], strict=True):
        out.add_(each, alpha=count)
    return out.div_(sum(counts))
