"""How many questions a task has: few are soon learnt by heart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from node.tasks.default_swarm import DEFAULT_TASKS
from node.tasks.jsonl import JsonlTask
from node.tasks.reasoning_sets import REASONING_TASKS
from node.tasks.split import normalised
from node.tasks.task import Task

COUNTED_DRAWS: Final = 500
MANY_QUESTIONS: Final = 40_000  # of so many or more, ``COUNTED_DRAWS`` hold no two alike nineteen times in twenty
GENERATED: Final[Sequence[Task]] = (*DEFAULT_TASKS, *REASONING_TASKS)
"""Tasks of a pinned library: drawing from all of them would take five seconds, and give the same each time."""
GENERATED_COUNTS: Final[Mapping[str, int]] = MappingProxyType(  # of the others: more than ``MANY_QUESTIONS``
    {
        "spell_backward": 30_000,
        "rotate_matrix": 20_000,
        "number_sorting": 20_000,
        "basic_arithmetic": 30_000,
        "fraction_simplification": 10_000,
        "reasoning:bf": 5_000,
        "reasoning:propositional_logic": 4_000,
        "reasoning:fraction_simplification": 20_000,
        "reasoning:calendar_arithmetic": 30_000,
        "reasoning:binary_matrix": 4_000,
        "reasoning:ab": 5_000,
        "reasoning:aiw": 9_000,
        "reasoning:caesar_cipher": 800,
        "reasoning:chain_sum": 10_000,
        "reasoning:count_bits": 4_000,
        "reasoning:count_primes": 7_000,
        "reasoning:dice": 30,
        "reasoning:emoji_mystery": 20_000,
        "reasoning:graph_color": 20_000,
        "reasoning:jugs": 200,
        "reasoning:lcm": 2_000,
        "reasoning:prime_factorization": 1_000,
        "reasoning:products": 1_000,
        "reasoning:quantum_lock": 2_000,
        "reasoning:sentence_reordering": 2_000,
        "reasoning:string_splitting": 200,
        "reasoning:string_synthesis": 200,
        "reasoning:tower_of_hanoi": 40,
    }
)


def question_count(task: Task) -> int | None:
    """Returns how many questions with different texts a task has: of a data set exactly, otherwise as
    ``estimated_count`` has it."""
    if isinstance(task, JsonlTask):
        return len({normalised(str(row[task.question_field])) for row in task.rows})
    if task in GENERATED:
        return GENERATED_COUNTS.get(task.name)
    return estimated_count(task)


def estimated_count(task: Task) -> int | None:
    """Returns, to one digit, how many questions a task has by those that ``COUNTED_DRAWS`` draws hold; None where it is
    more than ``MANY_QUESTIONS``.

    D draws from n questions hold n (1 − e^(−D/n)) different ones on average. Where some questions are drawn more often
    than others, the estimate is too low.
    """
    prompts = (task.prompt(task.ref(seed)) for seed in range(COUNTED_DRAWS))
    distinct = len({normalised(prompt.question_text) for prompt in prompts})
    low, high = distinct, MANY_QUESTIONS
    if _expected_distinct(high) <= distinct:
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if _expected_distinct(middle) < distinct else (low, middle)
    return round(low, 1 - len(str(low)))


def _expected_distinct(questions: int) -> float:
    return questions * -math.expm1(-COUNTED_DRAWS / questions)
