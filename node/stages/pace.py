"""How fast a machine computes a layer of the model at hand, and the owner its head: in the learner's pass, and in a
step of generation.

A layer takes longer than its flops do in a large product, a small one several times as long. ``Pace`` here is that
number of flops, and bytes of weights, by which the plan's formulas (``node.fit.stages``) give the seconds measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final

import torch
from torch import Tensor

from node.fit.model_sizes import ModelSizes
from node.fit.stages.plan import Pace
from node.fit.stages.work import Round, Training
from node.kernels.linear_logp import linear_logps
from node.stages.link import Call, Inputs
from node.stages.worker import StageWorker

Clock = Callable[[], float]

ROWS, TOKENS = 8, 64  # of the learner's pass; and rows of a step of generation
PROMPT_TOKENS: Final = 16
STEPS: Final = 16  # after one prompt
HEAD_TOKENS: Final = 4096  # of the vocabulary, at most
SECONDS: Final = 1.0  # of each of the two


def layer_pace(worker: StageWorker, sizes: ModelSizes, clock: Clock = time.monotonic) -> Pace:
    """Measures with the model's first layer, which ``worker`` then holds. Takes two seconds.

    Raises ``ConfigurationError`` as ``StageWorker.hold``.
    """
    worker.hold(range(1))
    random = torch.Generator().manual_seed(0)
    hidden = torch.randn(ROWS, TOKENS, worker.hidden_size, generator=random).to(worker.policy.dtype)
    learning = _mean(_learnt(worker, hidden, clock), clock)
    decoding = _mean(_decoded(worker, hidden, clock), clock)
    worker.forget()
    worker.release()
    shape = Round(ROWS, 1, 0, TOKENS, ROWS * TOKENS)
    flops = sum(Training(sizes, whole=False, recompute=False).layer_flops(shape))
    return Pace(flops / learning, sizes.layer_parameters * hidden.element_size() / decoding)


def head_pace(sizes: ModelSizes, device: torch.device, dtype: torch.dtype, clock: Clock = time.monotonic) -> Pace:
    """Measures with a part of a head of random weights, as wide as the model's. Takes two seconds."""
    random, tokens = torch.Generator().manual_seed(0), min(sizes.vocabulary, HEAD_TOKENS)
    hidden, weight = (
        torch.randn(rows, sizes.hidden, generator=random).to(device, dtype) for rows in (ROWS * TOKENS, tokens)
    )
    targets = torch.zeros(len(hidden), dtype=torch.int64, device=device)
    learning = _mean(_scored(hidden, weight, targets, clock), clock)
    decoding = _mean(_multiplied(hidden[:ROWS].detach(), weight, clock), clock)
    flops = 3 * 2.0 * weight.numel() * len(hidden)
    return Pace(flops / learning, weight.nbytes / decoding)


def _scored(hidden: Tensor, weight: Tensor, targets: Tensor, clock: Clock) -> Iterator[float]:
    while True:
        began = clock()
        logps, _ = linear_logps(hidden.requires_grad_(), weight, targets)
        torch.autograd.grad(logps.sum(), hidden)[0].cpu()
        yield clock() - began


def _multiplied(hidden: Tensor, weight: Tensor, clock: Clock) -> Iterator[float]:
    while True:
        began = clock()
        (hidden @ weight.T).cpu()
        yield clock() - began


def _learnt(worker: StageWorker, hidden: Tensor, clock: Clock) -> Iterator[float]:
    """Yields the seconds of one pass after another, forward and back."""
    for number in count():
        began = clock()
        worker.forward(Call(number, 0), hidden, Inputs(), True)
        worker.backward(Call(number, 0), hidden)
        yield clock() - began


def _decoded(worker: StageWorker, hidden: Tensor, clock: Clock) -> Iterator[float]:
    """Yields the seconds of one step after another."""
    while True:
        worker.begin()
        worker.prefill(hidden[:, :PROMPT_TOKENS], torch.zeros(ROWS, dtype=torch.int64))
        worker.join(range(ROWS))
        for _ in range(STEPS):
            began = clock()
            worker.step(hidden[:, :1])
            yield clock() - began


def _mean(each: Iterator[float], clock: Clock) -> float:
    """Returns the mean of those in ``SECONDS`` after the first: a share of a processor, or of a card, is given in
    pieces, of which the shortest pass may have a whole one."""
    next(each)
    found, until = [next(each)], clock() + SECONDS
    while clock() < until:
        found.append(next(each))
    return statistics.fmean(found)
