"""Whether attention by lengths, and its gradients, are on this device what torch computes."""

from __future__ import annotations

import torch
from torch import Tensor

from node.kernels.training.attention_by_lengths import attend_by_lengths
from node.kernels.training.row_lengths import Heads, RowLengths
from node.kernels.trial import differ

KV_HEADS, LENGTHS, PROMPT_LENGTHS, PROMPT_OF = 2, (5, 33, 0), (70, 9), (0, 0, 1)


def disagreement(queries: int, size: int, device: torch.device, dtype: torch.dtype) -> str | None:
    """Returns what differs, None if nothing does. Raises what Triton and the device's driver raise.

    A few rows of random numbers. The bound is four units in the last place of the largest result: weights, their
    gradients and results are each rounded once, torch's are not.
    """
    random = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random).to(device=device, dtype=dtype).transpose(1, 2).requires_grad_()

    def numbers(values: tuple[int, ...]) -> Tensor:
        return torch.tensor(values, device=device)

    count, columns, prompt_columns = len(LENGTHS), max(LENGTHS), max(PROMPT_LENGTHS)
    query = normal(count, columns, KV_HEADS * queries, size)
    own = [normal(count, columns, KV_HEADS, size) for _ in range(2)]
    shared = [normal(len(PROMPT_LENGTHS), prompt_columns, KV_HEADS, size) for _ in range(2)]
    rows = RowLengths.of(numbers(PROMPT_OF), numbers(LENGTHS), numbers(PROMPT_LENGTHS))
    scale, heads = size**-0.5, Heads(query, own[0], own[1], shared[0], shared[1])
    column = torch.arange(columns, device=device)
    real = (column < numbers(LENGTHS)[:, None])[:, :, None, None]  # (B, T, 1, 1)
    seen = torch.cat(
        [
            (torch.arange(prompt_columns, device=device) < numbers(PROMPT_LENGTHS)[:, None])[list(PROMPT_OF)],
            torch.ones(count, columns, dtype=torch.bool, device=device),
        ],
        dim=1,
    )[:, None, None] & torch.ones(columns, prompt_columns + columns, dtype=torch.bool, device=device).tril(
        prompt_columns
    )
    keys, values = (
        torch.cat([each[list(PROMPT_OF)], mine], 2).float().repeat_interleave(queries, 1)
        for each, mine in zip(shared, own, strict=True)
    )
    scores = (query.float() @ keys.mT * scale).masked_fill(~seen, -torch.inf)
    expected = (scores.softmax(-1) @ values).transpose(1, 2) * real
    found = attend_by_lengths(heads, rows, scale)
    bound = 4 * torch.finfo(dtype).eps if dtype != torch.float32 else 1e-4
    if differ(found.detach(), expected.detach(), bound):
        return "attention by lengths differs"
    slope = torch.randn(found.shape, generator=random).to(device=device, dtype=dtype) * real
    exact = torch.autograd.grad(expected, heads, slope.float())
    for name, got, wanted in zip(Heads._fields, torch.autograd.grad(found, heads, slope), exact, strict=True):
        if differ(got, wanted, bound):
            return f"the gradient of {name} differs"
    return None
