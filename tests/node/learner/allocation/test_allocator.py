"""Allocation: whole numbers in proportion, and each method's allocations under an exact budget."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.configuration import AllocationSection
from node.learner.allocation.allocator import ROUNDS_UNTIL_A_SUCCESS, Allocation, Belief, Known, allocate, belief
from node.learner.allocation.apportionment import bounded_shares, systematic_shares
from node.learner.allocation.evidence import Evidence
from node.learner.allocation.peer_success import Announced

Method = Literal["uniform", "posterior", "sgpo", "dps"]
METHODS: tuple[Method, ...] = ("uniform", "posterior", "sgpo", "dps")
TASKS = ("easy", "even", "hard", "never")
SUCCESSES = {"easy": 0.95, "even": 0.5, "hard": 0.15, "never": 0.0}


def practised(successes: Mapping[str, float] = SUCCESSES, *, rounds: int = 20, completions: int = 20) -> Evidence:
    """Returns the evidence of a learner with these successes: groups of ``completions``, two of each task a round."""
    evidence = Evidence()
    for _ in range(rounds):
        groups = []
        for task, p in successes.items():
            right = round(p * completions)
            groups += [(task, [1.0] * right + [0.0] * (completions - right))] * 2
        evidence.observe(groups, 0.7)
    return evidence


def allocations(
    method: Method,
    known: Known | None = None,
    *,
    round_number: int = 0,
    seed: str = "7/ann",
    groups: int = 32,
    completions: int = 4,
    **keys: float,
) -> list[Allocation]:
    section = AllocationSection.model_validate({"method": method, **keys})
    return allocate(
        round_number,
        seed,
        TASKS,
        groups=groups,
        completions=completions,
        section=section,
        known=known or Known(practised()),
    )


def completions_by_task(found: list[Allocation]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for each in found:
        counts[each.task] += each.completions
    return counts


def groups_by_task(method: Method, known: Known, *, rounds: int = 40, **keys: Any) -> Counter[str]:
    counts: Counter[str] = Counter()
    for round_number in range(rounds):
        counts.update(a.task for a in allocations(method, known, round_number=round_number, **keys))
    return counts


weights_lists = st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=40)


@given(weights_lists, st.integers(0, 500), st.floats(0, 1, exclude_max=True))
def test_systematic_shares_add_up_and_are_within_one_of_proportion(
    weights: list[float], total: int, offset: float
) -> None:
    shares = systematic_shares(weights, total, offset)
    assert sum(shares) == total
    whole = math.fsum(weights)
    for weight, share in zip(weights, shares, strict=True):
        exact = total * (weight / whole if whole > 0 else 1 / len(weights))
        assert exact - 1 - 1e-6 <= share <= exact + 1 + 1e-6


@given(weights_lists, st.integers(1, 5), st.integers(0, 10), st.floats(0, 1))
def test_bounded_shares_spend_exactly_the_budget_within_bounds_in_the_order_of_weights(
    weights: list[float], least: int, more: int, fill: float
) -> None:
    most = least + more
    total = least * len(weights) + round(fill * more * len(weights))
    shares = bounded_shares(weights, total, least=least, most=most)
    assert sum(shares) == total
    assert all(least <= share <= most for share in shares)
    for heavy, n in zip(weights, shares, strict=True):
        assert all(n >= m - 1 for light, m in zip(weights, shares, strict=True) if light <= heavy)


def test_bounded_shares_minimise_the_summed_variance() -> None:
    weights, total = [0.5, 0.3, 0.1], 12
    best = min(
        (sum(w**2 / n for w, n in zip(weights, (a, b, total - a - b), strict=True)), (a, b, total - a - b))
        for a in range(2, 9)
        for b in range(2, 11 - a)
    )
    assert tuple(bounded_shares(weights, total, least=2, most=8)) == best[1]


def test_budget_that_no_bounds_allow_is_refused() -> None:
    with pytest.raises(ValueError, match="9 is not from 2 to 4 for each of 2"):
        bounded_shares([1, 1], 9, least=2, most=4)


@given(
    st.sampled_from(METHODS),
    st.dictionaries(st.sampled_from(TASKS), st.floats(0, 1), max_size=4),
    st.integers(1, 40),
    st.integers(2, 16),
    st.integers(0, 9),
    st.floats(0, 1),
)
def test_every_method_spends_the_budget_exactly_on_the_groups_asked_for(
    method: Method, successes: dict[str, float], groups: int, completions: int, round_number: int, forgetting: float
) -> None:
    known = Known(practised(successes, rounds=3), {"never": Announced(1.0, 0.9)})
    keys: dict[str, Any] = {"groups": groups, "completions": completions, "round_number": round_number}
    found = allocations(method, known, forgetting=forgetting, **keys)
    assert len(found) == groups
    assert sum(each.completions for each in found) == groups * completions
    bound = max(8, completions) if method == "sgpo" else completions
    assert all(2 <= each.completions <= bound for each in found)
    assert found == allocations(method, known, forgetting=forgetting, **keys)


@pytest.mark.parametrize("method", METHODS)
def test_allocation_is_repeatable_differs_by_node_and_with_nothing_known_treats_tasks_alike(method: Method) -> None:
    known = Known()
    rounds = [allocations(method, known, round_number=r) for r in range(60)]
    assert rounds[3] == allocations(method, known, round_number=3)
    assert rounds[3] != allocations(method, known, round_number=3, seed="7/bob")
    counts = Counter(each.task for of_round in rounds for each in of_round)
    assert set(counts.values()) == {480}
    assert len({each.prompt_seed for of_round in rounds for each in of_round}) == 60 * 32
    assert {each.completions for each in rounds[0]} == {4}


def test_chance_of_success_is_that_of_at_least_one_right_completion() -> None:
    draws = random.Random(1)
    for a, b, completions in ((1.0, 1.0, 4), (1.5, 30.0, 16), (12.0, 3.0, 2)):
        drawn = [1 - (1 - draws.betavariate(a, b)) ** completions for _ in range(20_000)]
        assert Belief(a, b).chance_of_success(completions) == pytest.approx(sum(drawn) / len(drawn), abs=0.01)
    assert Belief(1.0, 1.0).chance_of_success(3) == pytest.approx(3 / 4)
    assert Belief(1.0, 500.0).chance_of_success(0) == 0.0


def test_posterior_practises_what_has_most_left_to_gain_and_never_forsakes_a_class() -> None:
    groups = groups_by_task("posterior", Known(practised()))
    assert groups["hard"] > groups["even"] > 3 * groups["easy"] > 0
    assert 0 < groups["never"] < 0.75 * groups["hard"]


def test_what_is_rarely_solved_gets_more_practice_than_what_never_is() -> None:
    rarely = groups_by_task("posterior", Known(practised({**SUCCESSES, "never": 0.05})))
    never = groups_by_task("posterior", Known(practised()))
    assert rarely["never"] > 1.3 * never["never"]


def test_first_part_of_a_list_of_prompts_is_like_the_rest() -> None:
    known = Known(practised())
    for method in METHODS:
        firsts: Counter[str] = Counter()
        wholes: Counter[str] = Counter()
        for round_number in range(200):
            found = allocations(method, known, round_number=round_number)
            firsts.update(a.task for a in found[:8])
            wholes.update(a.task for a in found)
        for task in TASKS:
            assert abs(firsts[task] / firsts.total() - wholes[task] / wholes.total()) < 0.05


def test_what_was_not_practised_for_long_is_uncertain_again() -> None:
    evidence = practised({"easy": 1.0, "even": 0.5})
    before = belief("easy", Known(evidence), 0.0)
    for _ in range(20):
        evidence.observe([("even", [1.0, 0.0])], 0.7)
    after = belief("easy", Known(evidence), 0.0)
    assert before.mean() > 0.95
    assert after.mean() == pytest.approx(0.5, abs=0.05)
    assert before.a + before.b == pytest.approx(135, rel=0.02)
    assert after.a + after.b == pytest.approx(2, abs=0.2)


def test_task_at_which_others_succeed_gets_more_practice_than_one_at_which_all_fail() -> None:
    evidence = practised(dict.fromkeys(TASKS, 0.0), rounds=3)
    alone = groups_by_task("posterior", Known(evidence))
    others = {"easy": Announced(0.9, 0.9), "never": Announced(0.0, 0.9)}
    informed = groups_by_task("posterior", Known(evidence, others))
    assert informed["easy"] > 1.3 * alone["easy"]
    assert informed["never"] < alone["never"]
    deaf = groups_by_task("posterior", Known(evidence, others), peer_prior=0.0)
    assert deaf == alone


@given(st.floats(0, 1), st.floats(0, 1))
def test_liar_about_its_success_can_at_most_undo_what_our_failures_tell(success: float, weight: float) -> None:
    evidence = practised({"easy": 0.9, "even": 0.5, "hard": 0.2, "never": 0.0})
    honest = groups_by_task("posterior", Known(evidence), rounds=10)
    informed = groups_by_task("posterior", Known(evidence, {"never": Announced(success, weight)}), rounds=10)
    completions = ROUNDS_UNTIL_A_SUCCESS * 32 * 4 / len(TASKS)
    chance = belief("never", Known(evidence), 0.0).chance_of_success(completions)
    assert informed["never"] <= honest["never"] / chance + 10  # one a round, by rounding


def test_sgpo_leaves_out_what_is_solved_keeps_a_little_of_what_is_not_and_samples_by_one_over_p() -> None:
    known = Known(practised())
    groups = groups_by_task("sgpo", known)
    assert groups["easy"] == 0
    assert groups["never"] / groups["hard"] == pytest.approx(0.1, rel=0.2)
    found = allocations("sgpo", known)
    sizes = {task: [a.completions for a in found if a.task == task] for task in ("even", "hard")}
    assert max(sizes["even"]) < min(sizes["hard"]) <= 8
    assert {a.reason for a in found if a.task == "never"} <= {"unsolved"}


def test_sgpo_with_every_task_solved_practises_all_and_says_so() -> None:
    found = allocations("sgpo", Known(practised(dict.fromkeys(TASKS, 1.0))))
    assert {a.reason for a in found} == {"all solved"}
    assert {a.task for a in found} == set(TASKS)


def test_sgpo_with_no_task_ever_solved_goes_on_trying() -> None:
    found = allocations("sgpo", Known(practised(dict.fromkeys(TASKS, 0.0))))
    assert {a.reason for a in found} == {"unsolved"}
    assert {a.task for a in found} == set(TASKS)


def test_dps_practises_where_groups_are_solved_in_part() -> None:
    known = Known(practised({"easy": 1.0, "even": 0.5, "hard": 0.2, "never": 0.0}))
    groups = groups_by_task("dps", known)
    assert min(groups["even"], groups["hard"]) > 3 * max(groups["easy"], groups["never"])
    assert groups["never"] > 0
