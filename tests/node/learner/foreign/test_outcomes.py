"""What a round reports of foreign groups: every decision counted, few groups in full, all of it bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from node.events import decode_event, encode_event
from node.learner.foreign.outcomes import (
    MAX_DETAIL_CHARACTERS,
    MAX_GROUPS,
    MAX_PASSED_OVER_ALIKE,
    MAX_PEERS,
    OTHERS,
    Decided,
    ForeignOutcome,
    ForeignOutcomes,
)
from protocol.errors import MalformedError

decisions = st.builds(
    Decided,
    outcome=st.sampled_from([*map(str, ForeignOutcome), MalformedError.reason]),
    peer=st.integers(0, 60).map(lambda number: f"peer-{number}"),
    task=st.sampled_from(["add", "sort"]),
    rewards=st.lists(st.floats(-1000, 1000), min_size=1, max_size=8).map(tuple),
    detail=st.none() | st.text(max_size=500),
    fetched=st.booleans(),
)


def passed_over(peer: str, outcome: str = "stale") -> Decided:
    return Decided(outcome, peer, "add", (1.0, 0.0), fetched=False)


def test_a_round_without_foreign_groups_reports_nothing() -> None:
    outcomes = ForeignOutcomes()
    assert outcomes.event(1.0, 1) is None
    assert (outcomes.used, outcomes.replayed, outcomes.not_used()) == (0, 0, {})


def test_late_groups_count_as_one_that_was_not_used_and_are_in_no_event() -> None:
    outcomes = ForeignOutcomes()
    outcomes.note_late()
    assert outcomes.not_used() == {"late": 1} and outcomes.event(1.0, 1) is None


def test_fetched_groups_are_told_before_the_many_that_were_passed_over_alike() -> None:
    outcomes = ForeignOutcomes()
    for number in range(100):
        outcomes.note(passed_over(f"peer-{number % 3}"))
    for _ in range(MAX_GROUPS - 2):
        outcomes.note(Decided("used", "ann", "add", (1.0, 0.0)))
    reported = outcomes.event(5.0, 9)
    assert reported is not None and (reported.time_seconds, reported.round) == (5.0, 9)
    assert [group.outcome for group in reported.groups] == ["stale"] * 2 + ["used"] * (MAX_GROUPS - 2)
    assert reported.by_peer["ann"] == {"used": MAX_GROUPS - 2}
    assert sum(counts.get("stale", 0) for counts in reported.by_peer.values()) == 100
    last = reported.groups[-1]
    assert (last.reward_mean, last.reward_spread, last.completions) == (0.5, 0.5, 2)


def test_of_one_reason_few_groups_are_reported_so_that_every_reason_is() -> None:
    outcomes = ForeignOutcomes()
    for reason in ("stale", "not_better", "all_equal"):
        for number in range(20):
            outcomes.note(passed_over(f"peer-{number}", reason))
    reported = outcomes.event(0.0, 0)
    assert reported is not None
    assert [group.outcome for group in reported.groups].count("all_equal") == MAX_PASSED_OVER_ALIKE


@given(st.lists(decisions, max_size=200))
def test_every_decision_is_counted_once_and_the_event_is_bounded_and_survives_its_line(decided: list[Decided]) -> None:
    outcomes = ForeignOutcomes()
    for each in decided:
        outcomes.note(each)
    reported = outcomes.event(0.0, 0)
    assert outcomes.used + outcomes.replayed + sum(outcomes.not_used().values()) == len(decided)
    assert outcomes.used == sum(each.outcome == "used" for each in decided)
    assert (reported is None) == (not decided)
    if reported is None:
        return
    assert sum(sum(counts.values()) for counts in reported.by_peer.values()) == len(decided)
    assert len(reported.by_peer.keys() - {OTHERS}) <= MAX_PEERS and len(reported.groups) <= MAX_GROUPS
    assert all(group.detail is None or len(group.detail) <= MAX_DETAIL_CHARACTERS for group in reported.groups)
    line = encode_event(reported)
    assert decode_event(line) == reported and len(line) < 32_000
