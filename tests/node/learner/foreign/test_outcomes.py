"""What a round tells of foreign groups: every decision counted, few told one by one, none of it without bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from node.events import decode_event, encode_event
from node.learner.foreign.outcomes import (
    DETAIL_CHARACTERS,
    GROUPS,
    OTHERS,
    PASSED_OVER_ALIKE,
    PEERS,
    Decided,
    ForeignOutcomes,
)

decisions = st.builds(
    Decided,
    outcome=st.sampled_from(["used", "replayed", "stale", "not_better", "false_reward"]),
    peer=st.integers(0, 60).map(lambda number: f"peer-{number}"),
    task=st.sampled_from(["add", "sort"]),
    rewards=st.lists(st.floats(-1000, 1000), min_size=1, max_size=8).map(tuple),
    detail=st.none() | st.text(max_size=500),
    fetched=st.booleans(),
)


def passed_over(peer: str, outcome: str = "stale") -> Decided:
    return Decided(outcome, peer, "add", (1.0, 0.0), fetched=False)


def test_a_round_without_foreign_groups_tells_nothing() -> None:
    assert ForeignOutcomes().event(1.0, 1) is None


def test_fetched_groups_are_told_before_the_many_that_were_passed_over_alike() -> None:
    outcomes = ForeignOutcomes()
    for number in range(100):
        outcomes.note(passed_over(f"peer-{number % 3}"))
    for _ in range(GROUPS - 2):
        outcomes.note(Decided("used", "ann", "add", (1.0, 0.0)))
    told = outcomes.event(5.0, 9)
    assert told is not None and (told.time_seconds, told.round) == (5.0, 9)
    assert [group.outcome for group in told.groups] == ["stale"] * 2 + ["used"] * (GROUPS - 2)
    assert (
        told.by_peer["ann"] == {"used": GROUPS - 2}
        and sum(c["stale"] for p, c in told.by_peer.items() if p != "ann") == 100
    )
    assert (told.groups[-1].reward_mean, told.groups[-1].reward_spread, told.groups[-1].completions) == (0.5, 0.5, 2)


def test_of_one_reason_few_groups_are_told_so_that_every_reason_is() -> None:
    outcomes = ForeignOutcomes()
    for reason in ("stale", "not_better", "all_equal"):
        for number in range(20):
            outcomes.note(passed_over(f"peer-{number}", reason))
    told = outcomes.event(0.0, 0)
    assert told is not None
    assert [group.outcome for group in told.groups].count("all_equal") == PASSED_OVER_ALIKE


@given(st.lists(decisions, max_size=200))
def test_every_decision_is_counted_once_and_the_event_is_bounded_and_survives_its_line(decided: list[Decided]) -> None:
    outcomes = ForeignOutcomes()
    for each in decided:
        outcomes.note(each)
    told = outcomes.event(0.0, 0)
    assert (told is None) == (not decided)
    if told is None:
        return
    assert sum(sum(counts.values()) for counts in told.by_peer.values()) == len(decided)
    assert len(told.by_peer.keys() - {OTHERS}) <= PEERS and len(told.groups) <= GROUPS
    assert all(group.detail is None or len(group.detail) <= DETAIL_CHARACTERS for group in told.groups)
    line = encode_event(told)
    assert decode_event(line) == told and len(line) < 32_000
