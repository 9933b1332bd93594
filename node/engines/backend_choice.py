"""Which engine generates, and why: pure, and without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from node.configuration import BackendName, EngineSection
from node.engines.vllm_backend.environment import Installed

WHERE: Final[Mapping[BackendName, str]] = {
    "torch": "the embedded engine, in the learner's process",
    "process": "the embedded engine, in a process of its own that may die without harm to the run",
    "vllm": "vLLM, in a process and an environment of its own",
}

LARGE_PARAMETERS: Final = 6_000_000_000  # what is sold as 7 B


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the choice depends on, beside the settings."""

    vllm: Installed | None
    on_card: bool  # the learner computes on an NVIDIA GPU
    four_bit: bool  # the base model is in 4 bits
    parameters: int = 0  # of the model; 0 where it is not known
    in_shards: bool = False  # the learner's process has a part of the weights alone (learner.devices)


@dataclass(frozen=True, slots=True)
class BackendChoice:
    backend: BackendName
    because: str  # where it runs, and who chose it
    wanted: BackendName  # differs where what is set cannot be had


def choose_backend(section: EngineSection, facts: EngineFacts) -> BackendChoice:
    """Returns what is set, if it can be had. For "auto" it is vLLM where that was installed for the card that the
    learner uses and the model is large; a small one is held up by the host, which does less in the embedded engine
    (docs/gpu.md, by arithmetic)."""
    unfit = _unfit_for_vllm(facts)
    own: BackendName = "process" if facts.in_shards else "torch"
    if section.backend == "auto":
        could = unfit is None and facts.vllm is not None and _is_for_card(facts)
        chosen: BackendName = "vllm" if could and facts.parameters >= LARGE_PARAMETERS else own
        because = ", learner.devices above 1" if facts.in_shards else ""
        if could and chosen != "vllm":
            because += f'; "vllm" would take vLLM, which "auto" takes from {LARGE_PARAMETERS / 1e9:g} B parameters on'
        return BackendChoice(chosen, f'{WHERE[chosen]} (engine.backend = "auto"{because})', chosen)
    if section.backend == "vllm" and unfit is not None:
        return BackendChoice(own, f'{unfit} (engine.backend = "vllm")', "vllm")
    return BackendChoice(
        section.backend, f'{WHERE[section.backend]} (engine.backend = "{section.backend}")', section.backend
    )


def donors_unused(backend: BackendName, *, behind: bool, in_shards: bool) -> str | None:
    """Returns why donors cannot help an engine of ``backend``, or None. ``behind``: the engine holds other weights than
    the learner's present ones. What donors send is checked with the weights that they were given, in the learner's
    process."""
    if in_shards:
        return "learner.devices is above 1, and no process has all weights to check their samples with"
    if behind and backend != "torch":
        return (
            f'with engine.backend = "{backend}" and generation behind the learner (learner.max_staleness, '
            "objective.research.weights_behind) the learner has not the weights any more to check their samples with"
        )
    return None


def _unfit_for_vllm(facts: EngineFacts) -> str | None:
    if facts.vllm is None:
        return "vLLM is not installed (starling engine install vllm)"
    return "vLLM is not given a base model in 4 bits" if facts.four_bit else None


def _is_for_card(facts: EngineFacts) -> bool:
    return facts.on_card and facts.vllm is not None and facts.vllm.build == "cuda"
