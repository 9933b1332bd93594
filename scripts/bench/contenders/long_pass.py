"""One forward and backward pass over one long completion, in its own process.

    python -m scripts.bench.contenders.long_pass '{"shape": …, "gradients": FILE or null, …}'        (``LongPass``)

Prints one JSON object (``PassReport``). Linux only. The gradients are there, as zeros, before the pass, as in the
second and every later pass of a batch; so the memory is that of activations, of sums inside of the backward pass and of
whatever else comes and goes.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.initialization import no_init_weights

from node.learner.objective.alignment import Alignment
from node.learner.objective.batch import SELF, TrainingCompletion
from node.learner.objective.forward import MicroBatch, Network, PassSettings, completion_logps
from scripts.bench.common.process_usage import forget_peak, process_memory
from scripts.bench.common.published_shapes import config_of


@dataclass(frozen=True, kw_only=True)
class LongPass:
    """What one process does."""

    shape: str
    layers: int | None  # None: all
    prompt_tokens: int
    tokens: int  # of the completion
    dtype: str
    recompute: bool
    chunk_tokens: int | None
    threads: int
    gradients: str | None  # safetensors file to write


@dataclass(frozen=True, kw_only=True)
class PassReport:
    seconds: float
    cpu_seconds: float  # of all threads
    extra_bytes: int  # peak resident memory above that of weights, gradients and libraries
    kept_bytes: int  # that autograd keeps between forward and backward pass, parameters excluded


def random_model(shape: str, layers: int | None, dtype: torch.dtype) -> Any:
    """Returns a model whose random weights are bfloat16 numbers, the same for every ``dtype``."""
    config = AutoConfig.for_model(**config_of(shape, layers=layers))
    config.dtype = dtype
    with no_init_weights():
        model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.tie_weights()  # which comes with the initialisation that was left out
    model.to(dtype).eval()
    seeded = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                values = torch.empty(parameter.shape).normal_(0.0, 1 / math.sqrt(parameter.shape[-1]), generator=seeded)
                parameter.copy_(values.bfloat16())
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
    return model


def long_batch(prompt_tokens: int, tokens: int, vocabulary: int) -> MicroBatch:
    rng = np.random.default_rng(0)
    answer = rng.integers(0, vocabulary, tokens)
    alignment = Alignment(np.arange(tokens), np.zeros(tokens, np.float32), 0)
    prompt = tuple(rng.integers(0, vocabulary, prompt_tokens).tolist())
    return MicroBatch((prompt,), (0,), (TrainingCompletion(answer, alignment, 1.0, SELF),))


def weighted_loss(logps: Tensor) -> Tensor:
    """Returns a mean of the log-probabilities with weights of both signs, as advantages are."""
    weights = torch.linspace(-1, 1, len(logps)).cos() - 0.5
    return (logps * weights).sum() / len(logps)


def with_kept_bytes(forward: Callable[[], Tensor], *, excluded: Iterable[Tensor]) -> tuple[Tensor, int]:
    """Returns the result of ``forward``, and the bytes of distinct storage that autograd holds for its backward pass.

    Those of ``excluded`` are not counted.
    """
    inputs = {tensor.untyped_storage().data_ptr() for tensor in excluded}
    held: dict[int, int] = {}  # address → bytes; what is held is not freed, so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor.detach()  # the tensor itself may hold the graph that holds it

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    return result, sum(size for address, size in held.items() if address not in inputs)


def run(asked: LongPass) -> PassReport:
    model = random_model(asked.shape, asked.layers, getattr(torch, asked.dtype))
    network = Network.of(model)
    passes = PassSettings(1, asked.recompute, asked.chunk_tokens)
    vocabulary = len(network.head.weight)

    def forward(batch: MicroBatch) -> Tensor:
        return weighted_loss(completion_logps(network, batch, passes)[0])

    forward(long_batch(8, 64, vocabulary)).backward()  # type: ignore[no-untyped-call]  # libraries load, threads start
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter).add_(0)  # written to, so that it is resident
    batch = long_batch(asked.prompt_tokens, asked.tokens, vocabulary)
    forget_peak()
    before, began, began_cpu = process_memory().resident, time.perf_counter(), time.process_time()
    loss, kept = with_kept_bytes(lambda: forward(batch), excluded=model.parameters())
    loss.backward()  # type: ignore[no-untyped-call]
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - began_cpu
    extra = process_memory().peak - before
    if asked.gradients is not None:
        save_file({name: p.grad for name, p in model.named_parameters()}, Path(asked.gradients))
    return PassReport(seconds=seconds, cpu_seconds=cpu_seconds, extra_bytes=extra, kept_bytes=kept)


def main() -> None:
    asked = LongPass(**json.loads(sys.argv[1]))
    torch.set_num_threads(asked.threads)
    print(json.dumps(asdict(run(asked))))


if __name__ == "__main__":
    main()
