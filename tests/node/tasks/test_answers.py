"""Finding and comparing answers: which part of a completion counts, and no text costs more than its length."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.tasks.answers import (
    BOX_CHARACTERS,
    AnswerMark,
    FoundAnswer,
    boxed_answer,
    final_answer,
    is_number,
    is_same,
    is_same_number,
    is_same_text,
    number_in,
    reference_answer,
    tagged_answer,
)
from node.tasks.worded import is_conclusion
from tests.examples import examples


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("so <answer>42</answer>", "42"),
        ("<answer>1</answer> no, <answer>\n 2 3\n4 5 \n</answer> done", "2 3\n4 5"),
        ("<think><answer>1</answer></think><answer>2</answer>", "2"),
        ("<answer><answer>3</answer>", "3"),
        ("<answer>1</answer> or <answer>2", "1"),
        ("</answer><answer>1", None),
        ("<answer>1", None),
        ("1</answer>", None),
        ("<ANSWER>1</ANSWER>", None),
        ("42", None),
        ("", None),
        ("<answer></answer>", ""),
    ],
)
def test_the_last_closed_tags_hold_the_answer(completion: str, answer: str | None) -> None:
    assert tagged_answer(completion) == answer


@pytest.mark.parametrize(
    ("completion", "found"),
    [
        ("5, \\boxed{6} and #### 7: <answer>8 km</answer> 9", FoundAnswer("8 km", AnswerMark.TAGS)),
        ("5, \\boxed{6} and\n#### 7\n9", FoundAnswer("6", AnswerMark.BOX)),
        ("5 and\n#### $7,000.\nor 9", FoundAnswer("$7,000.", AnswerMark.HASHES)),
        ("#### 1\n#### 2", FoundAnswer("2", AnswerMark.HASHES)),
        ("#### Step 3: add\nThe sum is 12.", FoundAnswer("12", AnswerMark.NUMBER)),
        ("it costs $1,234.50.", FoundAnswer("1234.5", AnswerMark.NUMBER)),
        ("from 3 to -5", FoundAnswer("-5", AnswerMark.NUMBER)),
        ("a range of 3-5", FoundAnswer("5", AnswerMark.NUMBER)),
        ("\\boxed{\\frac{1}{2}} of it", FoundAnswer("\\frac{1}{2}", AnswerMark.BOX)),
        ("\\boxed{1} then \\boxed{2", FoundAnswer("2", AnswerMark.NUMBER)),
        ("room b2", None),
        ("none", None),
        ("", None),
    ],
)
def test_the_final_answer_is_found_by_tags_then_box_then_hashes_then_the_last_number(
    completion: str, found: FoundAnswer | None
) -> None:
    assert final_answer(completion) == found


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", "42"),
        ("$1,080.00", "1080"),
        ("1{,}080", "1080"),
        ("12\\,345", "12345"),
        ("+7", "7"),
        ("-0.50", "-0.5"),
        ("\N{MINUS SIGN}3", "-3"),
        ("-0", "0"),
        ("007", "7"),
        (".5", "0.5"),
        ("3.", "3"),
        ("42 apples", "42"),
        ("x = 5", "5"),
        ("1,2", None),
        ("12,34", None),
        ("1.2.3", None),
        ("1/2", None),
        ("10:30", None),
        ("2e5", None),
        ("3 + 4", None),
        ("four", None),
        ("\N{ARABIC-INDIC DIGIT THREE}", None),
        ("", None),
    ],
)
def test_a_number_is_read_whatever_stands_around_it_and_only_if_it_is_the_only_one(
    text: str, number: str | None
) -> None:
    assert number_in(text) == number


def test_numbers_are_compared_by_value_and_without_rounding() -> None:
    assert is_same_number("1080", "$1,080.00")
    assert not is_same_number("1080", "1080.0001")
    assert not is_same_number("9" * 40, "9" * 39 + "8")
    assert not is_same_number("none", "none")


def test_other_answers_are_compared_without_case_and_spacing() -> None:
    assert is_same_text("1 2\n3 4", " 1  2 \n\n3 4\n")
    assert is_same_text("Monday", "monday")
    assert not is_same_text("1 2\n3 4", "1 2 3 4")
    assert is_same("42 km", "it is 42")
    assert is_same("$x+1$", "x+1")
    assert not is_same("2x", "2")
    assert [is_number(text) for text in ("42", "-3.5 %", "2x", "2 and 3", "")] == [True, True, False, False, False]


def test_right_answers_of_data_sets_stand_after_hashes_or_in_a_box() -> None:
    assert reference_answer("3+4 = 7\n#### 7 ") == "7"
    assert reference_answer("so \\boxed{\\sqrt{2}}.") == "\\sqrt{2}"
    assert reference_answer(" 42\n") == "42"


def test_a_box_that_is_longer_than_the_limit_is_none() -> None:
    assert boxed_answer("\\boxed{" + "1" * (BOX_CHARACTERS - 1) + "}") == "1" * (BOX_CHARACTERS - 1)
    assert boxed_answer("\\boxed{" + "1" * BOX_CHARACTERS + "}") is None


# Hostile text

PIECES = [
    "<answer>",
    "</answer>",
    "\\boxed{",
    "}",
    "{",
    "####",
    "1",
    ",",
    ".",
    "-",
    "e",
    "9,999",
    " ",
    "\n",
    "x",
    "¬",
    "(",
]
hostile = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=40).map("".join)


@examples(200)
@given(hostile)
def test_any_text_has_at_most_one_answer_and_it_is_part_of_the_text(text: str) -> None:
    tagged, boxed, found = tagged_answer(text), boxed_answer(text), final_answer(text)
    for part in (tagged, boxed):
        assert part is None or (part in text and part == part.strip())
    if found is None:
        assert tagged is boxed is None
    elif found.mark is not AnswerMark.NUMBER:
        assert found.text in text
    else:
        assert number_in(found.text) == found.text
    assert isinstance(is_same("42", text), bool)
    assert isinstance(is_conclusion(text, ["P"], ["P"]), bool)


@examples(100)
@given(st.integers(-(10**12), 10**12), st.integers(0, 4), hostile.filter(lambda text: "</answer>" not in text))
def test_a_number_in_the_last_tags_is_found_however_it_is_written(value: int, decimals: int, before: str) -> None:
    written = f"{value:,}" + ("." + "0" * decimals if decimals else "")
    found = final_answer(f"{before}<answer> {written} </answer>")
    assert found is not None
    assert is_same(str(value), found.text)
    assert not is_same(str(value + 1), found.text)


@pytest.mark.parametrize(
    "piece",
    ["<answer>", "</answer>", "\\boxed{", "####", "#### 1", "1", "1,", "1.", "9,999", "-", "- 1e", "{", " ", "¬"],
)
@pytest.mark.parametrize(
    "search",
    [
        final_answer,
        boxed_answer,
        tagged_answer,
        number_in,
        lambda text: is_same_text(text, text),
        lambda text: is_conclusion(text, "P", []),
    ],
    ids=["final", "boxed", "tagged", "number", "text", "conclusion"],
)
def test_time_grows_no_faster_than_the_text(piece: str, search: Callable[[str], object]) -> None:
    """Eight times the text takes eight times as long, within a factor of four; a quadratic search takes 64 times."""
    short, long = (piece * (size // len(piece)) for size in (1 << 13, 1 << 16))
    assert fastest(search, long) < 32 * fastest(search, short) + 0.002


def fastest(search: Callable[[str], object], text: str) -> float:
    """The least CPU time of three runs: what other processes do cannot make it shorter."""
    times = []
    for _ in range(3):
        begin = time.process_time()
        search(text)
        times.append(time.process_time() - begin)
    return min(times)


# Propositional logic

VARIABLES = ["P", "Q"]


@pytest.mark.parametrize("formula", ["P", "¬ P", "(P ∨ Q)", "P → (Q ↔ ¬¬P)", "((P))∧Q", "¬(P∧Q)→P"])
def test_a_formula_of_the_questions_variables_is_a_conclusion(formula: str) -> None:
    assert is_conclusion(formula, VARIABLES, ["Q"])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "R",
        "p",
        "PQ",
        "P Q",
        "P∧",
        "∧P",
        "(P",
        "P)",
        "P¬",
        "P(Q)",
        "v",
        "¬v",
        "P -> Q",
        "()",
        "a∧b∧c",
        "¬" * 300 + "P",
    ],
)
def test_what_is_no_formula_of_them_never_reaches_the_library(text: str) -> None:
    assert not is_conclusion(text, VARIABLES, [])


def test_a_premise_that_is_repeated_is_no_conclusion() -> None:
    premises = ["(P ∨ Q)", "¬P"]
    assert not is_conclusion("P∨Q", VARIABLES, premises)
    assert not is_conclusion(" (P ∨ Q) ", VARIABLES, premises)
    assert is_conclusion("Q", VARIABLES, premises)
