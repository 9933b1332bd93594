"""Whether kernels compute on a device what torch does: asked once, before they are used."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

log: Final = logging.getLogger(__name__)


def agrees(purpose: str, device: torch.device, disagreement: Callable[[], str | None]) -> bool:
    """Whether ``disagreement`` finds no difference and raises nothing that Triton or a device's driver raises.

    Otherwise says so: the caller takes torch for ``purpose``.
    """
    from triton.errors import TritonError

    try:
        why = disagreement()
    except (RuntimeError, TritonError) as error:
        why = f"{type(error).__name__}: {error}"
    if why is not None:
        log.warning("the kernels for %s do not work on %s, so torch does it, slower: %s", purpose, device, why)
    return why is None


def with_gradients(
    function: Callable[..., Tensor | tuple[Tensor, ...]], leaves: Sequence[Tensor], slopes: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Returns what ``function`` makes of ``leaves``, which require gradients, and their gradients where those of its
    results are ``slopes``."""
    with torch.enable_grad():
        made = function(*leaves)
        results = made if isinstance(made, tuple) else (made,)
        return (*results, *torch.autograd.grad(results, leaves, slopes))


def differ(found: Tensor, expected: Tensor, bound: float) -> bool:
    """Whether a number differs by more than ``bound`` times the largest expected one, or is none."""
    return not bool((found.float() - expected.float()).abs().max() <= bound * expected.abs().max())
