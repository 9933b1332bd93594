"""Whether measured weights are kept, and which claims do not hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from node.state_sync.state_verdict import CLAIM_SLACK, MeasuredSuccess, judge_state


def measured(success: float, completions: int = 1000) -> MeasuredSuccess:
    return MeasuredSuccess(success, completions)


def test_better_weights_whose_claim_holds_are_kept() -> None:
    verdict = judge_state(measured(0.3), measured(0.5), {"a": 0.52})
    assert verdict.keep and not verdict.false_claims


def test_better_weights_than_ours_that_promised_much_more_are_not_kept() -> None:
    verdict = judge_state(measured(0.3), measured(0.4), {"a": 1.0})
    assert not verdict.keep
    assert verdict.false_claims == ("a",)
    assert "0.400" in verdict.because and "1.000" in verdict.because


def test_worse_weights_are_not_kept_whatever_was_claimed() -> None:
    assert not judge_state(measured(0.5), measured(0.4), {"a": 0.4}).keep
    assert not judge_state(measured(0.5), measured(0.4), {}).keep


def test_weights_that_solve_nothing_are_not_kept_even_where_ours_solve_nothing() -> None:
    assert not judge_state(measured(0.0), measured(0.0), {}).keep


def test_weights_alike_within_the_error_are_kept() -> None:
    assert judge_state(measured(0.5), measured(0.49), {"a": 0.5}).keep


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 10_000), st.dictionaries(st.text(), st.floats(0, 1)))
def test_honest_claims_are_never_called_false_and_high_ones_always_on_many_completions(
    before: float, after: float, completions: int, claims: dict[str, float]
) -> None:
    verdict = judge_state(measured(before, completions), measured(after, completions), claims)
    assert all(claims[peer] > after + CLAIM_SLACK for peer in verdict.false_claims)
    many = judge_state(measured(before), measured(after, 10**8), claims)
    assert all(peer in many.false_claims for peer, claimed in claims.items() if claimed > after + 2 * CLAIM_SLACK)
