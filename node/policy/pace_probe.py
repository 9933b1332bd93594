"""How fast this machine computes what a layer of a model takes. No model is needed.

``python -m node.policy.pace_probe DEVICE DTYPE`` prints ``Pace`` as JSON, for processes that do not import torch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

import msgspec
import torch

from node.fit.stages.plan import Pace
from node.policy.device import choose_device, choose_dtype

HIDDEN, INNER, TOKENS = 1024, 4096, 512
ROWS: Final = 8  # that a step of generation decodes: its time is that of reading weights
SECONDS: Final = 1.0  # of each of the two: on a busy machine the best of many counts


def measured_pace(device: torch.device, dtype: torch.dtype) -> Pace:
    """Returns flops of a gated MLP of frozen weights, forward and backward, and bytes of a product with few rows. Takes
    two seconds, and 80 MB."""
    generator = torch.Generator().manual_seed(0)
    opened, gated, closed = (
        (torch.randn(shape, generator=generator) / 32).to(device, dtype)
        for shape in ((HIDDEN, INNER), (HIDDEN, INNER), (INNER, HIDDEN))
    )
    entered = torch.randn(TOKENS, HIDDEN, generator=generator).to(device, dtype).requires_grad_()

    def learn() -> None:
        left = (torch.nn.functional.silu(entered @ gated) * (entered @ opened)) @ closed
        torch.autograd.grad(left, entered, torch.ones_like(left))

    rows, weights = entered[:ROWS].detach(), (opened, gated, closed.T)

    def decode() -> None:
        for each in weights:
            rows @ each

    read_bytes = 3 * HIDDEN * INNER * opened.element_size()
    return Pace(2 * 2 * 3 * HIDDEN * INNER * TOKENS / _seconds(learn, device), read_bytes / _seconds(decode, device))


def _seconds(work: Callable[[], None], device: torch.device) -> float:
    """Returns the shortest time of a call, of those in ``SECONDS`` after the first."""
    best, until = float("inf"), 0.0
    while not until or time.monotonic() < until:
        began = time.monotonic()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.monotonic() - began)
        until = until or time.monotonic() + SECONDS
    return best


def main() -> None:
    device = choose_device(sys.argv[1])
    sys.stdout.buffer.write(msgspec.json.encode(measured_pace(device, choose_dtype(sys.argv[2], device))) + b"\n")


if __name__ == "__main__":
    main()
