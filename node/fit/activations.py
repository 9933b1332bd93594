"""What one training pass keeps for its backward pass: the tensors that autograd saves, by layer.

Bytes per token of one layer, with w bytes an element of the model's dtype, h hidden, I intermediate, q and k the widths
of all queries and of all keys. Each row is a tensor that the backward pass of the named operation reads:

    RMS norms, 2     what enters them, normalised, scaled      float32 3 h w, else (4 + 2 w) h, each; frozen norms keep
                                                                no normalised tensor, since only their scale's gradient
                                                                needs it
    layer norms, 2   what enters both (once), what leaves each  3 h w
    attention        rotated queries, its output               2 q w
    head norms       what enters them in float32, normalised   (4 + w) (q + k); frozen ones 4 (q + k)
    output matrix    its input, where that is a copy            q w (layer norms' models)
    MLP              gate, up, act(gate), their product        4 I w; without gate opened and act(opened): 2 I w
    LoRA             each linear layer's product with A        4 r; in another dtype than float32 also its input, in
                                                                float32, for each linear layer of its own
    softmax          log of its sum, by head                   4 heads

and besides, per column that a row attends to (its prompt's and its own), keys and values, 2 k w, and for all rows of
the pass together one mask of tokens × columns. A prompt's keys and values are kept once. On CUDA attention under a
mask, which is that of completions, repeats keys and values for each query head: 2 q w. So it is counted, although
kernels by lengths keep neither copies nor mask, and that of the gate no act(gate): whether a card takes them is known
in the learner alone.

With recomputation a layer keeps what enters it, h w, and its keys and values, 2 k w; the rest is there for one layer
and one chunk at a time. ``tests/node/fit/test_activations.py`` compares with what autograd saves.
"""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct

from node.fit.model_sizes import ModelSizes
from node.fit.settings import DeviceKind, MemorySettings
from node.fit.workload import Workload

ELEMENT_BYTES: Final = {"float32": 4, "bfloat16": 2}
FLOAT_BYTES: Final = 4
HEAD_COPIES: Final = 5  # of the last hidden states in float32: as they come, in order, expected rows, two gradients
HEAD_BLOCKS: Final = 8 * (4 << 20)  # of logits, in ``node.kernels.linear_logp``
CUDA_HEAD_BLOCKS: Final = 2 * (192 << 20)  # as much, and the products that the next kernel makes of it


class PassShape(Struct, frozen=True):
    """The largest pass of a round, and how many passes there are."""

    prompts: int
    rows: int  # completions
    prompt_tokens: int  # of each prompt, padded
    answer_tokens: int  # of each completion, padded
    passes: int

    @property
    def columns(self) -> int:
        """That a completion's last token attends to."""
        return self.prompt_tokens + self.answer_tokens

    @property
    def tokens(self) -> int:
        return self.prompts * self.prompt_tokens + self.rows * self.answer_tokens


def pass_shape(workload: Workload, batch_tokens: int) -> PassShape:
    """Returns what ``plan_micro_batches`` makes of a round of the longest prompts and answers: groups are split."""
    prompt, answer, size = workload.prompt_tokens, workload.answer_tokens, workload.completions
    whole, rest = divmod(batch_tokens, prompt + size * answer)
    begun = max(0, rest - prompt) // answer  # rows of one more group
    prompts, rows = whole + (begun > 0), whole * size + begun
    if rows == 0:  # one completion is a pass, however long
        prompts = rows = 1
    if rows >= workload.groups * size:
        return PassShape(workload.groups, workload.groups * size, prompt, answer, 1)
    return PassShape(prompts, rows, prompt, answer, math.ceil(workload.groups * size / rows))


def activation_bytes(sizes: ModelSizes, settings: MemorySettings, shape: PassShape, device: DeviceKind = "cpu") -> int:
    """Returns what one pass keeps, and the gradients that are there while one layer's backward pass runs."""
    tokens = shape.tokens if not settings.recompute else _chunk_tokens(settings, shape)
    width = ELEMENT_BYTES[settings.dtype]
    gradients = tokens * width * ((3 if sizes.gated else 2) * sizes.intermediate + 2 * sizes.hidden)
    return kept_bytes(sizes, settings, shape, device) + gradients


def kept_bytes(sizes: ModelSizes, settings: MemorySettings, shape: PassShape, device: DeviceKind = "cpu") -> int:
    """Returns the most that one pass keeps of its layers for the backward pass."""
    width = ELEMENT_BYTES[settings.dtype]
    ends = 3 * shape.tokens * sizes.hidden * width  # what the embedding gives, and the last norm keeps
    if not settings.recompute:
        return ends + sizes.layers * _layer_bytes(sizes, settings, shape, shape.tokens, device)
    entering = sizes.layers * shape.tokens * (sizes.hidden + 2 * sizes.keys) * width
    return ends + entering + _layer_bytes(sizes, settings, shape, _chunk_tokens(settings, shape), device)


def head_bytes(sizes: ModelSizes, shape: PassShape, device: DeviceKind = "cpu") -> int:
    """Returns what the head needs besides its gradient: no (N, V) tensor is among it."""
    blocks = CUDA_HEAD_BLOCKS if device == "cuda" else HEAD_BLOCKS
    return shape.rows * shape.answer_tokens * sizes.hidden * FLOAT_BYTES * HEAD_COPIES + blocks


def _chunk_tokens(settings: MemorySettings, shape: PassShape) -> int:
    """Returns the tokens of a recomputed layer that are there at once."""
    return shape.tokens if settings.chunk_tokens is None else min(shape.tokens, settings.chunk_tokens)


def _layer_bytes(sizes: ModelSizes, settings: MemorySettings, shape: PassShape, tokens: int, device: DeviceKind) -> int:
    """Returns what autograd saves of one layer for so many of the pass's tokens."""
    width = ELEMENT_BYTES[settings.dtype]
    masked = sizes.queries if device == "cuda" else sizes.keys
    attended = shape.prompts * shape.prompt_tokens * sizes.keys + shape.rows * shape.columns * masked
    mask = min(tokens, shape.answer_tokens) * shape.columns * width
    return tokens * token_bytes(sizes, settings) + attended * 2 * width + mask


def token_bytes(sizes: ModelSizes, settings: MemorySettings) -> int:
    """Returns what autograd saves of one token in one layer, apart from keys, values and masks."""
    width, adapted = ELEMENT_BYTES[settings.dtype], settings.adapter_rank > 0
    hidden, inner, queries = sizes.hidden, sizes.intermediate, sizes.queries
    wide = width != FLOAT_BYTES
    cast = wide and adapted  # LoRA keeps its own float32 copy of what enters each linear layer
    if sizes.gated:
        norm = (FLOAT_BYTES if wide else width) * hidden
        norm += 0 if adapted else width * hidden
        norm += 0 if cast else width * hidden
        total = 2 * norm + width * 2 * queries
        total += width * inner * (3 if cast else 4)
    else:
        total = width * (1 if cast else 3) * hidden + width * (2 if cast else 3) * queries
        total += width * inner * (1 if cast else 2)
    if sizes.head_norms:
        total += (queries + sizes.keys) * (FLOAT_BYTES + (0 if adapted else width))
    if adapted:
        total += FLOAT_BYTES * settings.adapter_rank * sizes.layer_linears
    if cast:
        inputs = (hidden * (5 if sizes.gated else 2)) + queries + inner
        total += FLOAT_BYTES * inputs
    return total + FLOAT_BYTES * sizes.heads
