"""One forward and backward pass through a head over 151,936 tokens, by one contender, in its own process.

    python -m scripts.bench.contenders.learner_head {starling,trl,chunks} {trained,frozen} THREADS

Prints one JSON object: seconds, cpu_seconds (of all threads), extra_bytes (peak resident memory above that of inputs
and libraries), and sums that are equal when contenders compute the same. Linux only. ``learner.py`` runs it with the
Python of the contender's environment.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from scripts.bench.common.process_usage import forget_peak, process_memory

VOCABULARY: Final = 151_936
SEQUENCES: Final = 16
LENGTH: Final = 256
HIDDEN: Final = 256

Head = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # hidden, weight, targets → logps, entropies


def chunks(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Plain torch, one sequence at a time; the backward pass computes the logits again."""
    parts = [
        checkpoint(plain, hidden[rows], weight, targets[rows], use_reentrant=False)
        for rows in (slice(start, start + LENGTH) for start in range(0, len(hidden), LENGTH))
    ]
    return torch.cat([logps for logps, _ in parts]), torch.cat([entropies for _, entropies in parts])


def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Plain torch; the entropy has no gradient."""
    log_p = functional.linear(hidden, weight).log_softmax(-1)
    with torch.no_grad():
        entropies = -(log_p.exp() * log_p).sum(-1)
    return log_p.gather(-1, targets[:, None])[:, 0], entropies


def head_of(contender: str) -> Head:
    if contender == "chunks":
        return chunks
    if contender == "starling":
        from node.kernels.linear_logp import linear_logps

        return linear_logps
    from trl.kernels import ChunkedLogProbFunction
    from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE

    def trl(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Calls TRL's function as ``add_fused_lm_head`` does for GRPO's outputs."""
        width, outputs = _CHUNKED_LOGPROB_CHUNK_SIZE, ("log_probs", "entropy")
        result = ChunkedLogProbFunction.apply(hidden, weight, None, targets, 1.0, width, None, 1.0, outputs)
        return result[0], result[1]

    return trl


def inputs(tokens: int, vocabulary: int, *, trained: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    seeded = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, HIDDEN, generator=seeded).requires_grad_()
    weight = torch.randn(vocabulary, HIDDEN, generator=seeded).mul_(0.1).requires_grad_(trained)
    targets = torch.randint(vocabulary, (tokens,), generator=seeded)
    return hidden, weight, targets, torch.randn(tokens, generator=seeded)


def main() -> None:
    contender, mode, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    head, trained = head_of(contender), mode == "trained"
    hidden, weight, targets, advantages = inputs(LENGTH, 8192, trained=trained)
    torch.autograd.backward(head(hidden, weight, targets)[0], advantages)  # libraries load, threads start
    hidden, weight, targets, advantages = inputs(SEQUENCES * LENGTH, VOCABULARY, trained=trained)
    forget_peak()
    before, began, began_cpu = process_memory().resident, time.perf_counter(), time.process_time()
    logps, entropies = head(hidden, weight, targets)
    torch.autograd.backward(logps, advantages)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - began_cpu
    extra = process_memory().peak - before
    sums = [float(x.detach().double().norm()) for x in (logps, entropies, hidden.grad, weight.grad) if x is not None]
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "extra_bytes": extra, "sums": sums}))


if __name__ == "__main__":
    main()
