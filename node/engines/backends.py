"""The engines that a learner may have, by ``engine.backend``: one row of the table each."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from node.compute_environment import compute_environment, without_compute_settings
from node.configuration import BackendName, Config, chosen
from node.engines.backend_choice import BackendChoice, EngineFacts, choose_backend, donors_unused
from node.engines.donors.donated_engine import DonatedEngine
from node.engines.donors.donor_source import SwarmDonors
from node.engines.engine import Engine
from node.engines.process.engine_child import EngineChild
from node.engines.process.engine_setup import EngineSetup
from node.engines.process.losses import EngineLoss
from node.engines.process.process_engine import EngineChange, ProcessEngine, StartedEngine
from node.engines.process.remote_engine import Patience, patience_with
from node.engines.torch import TorchEngine
from node.engines.vllm_backend.environment import environment_at, linked_packages
from node.engines.vllm_backend.processor import thread_variables
from node.engines.vllm_backend.vllm_setup import VllmSetup
from node.events import EngineChanged, Event
from node.home import Home
from node.policy.adapter import adapter_configuration
from node.policy.model_files import model_folder
from node.policy.policy import Policy
from node.policy.weight_layout import layout_of
from node.quantities import counted
from node.stages.policy import StagedPolicy
from protocol.errors import EngineLostError
from protocol.streams.lend_messages import LendTerms
from swarm.donors.donor_list import may_have_donors

VLLM_COMPILING_SECONDS: Final = 1200.0  # for the model, before it says hello


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What any engine of a learner is made from."""

    home: Home
    config: Config  # without an "auto" that costs memory
    policy: Policy  # the learner's
    rows: int
    merge_adapters: bool
    owns_weights: bool  # it must hold other weights than the learner's present ones
    report: Callable[[Event], None]
    clock: Callable[[], float]  # Unix time


def engine_of(parts: EngineParts, stack: ExitStack) -> Engine:
    """Returns the engine that is configured, or the embedded one in its place; ``stack`` ends what it starts."""
    policy = parts.policy
    if isinstance(policy, StagedPolicy):
        return _over_machines(parts, policy)
    on_card, in_shards = policy.device.type == "cuda", parts.config.learner.devices > 1
    facts = EngineFacts(environment_at(os.environ).installed(), on_card, policy.four_bit, policy.parameters, in_shards)
    choice = choose_backend(parts.config.engine, facts)
    return BACKENDS[choice.backend](parts, choice, stack)


def _in_this_process(parts: EngineParts, choice: BackendChoice, stack: ExitStack) -> Engine:
    engine = _embedded(parts, owns_weights=parts.owns_weights)
    parts.report(_event(parts, choice, EngineChange(embedded=True, running=True, because=choice.because, losses=0)))
    return _with_donors(parts, engine, engine.policy, stack)


def _over_machines(parts: EngineParts, policy: StagedPolicy) -> Engine:
    others = counted(len(policy.stages.places), "other machine")
    because = f"the embedded engine, over this machine and {others} (policy.stages)"
    choice = BackendChoice("torch", because, "torch")
    parts.report(_event(parts, choice, EngineChange(embedded=True, running=True, because=because, losses=0)))
    return _embedded(parts, owns_weights=False)


def _with_donors(parts: EngineParts, own: Engine, policy: Policy, stack: ExitStack) -> Engine:
    source = SwarmDonors(parts.home.donors, parts.home.swarm_socket, _terms(parts))
    donated = DonatedEngine(own, policy, source, report=parts.report, wall_clock=parts.clock)
    stack.callback(donated.close)
    return donated


def _terms(parts: EngineParts) -> LendTerms:
    """Returns what a donor must load to have the policy's family."""
    section = parts.config.policy
    return LendTerms(
        model=section.model,
        adapter_rank=chosen(section.adapter_rank, 0),
        four_bit=chosen(section.four_bit, False),
        chat=section.chat,
        family=parts.policy.family,
    )


def _in_its_own_process(parts: EngineParts, choice: BackendChoice, stack: ExitStack) -> Engine:
    setup = EngineSetup(
        **_process_settings(parts),
        policy=parts.config.policy.model_dump(mode="json"),
        seed=parts.config.seed,
        merge_adapters=parts.merge_adapters,
    )
    variables = compute_environment(os.environ) | _own_card(parts)
    return _process_engine(parts, choice, stack, lambda: EngineChild(setup, environment=variables), _patience(parts))


