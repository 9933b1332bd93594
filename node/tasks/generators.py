"""reasoning-gym's ``create_dataset``, which imports only generators that may be a task, and the audit that says which.

``import reasoning_gym`` imports all of its hundred generators, and with them matplotlib and sympy: over a second of CPU
time and a hundred megabytes in every process that makes prompts or scores answers. Its packages are therefore imported
here without running their ``__init__``, and these modules are kept out of ``sys.modules``, so that other code that
imports reasoning-gym by its name gets the whole library.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

LIBRARY: Final = "reasoning_gym"

# The audit of reasoning-gym 0.1.25. Its ``score_answer`` gets a stranger's text, so it must evaluate nothing, end soon
# on any text of 2000 characters, and give full marks to right answers alone. The same seed must give the same entry in
# every process, whatever was generated before. Each generator → the library's package that contains it.

# Their ``score_answer`` was read, and passes.
AUDITED: Final = {
    "base_conversion": "algorithmic",
    "basic_arithmetic": "arithmetic",
    "bitwise_arithmetic": "arithmetic",  # evaluates its own question, and reads the answer by ``int``
    "cryptarithm": "algorithmic",  # splits by "," and "=", reads digits by ``int``, and adds up: several are right
    "decimal_arithmetic": "arithmetic",
    "fraction_simplification": "arithmetic",
    "graph_color": "algorithmic",  # ``json.loads``, then one look-up for each vertex and edge of the question
    "group_anagrams": "algorithmic",  # ``json.loads``, sorted, and compared as a whole
    "jugs": "algorithmic",  # ``json.loads``, then one addition for each move
    "kakurasu": "games",  # reads the characters 0 and 1 alone, and adds up rows and columns
    "knights_knaves": "logic",
    "number_sorting": "algorithmic",  # full marks for numbers that are wrong by one: compare the text too
    "palindrome_generation": "algorithmic",
    "palindrome_partitioning": "algorithmic",  # ``json.loads``, and compared as a set
    "prime_factorization": "arithmetic",
    "quantum_lock": "graphs",  # takes the letters A, B and C; one operation each, numbers of at most 3 ** 2000
    "rotate_matrix": "algorithmic",
    "shortest_path": "graphs",
    "spell_backward": "algorithmic",
    "tower_of_hanoi": "games",  # each line by one pattern and three ``int``; any illegal move ends it
}
# Scored here, by one text or number that is right: their ``score_answer`` evaluates the answer as code, is too lenient
# or too strict, or was not read.
COMPARED: Final = {
    "ab": "algorithmic",
    "aiw": "logic",
    "arc_1d": "arc",
    "bf": "code",
    "binary_alternation": "algorithmic",
    "binary_matrix": "algorithmic",  # ``eval`` of the answer
    "caesar_cipher": "algorithmic",
    "calendar_arithmetic": "arithmetic",
    "chain_sum": "arithmetic",
    "color_cube_rotation": "cognition",
    "count_bits": "arithmetic",
    "count_primes": "algorithmic",
    "decimal_chain_sum": "arithmetic",
    "dice": "arithmetic",
    "emoji_mystery": "games",
    "gcd": "arithmetic",
    "gsm_symbolic": "arithmetic.gsm_symbolic",  # takes the first number, and ignores its sign
    "largest_island": "graphs",
    "lcm": "arithmetic",
    "leg_counting": "arithmetic",
    "letter_counting": "algorithmic",
    "letter_jumble": "algorithmic",
    "manipulate_matrix": "algorithmic",
    "mini_sudoku": "games",
    "number_filtering": "algorithmic",
    "path_star": "graphs",
    "products": "arithmetic",
    "propositional_logic": "logic",  # 2ⁿ rows for n names, any text being a name: ``is_conclusion`` looks first
    "rotten_oranges": "algorithmic",
    "sentence_reordering": "algorithmic",
    "simple_geometry": "geometry",
    "spiral_matrix": "algorithmic",  # ``eval`` of the answer
    "string_insertion": "algorithmic",  # ``eval`` of the answer
    "string_manipulation": "algorithmic",
    "string_splitting": "algorithmic",
    "string_synthesis": "algorithmic",
    "survo": "games",  # one puzzle in a hundred has a second solution, which counts as wrong
    "word_sequence_reversal": "algorithmic",
    "word_sorting": "algorithmic",
}
# Read, and refused: every other generator of this version.
REFUSED: Final = {
    "acre": "makes all its entries at once, and a constant answer of three is right too often",
    "advanced_geometry": "computes by sympy, a hundred megabytes in every process that scores",
    "arc_agi": "its boards are another package's, whose version is in no hash",
    "boxnet": "a plan that tries every move gets full marks",
    "circuit_logic": "a constant answer is right half of the time",
    "codeio": "executes programs of a data file, and its entries depend on the process's hash seed",
    "coin_flip": "a fraction such as 1e9999999 is written out as an integer",
    "complex_arithmetic": "full marks for nan",
    "composite": "a mixture of other generators",
    "countdown": "evaluates the answer",
    "course_schedule": "a constant answer is right more than half of the time",
    "family_relationships": "entries depend on what was generated before",
    "figlet_font": "its questions are another package's drawings, whose version is in no hash",
    "futoshiki": "an entry may take seconds",
    "game_of_life": "full marks for answers with rows or columns too many",
    "game_of_life_halting": "full marks for any text where the answer is True",
    "intermediate_integration": "evaluates the answer",
    "isomorphic_strings": "entries depend on the process's hash seed",
    "knight_swap": "an entry may take seconds",
    "list_functions": "some entries draw from the process's own random numbers",
    "mahjong_puzzle": "a constant answer is right more than a third of the time",
    "maze": "a constant answer is right half of the time",
    "modulo_grid": "several rules fit, and one is right",
    "n_queens": "evaluates the answer, and many answers are right",
    "needle_haystack": "imports the whole library at each entry",
    "number_format": "its right answers carry rounding noise, and nearly right ones get full marks",
    "number_sequence": "several continuations fit, and one is right",
    "polynomial_equations": "its questions are written by sympy, whose version is in no hash",
    "polynomial_multiplication": "evaluates the answer",
    "pool_matrix": "numbers wrong by one in a hundred get full marks",
    "power_function": "an answer such as 1e9999999 is written out",
    "puzzle24": "evaluates the answer",
    "ransom_note": "entries depend on the process's hash seed",
    "rearc": "questions of up to 3,800 characters, and one may take a tenth of a second",
    "rectangle_count": "a small picture may be made of other rectangles, and a large one takes 6,800 characters",
    "rubiks_cube": "an answer such as U99999999 is written out",
    "rush_hour": "an answer such as A+99999999 is carried out step by step",
    "self_reference": "a constant answer is right more than a third of the time",
    "simple_equations": "its questions are written by sympy, whose version is in no hash",
    "simple_integration": "evaluates the answer",
    "sokoban": "an entry may take seconds",
    "sudoku": "an entry may take a quarter of a second; mini_sudoku does not",
    "syllogism": "a constant answer is right more than half of the time",
    "time_intervals": "its entries depend on the installed table of time zones",
    "tsumego": "other stones may be captured as well, and one move is right",
    "word_ladder": "remembers every pair of words, and so has few seeds",
    "zebra_puzzles": "needs pycosat, and an entry takes a quarter of a second",
}

_lock = threading.Lock()
_ours: dict[str, ModuleType] = {}  # the library's modules imported here, by full name


def create_dataset(generator: str, **config: Any) -> Any:
    """Returns the data set of one generator of ``AUDITED`` or ``COMPARED``. Its first call imports that generator."""
    with _lock, _library_is_ours():
        _import_generator(generator)
        created = sys.modules[f"{LIBRARY}.factory"].create_dataset(generator, **config)  # may read the library's files
        created[0]  # some import or read the rest at their first entry
        return created


def default_parameters(generator: str) -> dict[str, Any]:
    """Returns the parameters of a generator of ``AUDITED`` or ``COMPARED`` with the library's defaults, by name."""
    with _lock, _library_is_ours():
        _import_generator(generator)
        _, config_type = sys.modules[f"{LIBRARY}.factory"].DATASETS[generator]
        return parameters_of(config_type())


