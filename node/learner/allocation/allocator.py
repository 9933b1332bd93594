"""Which prompts a round uses. Pure in (round, seed, tasks).

Tasks take turns, and each prompt gets equally many completions. Allocators that look at what a learner can do, or at
what others say they can, did not get there sooner (docs/experiments/allocation.md).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

PROMPT_SEEDS = 1 << 53  # far more than any task has prompts; the task takes it modulo its own number


@dataclass(frozen=True, slots=True)
class Allocation:
    """One prompt to sample from."""

    task: str
    prompt_seed: int
    completions: int


def allocate(round_number: int, seed: str, tasks: Sequence[str], *, groups: int, completions: int) -> list[Allocation]:
    """Returns ``groups`` prompts of ``tasks`` with ``completions`` each.

    Equal arguments give equal allocations on every machine. ``seed`` must differ between nodes: otherwise they would
    all practise on the same prompts.
    """
    return [
        Allocation(
            _task_in_turn(round_number * groups + index, seed, tasks),
            random.Random(f"starling/prompt/{seed}/{round_number}/{index}").randrange(PROMPT_SEEDS),
            completions,
        )
        for index in range(groups)
    ]


def _task_in_turn(position: int, seed: str, tasks: Sequence[str]) -> str:
    """Returns a task by its turn. A new order is drawn after each cycle: over any stretch, counts differ by two at
    most."""
    cycle, place = divmod(position, len(tasks))
    order = sorted(tasks)
    random.Random(f"starling/tasks/{seed}/{cycle}").shuffle(order)
    return order[place]
