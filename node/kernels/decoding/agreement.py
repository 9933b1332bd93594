"""Whether the decode step's kernels compute on this device what torch does: asked once before they are used."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from node.kernels.decoding.triton_attention import Rows, attend, rotate_and_keep
from node.kernels.decoding.triton_mlp import gate
from node.kernels.trial import differ

ROWS, KV_HEADS, SLOTS, OWN, INNER = 3, 2, 160, 5, 96
SEATS = 1, 2, 0


def disagreement(queries: int, size: int, device: torch.device, dtype: torch.dtype) -> str | None:
    """Returns what differs, None if nothing does. Raises what Triton and the device's driver raise.

    A few rows of random numbers, with a shared prompt, in one part and in several. The bound is two units in the last
    place of the largest result.
    """
    random = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random).to(device=device, dtype=dtype)

    def numbers(*values: int, of: torch.dtype = torch.int32) -> Tensor:
        return torch.tensor(values, dtype=of, device=device)

    keys, values, prompt_keys, prompt_values = (normal(ROWS, KV_HEADS, SLOTS, size) for _ in range(4))
    lengths = [SLOTS, 7, SLOTS - 1]
    positions = numbers(*(length + OWN - 1 for length in lengths), of=torch.int64)
    prompts = prompt_keys, prompt_values, numbers(0, 1, 2), numbers(*lengths)
    rows = Rows(keys, values, numbers(9, 0, 4), numbers(*SEATS), positions, *prompts)
    heads = normal(ROWS, KV_HEADS, queries + 2, size)
    angles = torch.rand(SLOTS + OWN, size // 2, generator=random).to(device)
    table = torch.stack([angles.cos(), angles.sin()], -1).flatten(1)
    expected_heads = _rotated(heads[:, :, :-1].float(), table[positions])
    rotate_and_keep(heads, None, table, 1e-6, rows)
    bound = 2 * torch.finfo(dtype).eps if dtype != torch.float32 else 1e-4
    if differ(heads[:, :, :queries], expected_heads[:, :, :queries], bound):
        return "queries are rotated otherwise"
    expected = torch.stack([_attended(rows, heads, row) for row in range(ROWS)])
    for processors in (1, 4 * ROWS * KV_HEADS):
        if differ(attend(heads, rows, processors), expected, bound):
            return "attention differs"
    gates, ups = normal(ROWS, INNER), normal(ROWS, INNER)
    expected = functional.silu(gates.float()) * ups.float()
    return "the gate of the MLP differs" if differ(gate(gates, ups, "silu"), expected, bound) else None


def _rotated(x: Tensor, angles: Tensor) -> Tensor:
    turned = torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(turned * torch.view_as_complex(angles.view(ROWS, 1, 1, -1, 2))).flatten(-2)


def _attended(rows: Rows, heads: Tensor, row: int) -> Tensor:
    assert rows.prompt_keys is not None and rows.prompt_values is not None
    seat, length = SEATS[row], int(rows.prompt_lengths[row])
    first = int(rows.starts[seat])
    own, shared = slice(first, first + OWN), slice(SLOTS - length, SLOTS)
    keys = torch.cat([rows.prompt_keys[row, :, shared], rows.keys[seat, :, own]], 1).float()
    values = torch.cat([rows.prompt_values[row, :, shared], rows.values[seat, :, own]], 1).float()
    query = heads[row, :, :-2].float()
    return torch.softmax(query @ keys.transpose(1, 2) * query.shape[-1] ** -0.5, -1) @ values