def parameters_of(config: Any) -> dict[str, Any]:
    """Returns the fields of a data set's configuration, less what says which entry is which."""
    return {name: value for name, value in dataclasses.asdict(config).items() if name not in ("seed", "size")}


def _import_generator(generator: str) -> None:
    _import(f"{LIBRARY}.{(AUDITED | COMPARED)[generator]}.{generator}")


@contextmanager
def _library_is_ours() -> Iterator[None]:
    """Within the context ``sys.modules`` has our modules of the library; outside it has those of other code."""
    others = _taken_out()
    sys.modules.update(_ours)
    try:
        yield
    finally:
        _ours.update(_taken_out())
        sys.modules.update(others)


def _taken_out() -> dict[str, ModuleType]:
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == LIBRARY}


def _import(module: str) -> None:
    """Imports a module of the library, its packages without their ``__init__``, and lets none of them print."""
    parts = module.split(".")
    for package in (".".join(parts[:depth]) for depth in range(1, len(parts))):
        if package not in sys.modules:
            spec = importlib.util.find_spec(package)
            assert spec is not None
            sys.modules[package] = importlib.util.module_from_spec(spec)
    importlib.import_module(module)
    for name, imported in sys.modules.items():
        if name.partition(".")[0] == LIBRARY:
            vars(imported)["print"] = _print_nothing  # its compiler for ``bf`` prints dots


def _print_nothing(*_values: object, **_options: object) -> None:
    pass
