"""Which prompts this round, and how many completions each. A pure function of (round, seed, configuration).

Tasks take turns in an order drawn anew whenever all have had one, so that over any stretch of groups the counts of two
tasks differ by two at most; prompt seeds are uniform. A policy that looks at the learner's success belongs here.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

PROMPT_SEEDS = 1 << 53  # far more than any task has prompts; the task takes it modulo its own number


@dataclass(frozen=True, slots=True)
class Allocation:
    """One prompt to be sampled from."""

    task: str
    prompt_seed: int
    completions: int


def allocate(round_number: int, seed: str, tasks: Sequence[str], *, groups: int, completions: int) -> list[Allocation]:
    """``groups`` allocations over ``tasks``. Equal arguments give equal allocations, on every machine.

    ``seed`` is to differ between nodes, or they would all practise on the same prompts.
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
    cycle, place = divmod(position, len(tasks))
    order = sorted(tasks)
    random.Random(f"starling/tasks/{seed}/{cycle}").shuffle(order)
    return order[place]
