"""The engine of an experiment's node: the embedded one, or the one that its ``engine.backend`` names."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from node.configuration import DEFAULT_ROWS, Config, chosen
from node.engines.backends import EngineParts, engine_of
from node.engines.engine import Engine
from node.engines.torch import TorchEngine
from node.events import EngineChanged, Event
from node.home import Home
from node.learner.generation.schedule import needs_own_weights
from node.policy.policy import Policy


def engine_of_node(config: Config, policy: Policy, home: Path, stack: ExitStack) -> Engine:
    """Returns the engine; ``stack`` ends its process, which has its socket and files in ``home``.

    "auto" is the embedded engine here. An engine that was named and cannot be had, or is given up, ends the run with
    ``RuntimeError``: the result would be of another condition.
    """
    rows, owns_weights = chosen(config.engine.rows, DEFAULT_ROWS), needs_own_weights(config)
    if config.engine.backend in ("auto", "torch"):
        return TorchEngine(policy, rows=rows, seed=config.seed, owns_weights=owns_weights)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    parts = EngineParts(Home(home), config, policy, rows, True, owns_weights, _must_stay, time.time)
    return engine_of(parts, stack)


def _must_stay(event: Event) -> None:
    if isinstance(event, EngineChanged) and event.backend != event.configured:
        raise RuntimeError(f"engine.backend is {event.configured!r}, and {event.backend!r} generates: {event.because}")
