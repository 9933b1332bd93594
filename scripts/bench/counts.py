"""What can be counted, so that it is the same on every machine: bytes, values sent, operations, bytes kept for a step.

    python -m scripts.bench.counts [--json]

A rollout group on the wire, as in ``bench.wire``. A sparse update and a lossless diff of a million weights. One learner
step of builtin:wren on sixteen groups of drawn tokens: floating-point operations, torch operators, and the bytes that
autograd keeps between the forward and the backward pass. A pass of the embedded engine over the same prompts, likewise.
Products are torch's own on every processor, as the engine has them on Intel's: oneDNN's are one operator where torch's
are two, and no operations are counted in them. Nothing is timed; seconds, and the same figures each time. A test
compares them with the record.
"""

from __future__ import annotations

from typing import Any, Final
from unittest.mock import patch

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from node.configuration import LearnerSection, ObjectiveSection, PolicySection
from node.engines.engine import GenerationRequest, Sampling
from node.engines.torch import TorchEngine
from node.kernels import products
from node.kernels.sparse_update_kernels import encode_update_fast
from node.learner.objective.alignment import Alignment
from node.learner.objective.batch import SELF, TrainingCompletion, TrainingGroup
from node.learner.objective.forward import WHOLE, Network, completion_logps, plan_micro_batches
from node.learner.objective.reference_policy import ReferencePolicy
from node.learner.steps.devices import StepTask
from node.learner.steps.optimizer import MasterAdamW
from node.learner.steps.step import OptimizerSteps
from node.policy.policy import Policy
from protocol.identity import NodeKey
from protocol.weights.sparse_update import decode_update
from protocol.weights.tensor_layout import TensorLayout
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.contenders.long_pass import with_kept_bytes
from scripts.bench.weight_diff import blob_bytes, stepped, tensors_of
from scripts.bench.wire import group_of, sizes, typical_completion

WEIGHTS: Final = 1 << 20
GROUPS: Final = 16
COMPLETIONS: Final = 4
TOKENS: Final = 12  # of a prompt and of a completion
WIRE_GROUPS: Final = 8


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators that torch dispatches."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def main() -> None:
    options = figures_parser(__doc__).parse_args()
    report("counts", counted(), as_json=options.json)


def counted() -> list[Figure]:
    with patch.object(products, "mkl_suits_processor", lambda: True):
        return [*_wire(), *_sparse_update(), *_diff(), *_learner_step(), *_decoding()]


def _wire() -> list[Figure]:
    return sizes(
        NodeKey(bytes(32)), "group", [group_of(typical_completion, seed) for seed in range(WIRE_GROUPS)], bar=None
    )


def _sparse_update() -> list[Figure]:
    layout = TensorLayout.of({"matrix": (1024, WEIGHTS // 1024)})
    deltas = [torch.from_numpy(np.random.default_rng(0).normal(size=WEIGHTS).astype(np.float32))]
    blob = encode_update_fast(layout, [torch.zeros(WEIGHTS)], deltas, decay=0.95, kept=64)
    sent = sum(len(tensor.indices) for tensor in decode_update(blob, layout))
    return [
        Figure("sparse update: bytes", len(blob), "bytes", "lower"),
        Figure("sparse update: values sent", sent, "", "higher"),
    ]


def _diff() -> list[Figure]:
    random = np.random.default_rng(0)
    base = [random.normal(size=WEIGHTS).astype(np.float32).view(np.uint16)[1::2].copy()]
    layout = TensorLayout.of({"matrix": (WEIGHTS,)})
    size = blob_bytes(layout, tensors_of(base), tensors_of(stepped(base, random)))
    return [Figure("lossless diff, 1 % changed: bytes", size, "bytes", "lower")]


def _policy() -> Policy:
    section = PolicySection(model="builtin:wren", device="cpu", dtype="float32", adapter_rank=0, four_bit=False)
    return Policy.load(section)


def _prompts(policy: Policy) -> list[list[int]]:
    random = np.random.default_rng(0)
    return [random.integers(2, policy.tokens.vocabulary, TOKENS).tolist() for _ in range(GROUPS)]


def _learner_step() -> list[Figure]:
    policy, random = _policy(), np.random.default_rng(1)
    network = Network.of(policy.model, policy.tokens.vocabulary)

    def completion(advantage: float) -> TrainingCompletion:
        alignment = Alignment(np.arange(TOKENS), np.full(TOKENS, -2.0, np.float32), 0)
        return TrainingCompletion(random.integers(2, policy.tokens.vocabulary, TOKENS), alignment, advantage, SELF)

    groups = tuple(
        TrainingGroup(
            tuple(prompt),
            tuple(completion(1.0 - 2.0 * (n % 2)) for n in range(COMPLETIONS)),
            COMPLETIONS * TOKENS,
            COMPLETIONS,
        )
        for prompt in _prompts(policy)
    )
    [micro_batch] = plan_micro_batches(groups, batch_tokens=8192)
    parameters = policy.trainable().values()
    _, kept = with_kept_bytes(lambda: completion_logps(network, micro_batch)[0].sum(), excluded=parameters)
    objective = ObjectiveSection()
    optimizer = MasterAdamW(policy.trainable(), LearnerSection(learning_rate=1e-4))
    steps = OptimizerSteps(network, optimizer, objective, ReferencePolicy(policy.trainable(), objective))
    with FlopCounterMode(display=False) as flops, Operators() as operators:
        steps.take(StepTask(groups, WHOLE, 1.0, TOKENS, len(groups)))
    return [
        Figure("learner step: floating-point operations", flops.get_total_flops(), "", "lower"),
        Figure("learner step: operators", operators.count, "", "lower"),
        Figure("learner step: bytes kept for the backward pass", kept, "bytes", "lower"),
    ]


def _decoding() -> list[Figure]:
    policy = _policy()
    engine = TorchEngine(policy, rows=GROUPS * COMPLETIONS, seed=0, drafts=False, adaptive_threads=False)
    requests = [GenerationRequest(prompt, COMPLETIONS, TOKENS) for prompt in _prompts(policy)]
    with Operators() as operators:
        samples = engine.generate(requests, Sampling(1.0, seed=0))
    passes = max(len(sample.token_ids) for group in samples for sample in group)
    return [Figure("decoding: operators a pass", operators.count / passes, "", "lower")]


if __name__ == "__main__":
    main()
