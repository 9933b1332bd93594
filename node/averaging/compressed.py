"""Averaging whole models with one partner in 1/25 of the bytes: SparseLoCo's update and a slice of the weights.

For replicas i and j, φ outer weights, θ weights after the inner steps, e what has not been sent yet:

    Δ ← θ - φ + β (1 - κ) e;   e, c ← top-k of Δ in two bits a value (``protocol.weights.sparsify``)  each for itself
    u = mean of c_i and c_j, at each index over those who sent it                         equal on both, to the bit
    φ_i ← φ_i + α u + γ (φ̂_j - φ_i) on partner j's slice of its φ
    θ ← φ + κ e

The nodes exchange c and, in a few bits each, every ``stride``-th element of φ (``protocol.weights.weight_slice``).
Dense NoLoCo sends θ_j, which contains everything that j has learnt from anyone. Here u contains only what the two have
learnt since their last steps and nothing of a partner's partners, so the φ of replicas that met others drift apart; the
slice pulls them together. With κ = 1 what an update has no room for stays in θ, and so in the next Δ: an outer step
undoes nothing that a node has learnt, however rarely it comes. With κ = 0, as in SparseLoCo, it is undone until it is
sent (``docs/experiments/unsent.md``; ``docs/experiments/averaging.md`` for the slice).

The slice's step δ is, for each tensor, the root mean square of the recent distances between partners' slices and our φ,
so that its range of eight steps is ± four such distances.

Guarantees: nothing passed in is written to, so a step that is not taken leaves no trace, not in the residual either:
what was not averaged is in the next Δ, because φ has not moved. φ' is a function of the own state and the two blobs,
float32, the same to the bit on every machine. A partner's c that is longer than ``MAX_LENGTH_RATIO`` times ours is
scaled down to that, tensor by tensor; only then do the two sides differ in u. A slice's distance counts as at most
``MAX_DISTANCE_RATIO`` times the expected one, whatever its steps: the end of the range that honest slices have. No
element moves by more than a quarter of the partner's range, and never away from the φ̂_j that it decodes.

Departures: SparseLoCo keeps one φ for all and sends to all; here each replica has its own. It has κ = 0, ours is 1. Its
residual decays by β = 0.95 a step; ours does not, because an element is sent every sixteen steps or less often, and
would lose much of its value until then. If one side commits and the other, which is very unlikely, does not
(``swarm.averaging.pairing``), the second's update is sent twice, once as c and once in a later Δ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.averaging.noloco import Weights, copied, misfit, saved_part
from node.kernels.sparse_update_kernels import encode_update_fast
from node.policy.weight_layout import layout_of
from protocol import limits
from protocol.weights.compressed_weights import Compressed, encode_compressed
from protocol.weights.sparse_update import decode_update
from protocol.weights.sparsify import SparseTensor, norm_of, sent_by_both
from protocol.weights.tensor_layout import TensorLayout
from protocol.weights.weight_slice import MIN_STEP, quantise_slice, slice_differences, slice_elements

STEPS_KEY: Final = "compressed_averaging/steps"
_SPREAD: Final = "compressed_averaging/spread"
MAX_LENGTH_RATIO: Final = 2.0
MAX_DISTANCE_RATIO: Final = 4.0
_OUTER, _RESIDUAL = "compressed_averaging/outer/", "compressed_averaging/residual/"

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class CompressedConstants:
    """0.0584 bytes a parameter for the update, 0.0208 for the slice: 1/25 of bf16 together."""

    kept: int = 256  # k, of every 4096
    residual_decay: float = 1.0  # β
    unsent_kept: float = 1.0  # κ: the share of what is not sent yet that stays in θ
    outer_rate: float = 1.4  # α: what NoLoCo applies of an update in all, η / (1 - μ)
    consensus_rate: float = 0.5  # γ: half way to the partner, as the mean is
    stride: int = 18  # one of so many elements is in a slice
    bits: int = 3
    spread_decay: float = 0.5  # one exchange lowers the measured distance at most to this share of itself


@dataclass(frozen=True, slots=True, eq=False)
class CompressedState:
    """One replica between outer steps. Never written to."""

    outer: Weights  # φ, float32
    residual: Weights  # e, float32
    spread: Floats  # (T,) recent distance of partners' φ from ours, by tensor in the layout's order; 0: unknown
    steps: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class CompressedOffer:
    """What one replica offers, and what its state becomes if a partner averages with it."""

    blob: bytes
    update: list[SparseTensor]  # as the partner decodes it
    residual: Weights  # e afterwards


def begin(weights: Weights, steps: int = 0) -> CompressedState:
    """Returns the state before the first outer step: φ = θ, e = 0, and no distance is known.

    ``weights`` may have any dtype and device; they are copied to float32 on the CPU. ``steps`` is the number of outer
    steps taken before, 0 for a new replica.
    """
    outer = copied(weights)
    residual = {name: torch.zeros_like(tensor) for name, tensor in outer.items()}
    return CompressedState(outer, residual, np.zeros(len(outer), np.float32), steps)


def make_offer(state: CompressedState, weights: Weights, phase: int, constants: CompressedConstants) -> CompressedOffer:
    """Returns what to send of ``weights`` θ in main memory; ``phase``, below ``constants.stride``, selects the slice.

    Raises ``ValueError`` for weights that are not finite or too far from φ to be sent.
    """
    layout = layout_of(state.outer)
    # The new residual is written over θ - φ: Δ is the same sum with one copy less.
    left = [(weights[name].detach().to(torch.float32) - state.outer[name]).reshape(-1) for name in layout.names]
    carried = constants.residual_decay * (1.0 - constants.unsent_kept)  # of e; θ - φ contains the rest
    if carried == 0.0:  # as nodes have it: no copy of the whole model, only to add nothing
        nothing = torch.zeros(max(layout.sizes, default=0))
        before = [nothing[:size] for size in layout.sizes]
    else:
        before = [carried * state.residual[name].reshape(-1) for name in layout.names]
    update = encode_update_fast(layout, left, before, decay=1.0, kept=constants.kept)
    part = quantise_slice(
        layout,
        _flat(state.outer, layout),
        steps_of(state.spread, constants),
        stride=constants.stride,
        phase=phase,
        bits=constants.bits,
    )
    residual = {name: tensor.reshape(shape) for (name, shape), tensor in zip(layout.tensors, left, strict=True)}
    return CompressedOffer(encode_compressed(layout, update, part), decode_update(update, layout), residual)


def outer_step(
    state: CompressedState,
    sent: CompressedOffer,
    theirs: Compressed,
    constants: CompressedConstants,
    *,
    share: float = 1.0,
) -> tuple[CompressedState, float | None]:
    """Returns the state after averaging ``sent``, the offer of ``state``, with a partner's; see ``weights_of``. And
    ‖φ_i − φ_j‖ / ‖φ_i‖ over the slice, within its range; None if ours is all zero there.

    ``theirs`` is the result of ``decode_compressed`` for the layout of ``state``; it counts ``share`` ≤ 1.
    """
    layout = layout_of(state.outer)
    differences = slice_differences(layout, theirs.part, _flat(state.outer, layout))
    where = slice_elements(layout, theirs.part.stride, theirs.part.phase)
    outer, spread = {}, []
    apart_square = own_square = 0.0
    for index, (name, shape) in enumerate(layout.tensors):
        positions, update = mean_update(sent.update[index], theirs.update[index], share)
        moved, away = state.outer[name].reshape(-1).numpy().copy(), differences[index]
        length = _length(away)
        apart_square, own_square = apart_square + length**2, own_square + _length(moved[where[index]]) ** 2
        moved[positions] += np.float32(constants.outer_rate) * update
        # Without a measured distance, the length of one update is the estimate.
        expected = float(state.spread[index]) or _length(update) / math.sqrt(len(moved))
        far = length / math.sqrt(max(1, len(away)))
        pull = share * constants.consensus_rate * min(1.0, MAX_DISTANCE_RATIO * expected / far if far > 0.0 else 1.0)
        moved[where[index]] += np.float32(pull) * away
        outer[name] = torch.from_numpy(moved).reshape(shape)
        bounded = max(min(far, MAX_DISTANCE_RATIO * expected), constants.spread_decay * expected)
        spread.append(bounded if len(away) else expected)
    after = CompressedState(outer, sent.residual, np.array(spread, np.float32), state.steps + 1)
    return after, math.sqrt(apart_square / own_square) if own_square > 0.0 else None


def weights_of(state: CompressedState, constants: CompressedConstants) -> dict[str, Tensor]:
    """Returns θ right after the step that led to ``state``: φ + κ e."""
    return {n: torch.add(phi, state.residual[n], alpha=constants.unsent_kept) for n, phi in state.outer.items()}


def mean_update(ours: SparseTensor, theirs: SparseTensor, share: float = 1.0) -> tuple[NDArray[np.int64], Floats]:
    """Returns u of one tensor where it is not 0: positions, each once, in any order, and values there.

    Where both sent, u is (c_i + w c_j) / (1 + w), w being ``share``. Bit-equal on both sides for w = 1 if the longer
    update is at most ``MAX_LENGTH_RATIO`` times the other.
    """
    most, norm = MAX_LENGTH_RATIO * norm_of(ours), norm_of(theirs)
    scale = most / norm if norm > most else 1.0
    share = share if norm > 0.0 else 0.0  # zeros mean that nothing was learnt: they do not count
    values, added = ours.values, (theirs.codebook * np.float32(scale * share))[theirs.codes]
    here, there = sent_by_both(ours, theirs)
    values[here] = (values[here] + added[there]) / np.float32(1.0 + share)
    alone = np.ones(len(added), bool)
    alone[there] = False
    return np.concatenate([ours.positions, theirs.positions[alone]]), np.concatenate([values, added[alone]])


def steps_of(spread: Floats, constants: CompressedConstants) -> Floats:
    """Returns δ by tensor: the range of 2^bits steps is ± four distances."""
    steps = spread * np.float32(8.0 / 2**constants.bits)
    bounded: Floats = np.clip(steps, np.float32(MIN_STEP), np.float32(limits.UPDATE_MAGNITUDE))
    return bounded


def snapshot(state: CompressedState) -> dict[str, Tensor]:
    """Returns the whole state as tensors by name, for a checkpoint. They share memory with the state."""
    tensors = {_OUTER + name: tensor for name, tensor in state.outer.items()}
    tensors |= {_RESIDUAL + name: tensor for name, tensor in state.residual.items()}
    return tensors | {_SPREAD: torch.from_numpy(state.spread), STEPS_KEY: torch.tensor(state.steps, dtype=torch.int64)}


def restore(tensors: Weights, weights: Weights) -> CompressedState | None:
    """Returns the state in a checkpoint's tensors, for a policy with ``weights``; None if they hold none.

    Raises ``StorageError`` for a state that is incomplete or belongs to another policy.
    """
    if STEPS_KEY not in tensors:
        return None
    outer, residual = (saved_part(tensors, prefix, weights) for prefix in (_OUTER, _RESIDUAL))
    spread = tensors.get(_SPREAD)
    if spread is None or spread.shape != (len(weights),) or not bool((spread >= 0).all() & spread.isfinite().all()):
        raise misfit("the distances of partners are missing or invalid")
    kept = spread.to("cpu", torch.float32, copy=True).numpy()
    return CompressedState(outer, residual, kept, int(tensors[STEPS_KEY]))


def _flat(weights: Weights, layout: TensorLayout) -> list[Floats]:
    return [weights[name].reshape(-1).numpy() for name in layout.names]


def _length(values: Floats) -> float:
    return math.sqrt(float(np.square(values, dtype=np.float64).sum()))
