"""The engines that a learner may have, by ``engine.backend``: one row of the table each."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node.configuration import BackendName, Config
from node.engines.backend_choice import choose_backend
from node.engines.engine import Engine
from node.engines.process.engine_child import EngineChild
from node.engines.process.engine_process import EngineSetup
from node.engines.process.process_engine import EngineChange, ProcessEngine
from node.engines.process.remote_engine import patience_with
from node.engines.torch import TorchEngine
from node.events import EngineChanged, Event
from node.home import Home
from node.policy.policy import Policy


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
    """Returns the engine that is configured; ``stack`` ends what it starts."""
    return BACKENDS[choose_backend(parts.config.engine).backend](parts, stack)


def _in_this_process(parts: EngineParts, stack: ExitStack) -> Engine:
    engine = _embedded(parts, owns_weights=parts.owns_weights)
    because = choose_backend(parts.config.engine).because
    parts.report(_event(parts, EngineChange(embedded=True, running=True, because=because, losses=0)))
    return engine


def _in_its_own_process(parts: EngineParts, stack: ExitStack) -> Engine:
    home, config = parts.home, parts.config
    make_empty(home.engine_files)
    setup = EngineSetup(
        socket=str(home.engine_socket),
        files=str(home.engine_files),
        policy=config.policy.model_dump(mode="json"),
        seed=config.seed,
        merge_adapters=parts.merge_adapters,
        log_level=config.log_level.upper(),
    )
    engine = ProcessEngine(
        parts.policy,
        lambda: EngineChild(setup),
        lambda: _embedded(parts, owns_weights=True),
        rows=parts.rows,
        seed=config.seed,
        files=home.engine_files,
        report=lambda change: parts.report(_event(parts, change)),
        patience=patience_with(parts.policy.parameters, on_cpu=parts.policy.device.type == "cpu"),
    )
    stack.callback(engine.close)
    return engine


def make_empty(folder: Path) -> None:
    """Makes ``folder``, for its owner alone. What a learner left there that was killed is deleted: whole weights."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def _embedded(parts: EngineParts, *, owns_weights: bool) -> TorchEngine:
    return TorchEngine(
        parts.policy,
        rows=parts.rows,
        seed=parts.config.seed,
        owns_weights=owns_weights,
        merge_adapters=parts.merge_adapters,
    )


def _event(parts: EngineParts, change: EngineChange) -> EngineChanged:
    configured = parts.config.engine.backend
    return EngineChanged(
        time_seconds=parts.clock(),
        backend="torch" if change.embedded else configured,
        configured=configured,
        running=change.running,
        because=change.because,
        losses=change.losses,
        retry_seconds=change.retry_seconds,
    )


BACKENDS: Final[Mapping[BackendName, Callable[[EngineParts, ExitStack], Engine]]] = {
    "torch": _in_this_process,
    "process": _in_its_own_process,
}
