"""Gradients that are summed over passes in float32, whatever dtype the parameters have.

A bfloat16 number keeps eight bits: once a sum of gradients is 256 times one pass's share, that share is lost. So while
backward passes run, the gradient of each parameter that is not float32 is added to a float32 sum as soon as autograd
has it, and freed: there is never a second whole set of gradients. Parameters in float32 keep theirs in ``grad``, and
nothing is done for them.

Within one pass autograd itself adds up the uses of a weight, in the weight's own dtype, unless layers are recomputed.

Of a parameter in shards (``sharding``) all of this is about the rows that this device holds, each time after FSDP2 has
reduced a layer's gradient to them: FSDP2 divides the first dimension as ``torch.chunk`` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import torch
from torch import Tensor

BLOCK: Final = 1 << 24
"""Numbers added at a time: a CPU makes a float32 copy of what it adds, which should not be of a whole embedding."""


class GradientAccumulator:
    """The gradients of named parameters since they were last dropped."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        self._parameters = dict(parameters)
        self._sums: dict[str, Tensor] = {}  # float32, of parameters in another dtype that had a gradient

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Within the context, gradients of backward passes are added to what is there, as float32 sums.

        An exception drops every gradient, also those from before the context, and is raised again: a batch is added up
        whole or leaves nothing behind.
        """
        handles = [
            parameter.register_post_accumulate_grad_hook(partial(self._take, name))  # type: ignore[no-untyped-call]
            for name, parameter in self._parameters.items()
            if parameter.dtype != torch.float32
        ]
        try:
            yield
        except BaseException:
            self.drop()
            raise
        finally:
            for handle in handles:
                handle.remove()

    def gradients(self) -> dict[str, Tensor]:
        """Returns the live gradients, by name; a parameter without a gradient has none.

        They are float32 sums. Only where nothing was added up is a gradient in its parameter's own dtype: one that was
        put there, or came from passes outside of ``accumulating``.
        """
        found: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            if name in self._sums:
                self._take(name)
            gradient = self._sums.get(name, parameter.grad)
            if gradient is not None:
                found[name] = shard_of(gradient)
        return found

    def drop(self) -> None:
        """Frees all gradients: after a step, or where a pass was interrupted."""
        self._sums.clear()
        for parameter in self._parameters.values():
            parameter.grad = None

    def drop_one(self, name: str) -> None:
        """Frees the gradient of one parameter."""
        self._sums.pop(name, None)
        self._parameters[name].grad = None

    @torch.no_grad()
    def _take(self, name: str, _: Tensor | None = None) -> None:
        parameter = self._parameters[name]
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:
            return
        gradient = shard_of(gradient)
        if name not in self._sums:
            self._sums[name] = gradient.float()
            return
        total = self._sums[name].view(-1)
        for part, share in zip(torch.split(total, BLOCK), torch.split(gradient.reshape(-1), BLOCK), strict=True):
            part.add_(share)


@torch.no_grad()
def shard_of(tensor: Tensor) -> Tensor:
    """Returns this device's rows of a tensor in shards (``DTensor``), as a live view; any other tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def rows_of(shape: Sequence[int], rank: int, devices: int) -> slice:
    """Returns the rows of a tensor of ``shape`` that device ``rank`` holds; none where there are fewer than devices."""
    rows = shape[0]
    each = -(-rows // devices)
    return slice(min(rank * each, rows), min((rank + 1) * each, rows))