def _on_vllm(parts: EngineParts, choice: BackendChoice, stack: ExitStack) -> Engine:
    policy, config, environment = parts.policy, parts.config, environment_at(os.environ)
    setup = VllmSetup(
        **_process_settings(parts),
        model=str(model_folder(config.policy.model)),
        dtype=str(policy.dtype).removeprefix("torch."),
        family=policy.family.hex(),
        trained=tuple(layout_of(policy.trainable()).tensors),
        end_ids=policy.tokens.eos_ids,
        vocabulary=policy.tokens.vocabulary,
        width=policy.vocabulary,
        rows=parts.rows,
        seed=config.seed,
        memory_share=config.engine.memory_share,
        adapter=adapter_configuration(policy.model),
    )
    command = (str(environment.python), "-P", "-m", "node.engines.vllm_backend.vllm_process")
    code = {"PYTHONPATH": str(linked_packages(parts.home.engine_code))}
    patience = _patience(parts)
    patience = replace(patience, start=patience.start + VLLM_COMPILING_SECONDS)
    variables = without_compute_settings(os.environ) | _vllm_threads(config) | code | _own_card(parts)
    return _process_engine(parts, choice, stack, lambda: EngineChild(setup, command, variables), patience)


def _vllm_threads(config: Config) -> dict[str, str]:
    cores = os.cpu_count() or 1
    return thread_variables(
        os.environ,
        cores=cores,
        limit=config.machine.threads(cores),
        beside_learner=config.learner.max_staleness > 0,
    )


def _own_card(parts: EngineParts) -> dict[str, str]:
    """Returns the variables that give an engine the card after those of a learner in shards; none otherwise."""
    devices = parts.config.learner.devices
    if devices == 1 or parts.policy.device.type != "cuda":
        return {}
    return {"CUDA_VISIBLE_DEVICES": card_after(devices, os.environ.get("CUDA_VISIBLE_DEVICES"))}


def card_after(devices: int, visible: str | None) -> str:
    """Returns the name of the card that follows the first ``devices`` of those that CUDA_VISIBLE_DEVICES names; None
    or nothing there means all. ``node.learner.sharding.starting.check_cards`` has made sure that there is one."""
    return visible.split(",")[devices] if visible else str(devices)


def _patience(parts: EngineParts) -> Patience:
    return patience_with(parts.policy.parameters, on_cpu=parts.policy.device.type == "cpu")


def _process_settings(parts: EngineParts) -> dict[str, str]:
    """What every ``ProcessSetup`` has."""
    home = parts.home
    make_empty(home.engine_files)
    level = parts.config.log_level.upper()
    return {"socket": str(home.engine_socket), "files": str(home.engine_files), "log_level": level}


def _process_engine(
    parts: EngineParts,
    choice: BackendChoice,
    stack: ExitStack,
    start: Callable[[], StartedEngine],
    patience: Patience,
) -> Engine:
    unused = donors_unused(choice.backend, behind=parts.owns_weights, in_shards=parts.config.learner.devices > 1)
    told = f"; donors are not used: {unused}" if unused is not None and may_have_donors(parts.home.donors) else ""
    engine = ProcessEngine(
        parts.policy,
        start,
        lambda: _embedded(parts, owns_weights=True),
        rows=parts.rows,
        seed=parts.config.seed,
        files=parts.home.engine_files,
        backend=choice.backend,
        beside=bool(_own_card(parts)),
        report=lambda change: parts.report(_event(parts, choice, replace(change, because=change.because + told))),
        patience=patience,
    )
    stack.callback(engine.close)
    return engine if unused is not None else _with_donors(parts, engine, parts.policy, stack)


def make_empty(folder: Path) -> None:
    """Makes ``folder``, for its owner alone. What a learner left there that was killed is deleted: whole weights."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def _embedded(parts: EngineParts, *, owns_weights: bool) -> TorchEngine:
    """Raises ``EngineLostError`` where the learner's process has a part of the weights alone."""
    devices = parts.config.learner.devices
    if devices > 1:
        raise EngineLostError(
            f"the engine was lost again and again, and with learner.devices = {devices} none can take over in the "
            "learner's process: the learner's log has the reason",
            EngineLoss.ENDED,
        )
    return TorchEngine(
        parts.policy,
        rows=parts.rows,
        seed=parts.config.seed,
        owns_weights=owns_weights,
        merge_adapters=parts.merge_adapters,
    )


def _event(parts: EngineParts, choice: BackendChoice, change: EngineChange) -> EngineChanged:
    return EngineChanged(
        time_seconds=parts.clock(),
        backend="torch" if change.embedded else choice.backend,
        configured=choice.wanted,
        running=change.running,
        because=change.because,
        losses=change.losses,
        retry_seconds=change.retry_seconds,
    )


BACKENDS: Final[Mapping[BackendName, Callable[[EngineParts, BackendChoice, ExitStack], Engine]]] = {
    "torch": _in_this_process,
    "process": _in_its_own_process,
    "vllm": _on_vllm,
}
