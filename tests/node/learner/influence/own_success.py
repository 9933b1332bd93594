"""Own groups of a learner with a given success, drawn from a seed."""

from __future__ import annotations

from random import Random

from node.learner.influence.watch import Groups

TASKS = 6


def own_groups(rng: Random, success: float, groups: int) -> Groups:
    """Returns one round's groups of four; some questions are easier than others."""
    made = []
    for _ in range(groups):
        of_prompt = rng.betavariate(max(success, 0.01), max(1 - success, 0.01))
        made.append((f"task-{rng.randrange(TASKS)}", [float(rng.random() < of_prompt) for _ in range(4)]))
    return made
