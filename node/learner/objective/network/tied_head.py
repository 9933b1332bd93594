"""A head that shares its weight with the embedding, (V, D), which is the largest tensor of a small model.

autograd holds the head's share of the gradient from the beginning of the backward pass to its end, where the embedding
makes one of the same size and both are added: three such tensors beside the weight's own gradient. Here the head's
share is added to ``grad`` as soon as it is there, and the embedding's holds the rows of its tokens alone.

Only ``backward`` sees the whole gradient: ``torch.autograd.grad`` with respect to this weight lacks the head's share.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import torch
from torch import Tensor

SPARSE_SUMS: Final = ("cpu", "cuda")  # devices that add the gradient of some rows to one of all rows


def tied_embedding(body: torch.nn.Module, head: torch.nn.Linear) -> torch.nn.Embedding | None:
    """Returns the embedding that shares the weight of ``head``, if there is one and the weight is to be trained."""
    embedding = body.get_input_embeddings()  # type: ignore[operator]
    if not isinstance(embedding, torch.nn.Embedding) or embedding.weight is not head.weight:
        return None
    trained = head.weight.requires_grad and torch.is_grad_enabled()
    return embedding if trained and head.weight.device.type in SPARSE_SUMS else None


@contextmanager
def gradient_by_rows(embedding: torch.nn.Embedding) -> Iterator[None]:
    """Within the context the embedding is run so that its gradient will have the rows of its tokens alone.

    The weight must have a dense ``grad`` when that is added to it, which ``with_early_gradient`` sees to.
    """
    before = embedding.sparse
    embedding.sparse = True
    try:
        yield
    finally:
        embedding.sparse = before


def with_early_gradient(weight: Tensor) -> Tensor:
    """Returns ``weight`` for use in a head, whose backward pass then adds its gradient to ``weight.grad`` at once."""
    own = weight.detach().requires_grad_()
    own.register_post_accumulate_grad_hook(partial(_deposit, weight))  # type: ignore[no-untyped-call]
    return own


@torch.no_grad()
def _deposit(weight: Tensor, own: Tensor) -> None:
    share, own.grad = own.grad, None
    if weight.grad is None:
        weight.grad = share
    elif share is not None:
        weight.grad += share
