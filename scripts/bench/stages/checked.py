"""What a check of a machine with layers takes, and by how much honest machines differ.

    python -m scripts.bench.stages.checked [--shape Qwen2.5-0.5B] [--layers 13]

A model of random weights, all of whose layers but the first are on one machine, in this process. The owner checks it as
a node does, on the processor. Differences: of a machine with as many threads as the owner, of one with another number,
of one that computes in a wider dtype, and where a GPU is there, of one that computes on it. With float32 and with
bfloat16.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import torch

from node.configuration import PolicySection
from node.fit.stages.schedule import OwnerOrder
from node.learner.memory.errors import give_back
from node.learner.objective.forward import PassSettings
from node.policy.held_layers import hold_factors, hold_layers, layers_of
from node.policy.policy import Policy
from node.stages.checking import BOUNDS, differences
from node.stages.link import StageLink
from node.stages.policy import StagedPolicy
from node.stages.samples import Samples
from node.stages.stages import Stages
from node.stages.worker import StageWorker
from scripts.bench.common.model_shapes import write_model
from scripts.bench.common.process_usage import forget_peak, process_memory
from scripts.bench.common.reporting import Figure, figures_parser, report

RANK: Final = 16
TASK: Final = "Sort these numbers, the smallest first, and write nothing else: "
WIDER: Final = {torch.float32: torch.float64, torch.bfloat16: torch.float32}


class Otherwise:
    """A machine's link that computes with another number of threads, or in a wider dtype than it answers in."""

    def __init__(self, worker: StageWorker, threads: int, dtype: torch.dtype) -> None:
        self.worker, self._threads, self._dtype = worker, threads, dtype

    def __getattr__(self, name: str) -> Any:
        def ask(*given: Any) -> Any:
            before = torch.get_num_threads()
            torch.set_num_threads(self._threads)
            try:
                answer = getattr(self.worker, name)(*given)
            finally:
                torch.set_num_threads(before)
            if name in ("forward", "backward"):
                there = answer().to(self._dtype)
                return lambda: there
            return answer.to(self._dtype) if isinstance(answer, torch.Tensor) else answer

        return ask


def section(model: Path, dtype: str, device: str = "cpu") -> PolicySection:
    return PolicySection.model_validate(
        {"model": str(model), "device": device, "dtype": dtype, "adapter_rank": RANK, "four_bit": False}
    )


@torch.no_grad()
def trained(policy: Policy) -> None:
    """Gives the factors values as after some training."""
    random_numbers = torch.Generator().manual_seed(1)
    for parameter in policy.trainable().values():
        parameter.add_(torch.randn(parameter.shape, generator=random_numbers), alpha=0.01)


def measured(model: Path, dtype: str) -> Iterator[Figure]:
    policy = Policy.without_weights(section(model, dtype))
    empty = policy.separate()
    own, machine = StageWorker(policy.separate(), model), StageWorker(policy.separate(), model)
    hold_factors(policy)
    trained(policy)
    hold_layers(policy, model, range(1), ends=True, factors=False)
    layers = range(1, own.layers_in_all)
    stages = Stages(policy.trainable(), [layers])
    staged = StagedPolicy.of(policy, 1, stages, OwnerOrder(1, 0))
    ids = policy.tokens.prompt_ids(TASK)

    def prompt(draws: random.Random) -> list[int]:
        return [*ids, *draws.choices(range(policy.tokens.vocabulary), k=64)]

    samples = Samples(staged, prompt, PassSettings(8192), random.Random(1))
    threads = torch.get_num_threads()
    kinds = ["alike", "threads", "wider", *(["a GPU"] if torch.cuda.is_available() else [])]
    for name in kinds:
        if name == "wider":
            machine.free()
            machine = StageWorker(replace(empty, dtype=WIDER[policy.dtype]), model)
        elif name == "a GPU":
            machine.free()
            machine = StageWorker(Policy.without_weights(section(model, dtype, "cuda")), model)
        link = Otherwise(machine, 3 - min(2, threads) if name == "threads" else threads, policy.dtype)
        stages.fill(0, cast("StageLink", link))
        place = stages.places[0]
        began = time.monotonic()
        seen = samples.witnessed(place)
        sampled = time.monotonic()
        give_back()
        forget_peak()
        before = process_memory().resident
        bounds = BOUNDS[policy.dtype]
        found = list(differences(seen, own, layers, place.told, bounds))
        peak, ended = process_memory().peak, time.monotonic()
        for what in ("hidden states", "hidden states in generating", "gradients of hidden states"):
            [one] = [each for each in found if each.what == what]
            yield Figure(f"{dtype}, {name}: {what}", 100 * one.found, "%", "lower", f"≤ {100 * one.most:g}")
        factors = max((each for each in found[3:]), key=lambda each: each.found)
        yield Figure(
            f"{dtype}, {name}: gradients of factors", 100 * factors.found, "%", "lower", f"≤ {100 * factors.most:g}"
        )
        if name == "alike":
            yield Figure(f"{dtype}: the sample takes", sampled - began, "s", "lower")
            yield Figure(f"{dtype}: computing it here takes", ended - sampled, "s", "lower")
            layer = sum(p.nbytes for p in layers_of(policy)[0].parameters())
            yield Figure(f"{dtype}: a layer", layer / 1e6, "MB", "lower")
            yield Figure(f"{dtype}: memory of computing it here", (peak - before) / 1e6, "MB", "lower")


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--shape", default="Qwen2.5-0.5B")
    parser.add_argument("--layers", type=int, default=13, help="the owner's one included")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / "model", options.shape, layers=options.layers)
        figures = [figure for dtype in ("float32", "bfloat16") for figure in measured(model, dtype)]
    report("stages checked", figures, as_json=options.json)


if __name__ == "__main__":
    main()
