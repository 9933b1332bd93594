"""Two runs as one page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from node.events import encode_event
from node.report.comparison import compare
from node.report.comparison_page import comparison_page
from node.report.facts import RunFacts, run_facts
from node.report.parts import signed, spaced
from tests.factories import round_done

HOSTILE = "</script><b>x"


def run(path: Path, rewards: dict[str, float], rounds: int) -> RunFacts:
    events = (round_done(number, reward_by_task=rewards, success_by_task=rewards) for number in range(1, rounds + 1))
    path.write_bytes(b"".join(encode_event(event) + b"\n" for event in events))
    return run_facts(path)


def drawn(page: str) -> Any:
    (facts,) = re.findall(r'id="facts">(.*?)</script>', page)
    return json.loads(facts)


def test_each_task_of_either_run_has_a_bar_and_a_chart_with_a_line_for_each_run_that_trained_it(tmp_path: Path) -> None:
    first = run(tmp_path / "a.jsonl", {"add": 0.2, "sort": 0.9}, 3)
    second = run(tmp_path / "b.jsonl", {"add": 0.7}, 5)
    page = comparison_page(compare(first, second, ("alone", "together")))
    charts = drawn(page)["charts"]
    by_task = dict(zip(re.findall(r"<figcaption>(\w+)</figcaption>", page), list(charts)[1:], strict=True))
    add, sort = charts[by_task["add"]], charts[by_task["sort"]]
    assert [(line["name"], line["x"]) for line in add["lines"]] == [("alone", [1, 2, 3]), ("together", [1, 2, 3, 4, 5])]
    assert [line["values"] for line in sort["lines"] if any(line["values"])] == [[0.9, 0.9, 0.9]]
    assert all(f'id="{name}"' in page for name in charts)
    assert ">+0.50</span>" in page


def test_names_and_tasks_of_others_are_text_in_it(tmp_path: Path) -> None:
    facts = run(tmp_path / "a.jsonl", {HOSTILE: 0.5}, 2)
    page = comparison_page(compare(facts, facts, (HOSTILE, "b")))
    before, _, rest = page.partition('id="facts">')
    assert "<b>x" not in before and "<" not in rest.partition("</script>")[0]


@pytest.mark.parametrize(
    ("change", "shown"), [(0.5, "+0.50"), (-0.004, "±0.00"), (0.004, "±0.00"), (-0.005001, "−0.01")]
)
def test_change_has_its_sign_unless_it_rounds_to_none(change: float, shown: str) -> None:
    assert signed(change) == shown


def test_thousands_have_a_narrow_space_and_lists_keep_their_commas() -> None:
    assert spaced("1,234,567 tokens, 3,4 and 1,2345") == "1\u202f234\u202f567 tokens, 3,4 and 1,2345"
