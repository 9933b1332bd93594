"""The checks of an owner's machines, put together from what is loaded."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from pathlib import Path

from node.checkpoints.checkpoint_files import rounds
from node.home import Home
from node.learner.assembly.machines import OverMachines
from node.learner.objective.forward import PassSettings
from node.stages.checking import StageChecks
from node.stages.samples import Samples
from node.tasks.split import training_prompt
from node.tasks.task import Task

SEEDS = 1 << 31


def checks_of(over: OverMachines, home: Home, tasks: Mapping[str, Task]) -> StageChecks | None:
    """Returns None where memory has no room for them."""
    if over.checker is None:
        return None
    names, tokens, settings = sorted(tasks), over.policy.tokens, over.settings

    def prompt(draws: random.Random) -> list[int]:
        found = training_prompt(tasks[draws.choice(names)], draws.randrange(SEEDS))
        return tokens.prompt_ids(found.text, found.tools)

    def checkpoint_before(unix_seconds: float) -> Path | None:
        earlier = [each for each in rounds(home.checkpoints) if each.stat().st_mtime < unix_seconds]
        return max(earlier, key=lambda each: each.stat().st_mtime, default=None)

    passes = PassSettings(settings.batch_tokens, settings.recompute, settings.chunk_tokens)
    return StageChecks(
        over.policy.stages,
        Samples(over.policy, prompt, passes, random.SystemRandom()),
        over.checker,
        over.gathering,
        clock=time.monotonic,
        checkpoint_before=checkpoint_before,
    )
