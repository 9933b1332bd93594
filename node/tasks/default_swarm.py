"""The default swarm's tasks: six reasoning-gym generators, small enough for models of half a million parameters.

Each has a short question and an answer of at most nine characters; no constant answer is right more often than one
time in ten. Three are among SAPO's nine (arXiv 2509.08721): ``base_conversion``, ``basic_arithmetic`` and
``fraction_simplification``.

They are easy: words of three or four letters, one rotation of a 2 × 2 matrix, sums of two digits. Three have few
questions: 121 in ``basic_arithmetic``, 62 in ``base_conversion``, 138 in ``fraction_simplification``. There, seeds
never used in training repeat questions that were, so success shows recall as much as understanding. The other three
have thousands. Changing any line of this table makes another swarm: raise the task's version with it.
"""

from __future__ import annotations

from typing import Final

from node.tasks.reasoning import ReasoningTask

DEFAULT_TASKS: Final = (
    ReasoningTask(
        name="spell_backward",
        version=1,
        max_new_tokens=6,
        generator="spell_backward",
        generator_config={"min_word_len": 3, "max_word_len": 4, "data_file": "words3to10.txt"},
        question_template="reverse {word}=",
    ),
    ReasoningTask(
        name="rotate_matrix",
        version=1,
        max_new_tokens=10,
        generator="rotate_matrix",
        generator_config={"min_n": 2, "max_n": 2, "min_rotations": 1, "max_rotations": 1},
        question_template="turn {matrix: \n}=",
    ),
    ReasoningTask(
        name="number_sorting",
        version=1,
        max_new_tokens=12,
        generator="number_sorting",
        generator_config={
            "min_numbers": 4,
            "max_numbers": 4,
            "min_decimals": 0,
            "max_decimals": 0,
            "min_value": 0.0,
            "max_value": 9.49,
        },
        question_template="sort {direction:.3} {original_numbers:}=",
        answer_template="[{sorted_numbers:,}]",
        is_exact=True,  # its score_answer accepts numbers that are wrong by one
    ),
    ReasoningTask(
        name="basic_arithmetic",
        version=1,
        max_new_tokens=4,
        generator="basic_arithmetic",
        generator_config={
            "min_terms": 2,
            "max_terms": 2,
            "min_digits": 1,
            "max_digits": 1,
            "operators": ("+",),
            "allow_parentheses": False,
            "allow_negation": False,
            "format_style": "simple",
            "whitespace": "single",
        },
        question_template="{expression}=",
    ),
    ReasoningTask(
        name="base_conversion",
        version=1,
        max_new_tokens=8,
        generator="base_conversion",
        generator_config={"min_base": 2, "max_base": 3, "min_value": 1, "max_value": 31},
        question_template="base {source_base}>{target_base} {source_repr}=",
    ),
    ReasoningTask(
        name="fraction_simplification",
        version=1,
        max_new_tokens=8,
        generator="fraction_simplification",
        generator_config={"min_value": 1, "max_value": 12, "min_factor": 2, "max_factor": 4, "styles": ("plain",)},
        question_template="reduce {numerator}/{denominator}=",
    ),
)
