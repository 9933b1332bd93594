"""Attention of training passes: grouped keys and values are not repeated, and plain causality needs no mask.

transformers' own path to torch's ``scaled_dot_product_attention`` repeats the keys and values of grouped-query
attention whenever there is a mask, and keeps the copies for the backward pass. It needs a mask for every completion
after a cached prompt, since torch's ``is_causal`` means the first column and not the last. Here

- no mask is made for queries that are the last of their columns, each attending to itself and everything before it;
- a CPU takes grouped keys and values as they are, with or without mask, and goes through such queries block by block,
  so that columns which a block cannot see cost nothing;
- CUDA takes FlashAttention for such queries, where it can: aligned to the last column, grouped, without mask;
- a GPU with Triton takes kernels of our own for completions after prompts: by lengths, without copies of prompts;
- a CPU takes loops of its own for short rows whose tokens are packed, without padding.

Everything else is done by transformers' function. Both registrations are of transformers' public interfaces.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, sdpa_mask

from node.kernels.dispatch import has_products, is_for_triton
from node.kernels.training import cpu_packed
from node.kernels.training.attention_by_lengths import attend_by_lengths, suits
from node.kernels.training.row_lengths import Heads
from node.kernels.trial import agrees
from node.learner.objective.network.prompt_cache import Apart, Packed, PromptRows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME: Final = "starling_grouped"
BLOCK_QUERIES: Final = 512
"""Of the CPU's path. Large enough for full speed; at 4,096 tokens little more than half of the columns are computed."""

UNUSUAL: Final = ("position_bias", "softcap", "cache")
"""Arguments that only transformers' function understands, or refuses with a message."""


def use_grouped_attention(model: PreTrainedModel) -> None:
    """Makes ``model`` compute attention by this module from now on, where it used torch's attention.

    A model that attends in another way, such as one whose scores are capped, is left as it is.
    """
    if model.config._attn_implementation == "sdpa":
        model.config._attn_implementation = NAME


def attends_by_lengths(model: PreTrainedModel, device: torch.device) -> bool:
    """Whether completions attend to their prompts by the kernels for that: for plain causal attention, which this
    module computes, where the device computes with them what torch does."""
    config: Any = model.config
    if not _attends_here(model) or not is_for_triton(device) or not has_products(device):
        return False
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return suits(size, model.dtype) and _agree(heads // kv_heads, size, device, model.dtype)


def attends_packed(model: PreTrainedModel, device: torch.device) -> bool:
    """Whether prompts and completions can be one row of packed tokens: where this module computes plain causal
    attention in every layer, on a CPU, and positions are rotations by the ``position_ids`` that the body is given."""
    if not set(getattr(model.config, "layer_types", None) or ()) <= {"full_attention"}:
        return False
    rotates = any(name.endswith("rotary_emb") for name, _ in model.named_modules())
    loops = device.type == "cpu" and not is_for_triton(device) and model.dtype in cpu_packed.DTYPES
    return loops and rotates and _attends_here(model)


def _attends_here(model: PreTrainedModel) -> bool:
    return bool(model.config._attn_implementation == NAME and model._supports_attention_backend)


@cache
def _agree(queries: int, size: int, device: torch.device, dtype: torch.dtype) -> bool:
    def disagreement() -> str | None:
        from node.kernels.training.lengths_agreement import disagreement

        return disagreement(queries, size, device, dtype)

    return agrees("training", device, disagreement)


def grouped_attention(
    module: torch.nn.Module,
    query: Tensor,  # (B, H, L, d)
    key: Tensor | Apart | Packed,  # (B, K, S, d), H a multiple of K
    value: Tensor | Apart | Packed,  # (B, K, S, d)
    attention_mask: Tensor | None,  # (B or 1, 1 or H, L, S), or None: query i sees column j where j - i ≤ S - L
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **extra: Any,
) -> tuple[Tensor, None]:
    """Returns what is attended to, (B, L, H, d), and no weights: transformers' signature of an attention function."""
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    usual = causal and dropout == 0.0 and all(extra.get(name) is None for name in UNUSUAL)
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    attended: Tensor
    if isinstance(key, Packed) and isinstance(value, Packed):
        assert attention_mask is None, "no model of packed tokens has masks of its own"
        if usual:
            heads = (each[0].transpose(0, 1) for each in (query, key.states, value.states))
            attended = cpu_packed.AttendPacked.apply(*heads, key.spans, scale)  # type: ignore[no-untyped-call]
            return attended[None], None
        attention_mask = _seen_packed(key.spans)
        key, value = key.states, value.states
    if isinstance(key, Apart) and isinstance(value, Apart):
        lengths = key.rows.lengths
        if usual and lengths is not None and attention_mask is None and suits(query.shape[3], query.dtype):
            (prompt_keys, own_keys), (prompt_values, own_values) = key.both(), value.both()
            of_lengths = Heads(query, own_keys, own_values, prompt_keys, prompt_values)
            return attend_by_lengths(of_lengths, lengths, scale), None
        rows, key, value = key.rows, key.joined(), value.joined()
        attention_mask = _seen(rows, query.shape[2], key.shape[2], attention_mask)
    assert isinstance(key, Tensor) and isinstance(value, Tensor)
    grouped = query.shape[1] != key.shape[1]
    at_the_end = causal and attention_mask is None and 1 < query.shape[2] < key.shape[2]
    if usual and at_the_end and query.device.type == "cpu":
        attended = _by_blocks(query, key, value, scaling)
    elif usual and query.device.type == "cpu":
        square = attention_mask is None and query.shape[2] > 1
        attended = scaled_dot_product_attention(
            query, key, value, attention_mask, is_causal=square, scale=scaling, enable_gqa=grouped
        )
    elif usual and at_the_end and _flash(query, key, value):
        bias: Any = causal_lower_right(query.shape[2], key.shape[2])
        attended = scaled_dot_product_attention(query, key, value, bias, scale=scaling, enable_gqa=grouped)
    else:
        mask = _lower_right(query.shape[2], key.shape[2], query.device) if at_the_end else attention_mask
        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, mask, dropout, scaling, is_causal, **extra
        )
        return found
    return attended.transpose(1, 2).contiguous(), None


