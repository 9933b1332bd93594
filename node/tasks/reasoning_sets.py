"""Tasks for models of half a billion to seven billion parameters, by reasoning-gym: SAPO's nine, and others.

SAPO (arXiv 2509.08721) trains on ``base_conversion``, ``basic_arithmetic``, ``arc_1d``, ``bf``,
``propositional_logic``, ``fraction_simplification``, ``decimal_arithmetic``, ``calendar_arithmetic`` and
``binary_matrix``. Settings are the library's defaults, and milder where those are beyond such models. No constant
answer is right more than three times in ten. A name begins with ``reasoning:``, since the default swarm has tasks over
some of the same generators. Changing any line here makes another task: raise its version with it.
"""

from __future__ import annotations

from typing import Any, Final

from node.tasks.reasoning import SEEDS
from node.tasks.worded import Scoring, WordedTask

PREFIX: Final = "reasoning:"
SHORT, LONG = 512, 1024  # tokens of a completion, reasoning included
GSM_SEEDS: Final = 1_000_000  # its generator keeps a list of them


def _task(
    generator: str, scoring: Scoring, tokens: int, *, seeds: int | None = None, **generator_config: Any
) -> WordedTask:
    return WordedTask(
        PREFIX + generator,
        1,
        tokens,
        generator,
        generator_config,
        scoring=scoring,
        seeds=SEEDS if seeds is None else seeds,
    )


_TEXT, _NUMBER, _LIBRARY = Scoring.TEXT, Scoring.NUMBER, Scoring.LIBRARY

SAPO_TASKS: Final = (
    _task("base_conversion", _TEXT, SHORT),
    _task("basic_arithmetic", _NUMBER, SHORT, max_terms=4, max_digits=2),
    _task("arc_1d", _TEXT, LONG, max_size=20),
    _task("bf", _TEXT, LONG),
    _task("propositional_logic", Scoring.PROPOSITION, LONG),
    _task("fraction_simplification", _LIBRARY, SHORT, max_value=100, max_factor=20, styles=("plain",)),
    _task("decimal_arithmetic", _LIBRARY, SHORT, max_terms=3, precision=6),
    _task("calendar_arithmetic", _TEXT, LONG),
    _task("binary_matrix", _TEXT, LONG, max_n=6),
)
FURTHER_TASKS: Final = (
    _task("ab", _TEXT, LONG, length=6),
    _task("aiw", _NUMBER, SHORT),
    _task("binary_alternation", _NUMBER, LONG, min_n=14, max_n=24, p_solvable=0.9),
    _task("bitwise_arithmetic", _LIBRARY, SHORT, difficulty=1),
    _task("caesar_cipher", _TEXT, LONG, max_words=8, max_rotation=5),
    _task("chain_sum", _NUMBER, SHORT, max_terms=4, max_digits=3),
    _task("color_cube_rotation", _TEXT, SHORT),
    _task("count_bits", _NUMBER, SHORT, max_n=4095),
    _task("count_primes", _NUMBER, LONG, max_n=200),
    _task("decimal_chain_sum", _NUMBER, SHORT, max_terms=4, max_digits=2, max_decimal_places=2),
    _task("cryptarithm", _LIBRARY, LONG, max_words=2),
    _task("dice", _TEXT, LONG, num_dice=2, max_dice_size=8),
    _task("emoji_mystery", _TEXT, LONG, max_words_in_sentence=12),
    _task("gcd", _NUMBER, SHORT, max_value=200),
    _task("graph_color", _LIBRARY, LONG, min_num_vertices=6, max_num_vertices=8, edge_probability=0.3),
    _task("group_anagrams", _LIBRARY, LONG, max_anagram_groups=4, max_words_per_group=3),
    _task("gsm_symbolic", _NUMBER, LONG, seeds=GSM_SEEDS),
    _task("jugs", _LIBRARY, LONG, difficulty=5),
    _task("kakurasu", _LIBRARY, LONG),
    _task("knights_knaves", _LIBRARY, LONG),
    _task("largest_island", _NUMBER, LONG, max_rows=6, max_cols=6, min_num_islands=1, min_island_size=2),
    _task("lcm", _NUMBER, SHORT, max_value=50),
    _task("leg_counting", _NUMBER, SHORT, max_animals=6),
    _task("letter_counting", _NUMBER, SHORT, min_words=10, max_words=25),
    _task("letter_jumble", _TEXT, SHORT, max_words=6, max_corruption_level=0.5),
    _task("manipulate_matrix", _TEXT, LONG, max_rows=5, max_cols=5, max_transforms=3),
    _task("mini_sudoku", _TEXT, LONG),
    _task("number_filtering", _TEXT, SHORT, max_numbers=8, max_decimals=2),
    _task("number_sorting", _TEXT, SHORT),
    _task("palindrome_generation", _LIBRARY, SHORT),
    _task("palindrome_partitioning", _LIBRARY, LONG, max_string_len=6),
    _task("path_star", _TEXT, LONG, node_range=100),
    _task("prime_factorization", _LIBRARY, SHORT),
    _task("products", _NUMBER, LONG, max_digits=3),
    _task("quantum_lock", _LIBRARY, LONG, difficulty=3),
    _task("rotate_matrix", _TEXT, LONG, max_n=5, max_rotations=3, min_rotations=1),
    _task("rotten_oranges", _NUMBER, LONG, min_n=5, max_n=9, p_oranges=0.9),
    _task("sentence_reordering", _TEXT, SHORT, max_words_in_sentence=8),
    _task("shortest_path", _LIBRARY, LONG, p_blocked=0.25),
    _task("simple_geometry", _NUMBER, SHORT),
    _task("spell_backward", _TEXT, SHORT),
    _task("spiral_matrix", _TEXT, LONG, max_n=5),
    _task("string_insertion", _TEXT, LONG),
    _task("string_manipulation", _TEXT, LONG, max_num_rules=5),
    _task("string_splitting", _TEXT, LONG),
    _task("string_synthesis", _TEXT, LONG),
    _task("survo", _TEXT, LONG),
    _task("tower_of_hanoi", _LIBRARY, LONG, max_disks=4),
    _task("word_sequence_reversal", _TEXT, SHORT),
    _task("word_sorting", _TEXT, SHORT),
)
REASONING_TASKS: Final = (*SAPO_TASKS, *FURTHER_TASKS)
