from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from node.learner.allocation.allocator import Allocation, allocate

TASKS = ("easy", "even", "hard", "never")


def allocations(
    *, round_number: int = 0, seed: str = "7/ann", groups: int = 32, completions: int = 4
) -> list[Allocation]:
    return allocate(round_number, seed, TASKS, groups=groups, completions=completions)


@given(st.integers(1, 40), st.integers(2, 16), st.integers(0, 9))
def test_the_budget_is_spent_exactly_on_the_groups_asked_for(groups: int, completions: int, round_number: int) -> None:
    found = allocations(round_number=round_number, groups=groups, completions=completions)
    assert len(found) == groups
    assert {each.completions for each in found} == {completions}
    assert found == allocations(round_number=round_number, groups=groups, completions=completions)


def test_allocation_is_repeatable_differs_by_node_and_treats_tasks_alike() -> None:
    rounds = [allocations(round_number=r) for r in range(60)]
    assert rounds[3] == allocations(round_number=3)
    assert rounds[3] != allocations(round_number=3, seed="7/bob")
    counts = Counter(each.task for of_round in rounds for each in of_round)
    assert set(counts.values()) == {480}
    assert len({each.prompt_seed for of_round in rounds for each in of_round}) == 60 * 32


def test_first_part_of_a_list_of_prompts_is_like_the_rest() -> None:
    firsts: Counter[str] = Counter()
    wholes: Counter[str] = Counter()
    for round_number in range(200):
        found = allocations(round_number=round_number)
        firsts.update(a.task for a in found[:8])
        wholes.update(a.task for a in found)
    for task in TASKS:
        assert abs(firsts[task] / firsts.total() - wholes[task] / wholes.total()) < 0.05
