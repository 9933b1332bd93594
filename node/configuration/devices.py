"""What a learner on several devices, or a model over several machines, cannot do, as one finding a key. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from node.configuration.sections import Config


@dataclass(frozen=True, slots=True)
class DevicesFault:
    """A setting that ``learner.devices`` above 1, or ``policy.stages`` above 0, contradicts."""

    key: str
    found: str
    remedy: str


def devices_faults(config: Config) -> Iterator[DevicesFault]:
    """Yields what stands against ``learner.devices``; nothing for one device."""
    devices = config.learner.devices
    if devices == 1:
        return None
    several = f"with learner.devices = {devices}"
    alone = "or set learner.devices = 1"
    old_weights = config.learner.max_staleness > 0 or config.objective.research.weights_behind > 0
    contradictions = (
        (
            config.engine.backend == "torch",
            "engine.backend",
            f'is "torch", which samples from the learner\'s own weights, and {several} no process has them all',
            'set engine.backend = "process" or "vllm"',
        ),
        (
            config.policy.device == "mps",
            "policy.device",
            f'is "mps", and {several} the devices are GPUs of NVIDIA or processes on the processor',
            'set policy.device = "auto"',
        ),
        (
            config.policy.four_bit is True,
            "policy.four_bit",
            f"is true, and weights in 4 bits cannot be divided {several}",
            'set policy.four_bit = "auto"',
        ),
        (
            config.learner.optimizer == "adamw8bit",
            "learner.optimizer",
            f'is "adamw8bit", whose moments cannot be divided {several}',
            'set learner.optimizer = "auto"',
        ),
        (
            config.learner.recompute is False,
            "learner.recompute",
            f"is false, and {several} layers are always recomputed",
            'set learner.recompute = "auto"',
        ),
        (
            config.objective.kl_weight > 0,
            "objective.kl_weight",
            f"needs a second copy of the policy, which there is none of {several}",
            "set objective.kl_weight = 0",
        ),
        (
            old_weights and config.evaluation.every_rounds > 0,
            "evaluation.every_rounds",
            f"is {config.evaluation.every_rounds}, and {several} the only engine holds older weights than the "
            "learner's (learner.max_staleness, objective.research.weights_behind)",
            "set evaluation.every_rounds = 0",
        ),
    )
    yield from _faults(contradictions, alone)


def stages_faults(config: Config) -> Iterator[DevicesFault]:
    """Yields what stands against ``policy.stages``; nothing where it is 0."""
    stages = config.policy.stages
    if stages == 0:
        return None
    so = f"with policy.stages = {stages}"
    research = config.objective.research
    contradictions = (
        (
            config.policy.adapter_rank == 0,
            "policy.adapter_rank",
            f"is 0, which trains every weight, and {so} an adapter alone is trained",
            'set policy.adapter_rank = "auto"',
        ),
        (
            config.policy.four_bit is True,
            "policy.four_bit",
            f"is true, and weights in 4 bits are not divided {so}",
            'set policy.four_bit = "auto"',
        ),
        (
            config.learner.devices > 1,
            "learner.devices",
            f"is {config.learner.devices}, and {so} each machine has one device",
            "set learner.devices = 1",
        ),
        (
            config.engine.backend in ("process", "vllm"),
            "engine.backend",
            f'is "{config.engine.backend}", which holds a whole model, and {so} no process does',
            'set engine.backend = "auto"',
        ),
        (
            config.learner.max_staleness > 0,
            "learner.max_staleness",
            f"is {config.learner.max_staleness}, and {so} the machines that generate are those that learn",
            "set learner.max_staleness = 0",
        ),
        (
            research.weights_behind > 0,
            "objective.research.weights_behind",
            f"is {research.weights_behind}, and {so} generation has the learner's present weights",
            "set objective.research.weights_behind = 0",
        ),
        (
            config.objective.kl_weight > 0,
            "objective.kl_weight",
            f"needs a second copy of the policy, which there is none of {so}",
            "set objective.kl_weight = 0",
        ),
    )
    yield from _faults(contradictions, "or set policy.stages = 0")


def _faults(contradictions: Iterable[tuple[bool, str, str, str]], otherwise: str) -> Iterator[DevicesFault]:
    return (
        DevicesFault(key, found, f"{remedy}, {otherwise}")
        for is_contradiction, key, found, remedy in contradictions
        if is_contradiction
    )
