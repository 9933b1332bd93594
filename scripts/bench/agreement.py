"""How far an engine's log-probabilities are from the learner's, of the same tokens under the same weights.

    python -m scripts.bench.agreement [--samples 384] [--engines torch process] [--models wren robin finch] [--json]

Every model answers prompts of the default tasks, four times each. The learner's own pass then scores the answers, as
before its step. For each engine and precision: mean |Δ log p| and KL a token, as ``node/engines/agreement.py`` defines
them and a node reports them of every round. An engine in a process gets its weights in bfloat16, whatever the learner
computes in; "vllm" needs ``starling engine install vllm``. In 4 bits the base is, under an adapter of rank 16.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from node.configuration import Config
from node.engines.agreement import agreement_bound
from node.engines.backends import EngineParts, engine_of
from node.engines.engine import Sample, Sampling
from node.home import Home
from node.learner.generation.engine_weights import EngineWeights
from node.learner.objective.alignment import Alignment
from node.learner.objective.batch import SELF, TrainingCompletion, TrainingGroup
from node.learner.objective.forward import Network, completion_logps, plan_micro_batches
from node.policy.policy import Policy
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.try_vllm import COMPLETIONS, requests_of, sampled_by

PRECISIONS: Final[dict[str, dict[str, Any]]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "4 bits": {"dtype": "float32", "four_bit": True, "adapter_rank": 16},
}
"""What an engine in a process is measured with is the first: its weights are in bfloat16 anyway."""


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--samples", type=int, default=384, help="completions of each model (default 384)")
    parser.add_argument("--engines", nargs="+", default=["torch", "process"], metavar="ENGINE")
    parser.add_argument("--models", nargs="+", default=["wren", "robin", "finch"], metavar="MODEL")
    options = parser.parse_args()
    found: list[Figure] = []
    for engine in options.engines:
        for precision in PRECISIONS if engine == "torch" else ("float32",):
            found += measured(engine, precision, options.models, options.samples)
    report("agreement", found, as_json=options.json)


def measured(engine: str, precision: str, models: Sequence[str], samples: int) -> list[Figure]:
    """Returns the figures of one engine and precision: for the model that is furthest off."""
    gaps, kls = [], []
    for model in models:
        settings = {"model": f"builtin:{model}", "device": "cpu", "adapter_rank": 0, "four_bit": False}
        settings |= PRECISIONS[precision]
        config = Config.model_validate({"policy": settings, "engine": {"backend": engine}})
        differences = np.array(list(log_ratios(config, samples)))
        gaps.append(float(np.abs(differences).mean()))
        kls.append(float((np.expm1(differences) - differences).mean()))
    dtype = str(PRECISIONS[precision]["dtype"])
    bound = agreement_bound(engine, dtype=dtype, four_bit=precision == "4 bits")
    name = f"{engine}, {precision}"
    return [
        Figure(f"{name}: mean difference of log p", max(gaps), "nats", "lower"),
        Figure(f"{name}: KL a token", max(kls), "nats", "lower", f"≤ {bound:g}"),
    ]


def log_ratios(config: Config, samples: int) -> Iterator[float]:
    """Yields log π_θ − log μ of every token that the configured engine samples."""
    policy = Policy.load(config.policy)
    requests = requests_of(policy, samples)
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="starling-agreement-") as folder:
        merges = not policy.four_bit
        parts = EngineParts(Home(Path(folder)), config, policy, 64, merges, False, lambda event: None, time.time)
        engine = engine_of(parts, stack)
        EngineWeights(engine).load(1, policy.weights())
        sampled = sampled_by(engine, requests, Sampling(1.0, seed=7))
    network = Network.of(policy.model, policy.tokens.vocabulary)
    groups = [
        TrainingGroup(tuple(request.prompt_ids), tuple(map(_completion, sampled[first : first + COMPLETIONS])), 0, 0)
        for first, request in zip(range(0, len(sampled), COMPLETIONS), requests, strict=True)
    ]
    for micro_batch in plan_micro_batches(groups, batch_tokens=8192, pads_prompts=network.pads_prompts):
        with torch.no_grad():
            logps, _ = completion_logps(network, micro_batch)
        behaviour = np.concatenate([each.alignment.behaviour_logps for each in micro_batch.completions])
        yield from (logps.double().numpy() - behaviour).tolist()


def _completion(sample: Sample) -> TrainingCompletion:
    ids = sample.token_ids
    return TrainingCompletion(ids, Alignment(np.arange(len(ids)), sample.logps, 0), 1.0, SELF)


if __name__ == "__main__":
    main()
