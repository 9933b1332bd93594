"""Judges the engine: which one generates, or would, and why."""

from __future__ import annotations

from node.api.answers import engine_line
from node.configuration import Config
from node.doctor.data_directory import RunningFacts
from node.doctor.findings import Finding, ok, warning
from node.engines.backend_choice import EngineFacts, choose_backend

CHECK = "engine"
REMEDY = "starling engine install vllm, or set engine.backend to torch or process"


def judge_engine(config: Config, running: RunningFacts, facts: EngineFacts) -> Finding:
    """Returns which engine a start would use; where a node runs, which one it uses."""
    changed = running.status.engine if running.status is not None else None
    if changed is None:
        choice = choose_backend(config.engine, facts)
        if choice.backend != choice.wanted:
            return warning(CHECK, f"a start uses the embedded engine: {choice.because}", REMEDY)
        return ok(CHECK, f"a start uses {choice.because}")
    if changed.is_as_configured:
        return ok(CHECK, engine_line(changed))
    return warning(CHECK, engine_line(changed), "look into HOME/logs/learner.log, and start the node again")
