"""An engine in a process of its own beside the learner: it samples, sleeps while the learner peaks, and wakes."""

from __future__ import annotations

import math
import tempfile
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from scripts.bench.gpu.bench import Bench
from scripts.bench.gpu.engine import requests_of

if TYPE_CHECKING:
    from node.engines.engine import Sample

MODEL: Final = "builtin:wren"
PEAK_SHARE: Final = 0.6  # of the free memory, which learning takes and gives back to its allocator
LOGP_BOUND: Final = 2e-3  # nats: the same weights, and on a GPU the same code


def beside(bench: Bench) -> None:
    from node.configuration import PolicySection
    from node.engines.engine import Sampling
    from node.engines.process.engine_child import EngineChild
    from node.engines.process.engine_setup import EngineSetup
    from node.engines.process.process_engine import EngineChange, ProcessEngine
    from node.engines.torch import TorchEngine
    from node.learner.generation.engine_weights import EngineWeights
    from node.policy.policy import Policy

    dtype = "bfloat16" if bench.device.type == "cuda" else "float32"
    where = {"device": bench.device.type, "dtype": dtype, "adapter_rank": 0, "four_bit": False}
    section = PolicySection.model_validate({"model": MODEL, **where})
    policy, changes = Policy.load(section), list[EngineChange]()

    def embedded() -> TorchEngine:
        return TorchEngine(policy, rows=16, seed=0, owns_weights=True)

    with tempfile.TemporaryDirectory() as folder:
        setup = EngineSetup(
            socket=f"{folder}/engine.sock",
            files=folder,
            policy=section.model_dump(mode="json"),
            seed=0,
            merge_adapters=True,
        )
        engine = ProcessEngine(
            policy, lambda: EngineChild(setup), embedded, rows=16, seed=0, files=Path(folder), report=changes.append
        )
        try:
            weights, near = EngineWeights(engine), embedded()
            prompts, new = bench.at_scale(tiny=(1, 2), quick=(4, 24), full=(4, 48))
            requests = requests_of(prompts, 4, policy.tokens.vocabulary, 20, new)
            for version in (1, 2):
                with torch.no_grad():
                    for parameter in policy.trainable().values():
                        parameter.mul_(1.001)
                _learning_peaks(bench)
                weights.load(version, policy.trainable())
                near.load_weights(version, weights.whole())
                sampling = Sampling(temperature=0.0, seed=version)
                ours = engine.generate(requests, sampling)
                wanted = near.generate(requests, sampling)
                differs = _worst(ours, wanted)
                bench.check(f"version {version}: log-probabilities against this process's", differs, LOGP_BOUND)
                held = (version, weights.whole().target)
                bench.same(f"version {version}: the weights that it holds", engine.measured_weights(), held)
                engine.release()
            spent = bench.wall_seconds(lambda: engine.generate(requests, Sampling(1.0, seed=3)))
            bench.figure("woken, and the same again", 1e3 * spent, "ms")
            lost = [change.because for change in changes if change.embedded or not change.running]
            bench.same("processes lost", lost, [])
        finally:
            engine.close()


def _learning_peaks(bench: Bench) -> None:
    """Takes memory as learning does and gives it back to the allocator, which keeps it from other processes."""
    if bench.device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info()
        torch.empty(int(PEAK_SHARE * free_bytes), dtype=torch.uint8, device=bench.device)


def _worst(ours: list[list[Sample]], wanted: list[list[Sample]]) -> float:
    """Returns the largest difference of log-probabilities; infinite where the tokens differ."""
    worst = 0.0
    for one, other in zip(chain(*ours), chain(*wanted), strict=True):
        if one.token_ids.tolist() != other.token_ids.tolist():
            return math.inf
        worst = max(worst, float(np.abs(one.logps - other.logps).max()))
    return worst