def _flash(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether CUDA has FlashAttention for these, grouped or not, without mask."""
    grouped = query.shape[1] != key.shape[1]
    return query.is_cuda and can_use_flash_attention(SDPAParams(query, key, value, None, 0.0, False, grouped))


def _by_blocks(query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
    length, columns = query.shape[2], key.shape[2]
    size = min(BLOCK_QUERIES, length)
    mask = torch.zeros(size, columns, dtype=query.dtype, device=query.device)
    mask.masked_fill_(~_lower_right(size, columns, query.device), -torch.inf)
    attended = list[Tensor]()
    for start in range(0, length, BLOCK_QUERIES):
        stop = min(start + BLOCK_QUERIES, length)
        seen = columns - length + stop
        attended.append(
            scaled_dot_product_attention(
                query[:, :, start:stop],
                key[:, :, :seen],
                value[:, :, :seen],
                mask[size - stop + start :, columns - seen :],  # of every block, aligned to its last row and column
                scale=scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            )
        )
    return torch.cat(attended, dim=2) if len(attended) > 1 else attended[0]


def _seen(rows: PromptRows, length: int, columns: int, mask: Tensor | None) -> Tensor:
    """Returns which of the joined columns (S) each of the last queries (L) sees, (B, 1, L, S) bool."""
    assert rows.lengths is not None
    column = torch.arange(columns, device=rows.prompt_of.device)
    padded = (column < rows.columns) & (column >= rows.lengths.prompt_lengths[rows.prompt_of][:, None])  # (B, S)
    seen = _lower_right(length, columns, column.device) if mask is None else mask
    return seen & ~padded[:, None, None]


def _seen_packed(spans: NDArray[Any]) -> Tensor:
    """Returns which of the packed tokens each of them sees, (1, 1, N, N) bool."""
    place = np.arange(len(spans))
    begin, end, own = spans[:, :, None].swapaxes(0, 1)
    seen = ((begin <= place) & (place < end)) | ((own <= place) & (place <= place[:, None]))
    return torch.from_numpy(seen)[None, None]


def _lower_right(length: int, columns: int, device: torch.device) -> Tensor:
    """Returns which of the columns (S) each of the last queries (L) sees, (L, S) bool."""
    return torch.ones(length, columns, dtype=torch.bool, device=device).tril(columns - length)


def mask_unless_plain(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Any = causal_mask_function,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    **extra: Any,
) -> Tensor | None:
    """Returns transformers' mask (B, 1, L, S), or None for plain causal attention of the last L of S columns."""
    whole = kv_offset == 0 and isinstance(q_offset, int) and q_offset + q_length == kv_length
    if allow_is_causal_skip and whole and attention_mask is None and mask_function is causal_mask_function:
        return None
    mask: Tensor | None = sdpa_mask(
        batch_size,
        q_length,
        kv_length,
        q_offset,
        kv_offset,
        mask_function,
        attention_mask,
        # Otherwise None would mean torch's causality, counted from the first column.
        allow_is_causal_skip=allow_is_causal_skip and q_length in (1, kv_length),
        **extra,
    )
    return mask


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, mask_unless_plain)
