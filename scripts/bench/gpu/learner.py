"""One round of the learner: generate, one optimizer step; memory, tokens a second, and the share of what the card can.

``LEARNERS`` names what is trained. A further shape, cap or adapter is one row.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from scripts.bench.gpu.bench import Bench
from scripts.bench.gpu.engine import requests_of
from scripts.bench.gpu.shapes import body_parameters, random_policy

if TYPE_CHECKING:
    from node.engines.engine import Sample
    from node.learner.objective.batch import TrainingGroup
    from node.learner.objective.forward import Network, PassSettings
    from node.policy.policy import Policy

GIB: Final = 1 << 30
RATE: Final = 5e-3  # more than half a unit in the last place of a bf16 weight of 1, so that every weight must move


@dataclass(frozen=True)
class LearnerShape:
    """One round: ``prompts`` × ``completions`` of ``new`` tokens, trained in passes of ``batch_tokens``."""

    shape: str
    adapter_rank: int = 0  # 0: every weight is trained
    cap_bytes: int = 0  # of the card's memory; 0: all of it
    prompts: int = 16
    completions: int = 8
    prompt_tokens: int = 256
    new: int = 128
    batch_tokens: int = 16_384
    recompute: bool = False
    four_bit: bool = False


LEARNERS: Final = {
    "learner-0.5b": LearnerShape("Qwen2.5-0.5B"),
    "learner-1.5b-adapter-8gb": LearnerShape(
        "Qwen2.5-1.5B", adapter_rank=16, cap_bytes=8 * GIB, prompts=8, batch_tokens=4096, recompute=True
    ),
    "learner-7b-qlora-24gb": LearnerShape(
        "Qwen2.5-7B", adapter_rank=16, cap_bytes=24 * GIB, prompts=4, batch_tokens=2048, recompute=True, four_bit=True
    ),
}
TINY: Final = LearnerShape("tiny", prompts=2, completions=2, prompt_tokens=5, new=4, batch_tokens=64)


def learner_round(bench: Bench, name: str) -> None:
    from node.configuration import LearnerSection, ObjectiveSection
    from node.engines.engine import Sampling
    from node.engines.torch import TorchEngine
    from node.learner.objective.forward import Network, PassSettings, check_network
    from node.learner.objective.reference_policy import ReferencePolicy
    from node.learner.steps.devices import StepTask
    from node.learner.steps.optimizer import MasterAdamW
    from node.learner.steps.step import OptimizerSteps

    plan = LEARNERS[name]
    if bench.scale == "tiny":
        tiny = replace(TINY, adapter_rank=min(4, plan.adapter_rank))
        plan = replace(tiny, recompute=plan.recompute, four_bit=plan.four_bit)
    _cap(bench, plan.cap_bytes)
    policy = random_policy(
        plan.shape, bench.device, torch.bfloat16, adapter_rank=plan.adapter_rank, four_bit=plan.four_bit
    )
    network = Network.of(policy.model)
    check_network(policy.model, network, recompute=plan.recompute)
    section, objective = LearnerSection(learning_rate=RATE), ObjectiveSection()
    passes = PassSettings(plan.batch_tokens, plan.recompute)
    optimizer = MasterAdamW(policy.trainable(), section)
    reference = ReferencePolicy(policy.trainable(), objective)
    rows = plan.prompts * plan.completions
    engine = TorchEngine(policy, rows=rows, seed=0, merge_adapters=plan.cap_bytes == 0)
    requests = requests_of(plan.prompts, plan.completions, policy.tokens.vocabulary, plan.prompt_tokens, plan.new)
    before = {name: p.detach().clone() for name, p in policy.trainable().items()}
    groups = list["TrainingGroup"]()

    def generate() -> None:
        sampled = engine.generate(requests, Sampling(1.0, 0))
        engine.release()
        groups[:] = [_group(list(r.prompt_ids), s) for r, s in zip(requests, sampled, strict=True)]

    def train() -> None:
        task = StepTask(tuple(groups), passes, 1.0, plan.new, len(groups))
        found = OptimizerSteps(network, optimizer, objective, reference).take(task)
        assert found.step is not None and found.step.taken, "no step was taken"
        engine.load_weights(engine.version + 1, policy.trainable())

    bench.figure("memory of generating", bench.peak_bytes_of(generate), "B")
    bench.figure("memory of a step, the optimizer's first", bench.peak_bytes_of(train), "B")
    generating = bench.wall_seconds(generate)
    # The host's own time changes from step to step.
    training = statistics.median(bench.wall_seconds(train) for _ in range(1 if bench.scale == "tiny" else 3))
    # At least two steps: an adapter's first matrices have no gradient while its second ones are zero.
    same = [name for name, p in policy.trainable().items() if torch.equal(p, before[name])]
    bench.same("trained tensors that two steps left as they were", same, [])
    own = sum(len(c.token_ids) for group in groups for c in group.completions)
    computed = own + sum(len(group.prompt_ids) for group in groups)
    bench.figure("generated", own / generating, "tokens/s")
    bench.figure("trained, prompts included", computed / training, "tokens/s")
    head = network.head.weight.numel()
    # A trained weight costs two products for each it has in the forward pass, a frozen one costs one.
    factor = 6 if plan.adapter_rank == 0 else 4
    flops = factor * (float(computed) * body_parameters(policy) + float(own) * head)
    bench.timed("a step, against its matrix products", training, flops=flops)
    if bench.device.type == "cuda":
        bench.figure("memory reserved for it all", torch.cuda.memory_reserved(), "B")
    bench.figure("share of a step in which the card computes", bench.busy_seconds("a step", train) / training, "")
    _body_and_head(bench, network, policy, groups, passes)


def _cap(bench: Bench, cap_bytes: int) -> None:
    if cap_bytes and bench.device.type == "cuda":
        total = torch.cuda.get_device_properties(bench.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, cap_bytes / total))


def _group(prompt_ids: list[int], samples: Sequence[Sample]) -> TrainingGroup:
    from node.learner.objective.alignment import Alignment
    from node.learner.objective.batch import SELF, TrainingCompletion, TrainingGroup

    completions = []
    for index, sample in enumerate(samples):
        alignment = Alignment(np.arange(len(sample.token_ids)), sample.logps, 0)
        completions.append(TrainingCompletion(sample.token_ids, alignment, 1.0 if index % 2 else -1.0, SELF))
    tokens = sum(len(c.token_ids) for c in completions)
    return TrainingGroup(tuple(prompt_ids), tuple(completions), tokens, len(completions))


def _body_and_head(
    bench: Bench, network: Network, policy: Policy, groups: list[TrainingGroup], passes: PassSettings
) -> None:
    """Forward and backward of one micro-batch, in its two parts. The head must not cost more than the body."""
    from node.kernels.linear_logp import linear_logps
    from node.learner.objective.forward import completion_hidden, plan_micro_batches

    micro_batch = plan_micro_batches(groups, batch_tokens=passes.batch_tokens, pads_prompts=network.pads_prompts)[-1]

    def body() -> None:
        hidden, _ = completion_hidden(network, micro_batch, passes)
        hidden.sum().backward()  # type: ignore[no-untyped-call]
        _forget(policy)

    with torch.no_grad():
        hidden, targets = completion_hidden(network, micro_batch)
    hidden.requires_grad_()

    def head() -> None:
        linear_logps(hidden, network.head.weight, targets)[0].sum().backward()  # type: ignore[no-untyped-call]
        _forget(policy)
        hidden.grad = None

    of_body, of_head = bench.time("body of one pass", body), bench.time("head of one pass", head)
    if bench.device.type == "cuda" and bench.scale != "tiny":
        bench.check("head / body, time", of_head / of_body, 1.0)


def _forget(policy: Policy) -> None:
    for parameter in policy.trainable().values():
        parameter.grad = None
