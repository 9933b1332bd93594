"""The default swarm's tasks: six reasoning-gym generators, small enough for models of half a million parameters.

Each has a short question and an answer of at most eleven characters; no constant answer is right more often than one
time in ten. Each has more than 20,000 questions, of which one in eight is held out by its text (``split``). Two are
among SAPO's nine (arXiv 2509.08721), ``basic_arithmetic`` and ``fraction_simplification``.

They are easy: words of three to six letters, a 2 × 2 matrix turned by quarters, sums and differences of numbers up to
100. Changing any line of this table makes another swarm: raise the task's version with it.
"""

from __future__ import annotations

from typing import Final

from node.tasks.reasoning import ReasoningTask

_NUMBERS: Final = {"min_numbers": 4, "max_numbers": 5, "min_decimals": 0, "max_decimals": 0, "min_value": 0.0}
DEFAULT_TASKS: Final = (
    ReasoningTask(
        name="spell_backward",
        version=2,
        max_new_tokens=8,
        generator="spell_backward",
        generator_config={"min_word_len": 3, "max_word_len": 6, "data_file": "words3to10.txt"},
        question_template="reverse {word}=",
        is_exact=True,  # its score_answer accepts more letters after six right ones
    ),
    ReasoningTask(
        name="rotate_matrix",
        version=2,
        max_new_tokens=10,
        generator="rotate_matrix",
        generator_config={"min_n": 2, "max_n": 2, "min_rotations": 1, "max_rotations": 3},
        question_template="turn {num_rotations} {matrix: \n}=",
    ),
    ReasoningTask(
        name="number_sorting",
        version=2,
        max_new_tokens=14,
        generator="number_sorting",
        generator_config={**_NUMBERS, "max_value": 9.49},
        question_template="sort {direction:.3} {original_numbers:}=",
        answer_template="[{sorted_numbers:,}]",
        is_exact=True,  # its score_answer accepts numbers that are wrong by one
    ),
    ReasoningTask(
        name="number_filtering",
        version=1,
        max_new_tokens=14,
        generator="number_filtering",
        generator_config={**_NUMBERS, "max_value": 9.0},
        question_template="{operation} {filter_value}: {original_numbers:}=",
        answer_template="[{result:,}]",
        is_exact=True,
    ),
    ReasoningTask(
        name="basic_arithmetic",
        version=2,
        max_new_tokens=6,
        generator="basic_arithmetic",
        generator_config={
            "min_terms": 2,
            "max_terms": 2,
            "min_digits": 2,
            "max_digits": 2,
            "operators": ("+", "-"),
            "allow_parentheses": False,
            "allow_negation": False,
            "format_style": "simple",
            "whitespace": "single",
        },
        question_template="{expression}=",
    ),
    ReasoningTask(
        name="fraction_simplification",
        version=2,
        max_new_tokens=9,
        generator="fraction_simplification",
        generator_config={"min_value": 11, "max_value": 250, "min_factor": 2, "max_factor": 3, "styles": ("plain",)},
        question_template="reduce {numerator}/{denominator}=",
    ),
)
