"""The decisions of pairing, without a network: which side yields, which peer is next, when an exchange is decided."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.streams.averaging_messages import DeclineReason, Offer
from swarm.averaging.pairing_rules import (
    MAX_DOUBLINGS,
    MIN_PAUSE_SECONDS,
    ExchangeEvent,
    ExchangePhase,
    ExchangeProgress,
    NotPaired,
    PairingState,
    Search,
    Seeker,
    Terms,
    after_event,
    after_proposal,
    next_proposal,
    reason_to_decline,
    says_have_last,
    still_seeking,
    whom_to_name,
)

TERMS = Terms(max_bytes=1000, max_steps_apart=2)
OFFER = Offer(b"f" * 16, b"l" * 16, "dense", 5, bytes(32), 100)
Names = st.text("abc", min_size=1, max_size=3)


def test_only_what_a_stranger_proposed_waits_for_its_have_so_that_no_two_wait_for_each_other() -> None:
    assert says_have_last(proposed=False, is_known=False)
    assert not says_have_last(proposed=False, is_known=True)
    assert not says_have_last(proposed=True, is_known=False)


def test_a_partner_has_time_for_its_have_by_what_a_slow_link_and_a_slow_check_need() -> None:
    assert TERMS.have_seconds_for(1000) < TERMS.have_seconds + 0.01
    assert TERMS.have_seconds_for(1_000_000_000) == pytest.approx(TERMS.have_seconds + 4.2 + 50.0, abs=0.1)
    assert TERMS.seconds_for(2000) > TERMS.have_seconds_for(1000)
    assert TERMS.seconds_for(1 << 40) == TERMS.exchange_seconds


@given(one=Names, other=Names)
def test_of_two_crossing_proposals_exactly_one_is_accepted(one: str, other: str) -> None:
    if one == other:
        return
    here = reason_to_decline(PairingState(one, OFFER, proposing_to=other), other, OFFER, TERMS)
    there = reason_to_decline(PairingState(other, OFFER, proposing_to=one), one, OFFER, TERMS)
    assert sorted([here is None, there is None]) == [False, True]
    assert {here, there} == {None, DeclineReason.CROSSED}


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (PairingState("me"), DeclineReason.NOT_NOW),
        (PairingState("me", OFFER), None),
        (PairingState("me", OFFER, engaged=True), DeclineReason.BUSY),
        (PairingState("me", OFFER, proposing_to="somebody"), DeclineReason.BUSY),
        (PairingState("me", OFFER, failed=frozenset({"you"})), DeclineReason.FAILED_BEFORE),
    ],
)
def test_a_proposal_is_answered_by_what_we_are_doing(state: PairingState, reason: DeclineReason | None) -> None:
    assert reason_to_decline(state, "you", OFFER, TERMS) is reason


@pytest.mark.parametrize(
    ("step", "reason"), [(2, DeclineReason.STEPS_APART), (3, None), (7, None), (8, DeclineReason.STEPS_APART)]
)
def test_one_too_far_ahead_is_as_unfit_as_one_too_far_behind(step: int, reason: DeclineReason | None) -> None:
    theirs = msgspec.structs.replace(OFFER, step=step)
    assert reason_to_decline(PairingState("me", OFFER), "you", theirs, TERMS) is reason


def test_all_are_asked_before_anybody_is_asked_again_and_the_unfit_never() -> None:
    random, search = Random(1), Search({})
    asked: list[str] = []
    now_seconds = 0.0
    for _ in range(9):
        move = next_proposal(now_seconds, ["a", "b", "c", "d"], search, TERMS, random)
        assert move.peer is not None
        asked.append(move.peer)
        why = DeclineReason.OTHER_LAYOUT if move.peer == "c" else DeclineReason.BUSY
        search = after_proposal(
            search, move.peer, NotPaired(why), now_seconds, now_seconds, ["a", "b", "c", "d"], TERMS, random
        )
        waiting = next_proposal(now_seconds, ["a", "b", "c", "d"], search, TERMS, random)
        assert waiting.peer is None
        assert waiting.until_seconds == search.idle_until_seconds > now_seconds
        now_seconds = search.idle_until_seconds
    assert sorted(asked[:4]) == ["a", "b", "c", "d"]
    assert asked.count("c") == 1
    assert next_proposal(now_seconds, ["c"], search, TERMS, random).peer is None


def test_who_proposed_in_vain_is_taken_to_be_seeking_until_it_would_have_asked_again() -> None:
    longest_seconds = TERMS.pause_seconds * 2.0**MAX_DOUBLINGS
    family = OFFER.family
    seekers = {"a": Seeker(family, 10.0), "other": Seeker(b"o" * 16, 11.0), "b": Seeker(family, 12.0)}
    assert still_seeking(seekers, family, 12.0, TERMS) == ["a", "b"]
    assert still_seeking(seekers, family, 11.0 + longest_seconds, TERMS) == ["b"]
    assert still_seeking(seekers, family, 13.0 + longest_seconds, TERMS) == []


def test_who_is_known_to_look_for_a_partner_is_asked_first_however_often_it_was_asked_before() -> None:
    search = Search({"b": 7}, frozenset({"d"}), idle_until_seconds=1.0)
    seekers = ["gone", "b", "d"]
    assert next_proposal(0.5, ["a", "b", "c", "d"], search, TERMS, Random(1), seekers=seekers).peer is None
    assert next_proposal(1.0, ["a", "b", "c", "d"], search, TERMS, Random(1), seekers=seekers).peer == "b"
    assert next_proposal(1.0, ["a", "c"], search, TERMS, Random(1), seekers=seekers).peer in ("a", "c")


def test_who_was_named_by_the_peer_asked_last_is_asked_next_and_no_second_time_for_it() -> None:
    busy = NotPaired(DeclineReason.BUSY, "c")
    search = after_proposal(Search({"c": 7}), "a", busy, 0.0, 0.1, ["a", "b"], TERMS, Random(1))
    now_seconds = search.idle_until_seconds
    assert next_proposal(now_seconds, ["b", "c"], search, TERMS, Random(1)).peer == "c"
    assert next_proposal(now_seconds, ["b", "c"], search, TERMS, Random(1), seekers=["b"]).peer == "b"
    assert next_proposal(now_seconds, ["b"], search, TERMS, Random(1)).peer == "b"  # not one of ours
    assert next_proposal(now_seconds, ["b"], search, TERMS, Random(1), accepts=lambda peer: peer == "c").peer == "c"
    after = after_proposal(search, "c", NotPaired(DeclineReason.BUSY), 1.0, 1.0, ["b", "c"], TERMS, Random(1))
    assert next_proposal(after.idle_until_seconds, ["b", "c"], after, TERMS, Random(1)).peer == "b"


@pytest.mark.parametrize(("named", "asked"), [("another stranger", "a"), ("b", "b")])
def test_whom_a_peer_names_that_was_named_itself_is_asked_only_if_we_would_ask_it_anyway(
    named: str, asked: str
) -> None:
    candidates = ["a", "b"]
    ended = NotPaired(DeclineReason.BUSY, named)
    search = after_proposal(Search({"b": 7}), "stranger", ended, 0.0, 0.1, candidates, TERMS, Random(1))
    move = next_proposal(search.idle_until_seconds, candidates, search, TERMS, Random(1), accepts=lambda peer: True)
    assert move.peer == asked


def test_the_latest_other_seeker_is_named_and_rather_one_that_is_known() -> None:
    assert whom_to_name("c", ["a", "b", "c"], lambda peer: False) == "b"
    assert whom_to_name("c", ["a", "b", "c"], lambda peer: peer == "a") == "a"
    assert whom_to_name("c", ["c"], lambda peer: True) is None


@pytest.mark.parametrize(("took_seconds", "first_seconds"), [(0.0, MIN_PAUSE_SECONDS), (0.1, 0.1), (15.0, 0.5)])
def test_pauses_begin_with_what_a_proposal_takes_and_grow_to_a_bound(took_seconds: float, first_seconds: float) -> None:
    search, random = Search({}), Random(2)
    pauses = []
    for _ in range(20):
        search = after_proposal(search, "a", NotPaired("unreachable"), 0.0, took_seconds, ["a"], TERMS, random)
        pauses.append(search.idle_until_seconds - took_seconds)
    assert 0.5 * first_seconds <= pauses[0] <= 1.5 * first_seconds
    assert 1.0 * first_seconds <= pauses[1] <= 3.0 * first_seconds
    assert max(pauses) <= 1.5 * TERMS.pause_seconds * 2**MAX_DOUBLINGS
    assert min(pauses[10:]) >= 0.5 * TERMS.pause_seconds * 2**MAX_DOUBLINGS


@given(events=st.lists(st.sampled_from(ExchangeEvent), max_size=12))
def test_nothing_undecides_an_exchange_and_it_commits_on_both_facts_alone(events: list[ExchangeEvent]) -> None:
    progress = ExchangeProgress()
    for event in events:
        before, progress = progress, after_event(progress, event)
        if before.phase in (ExchangePhase.COMMITTED, ExchangePhase.ABANDONED):
            assert progress == before
        assert (progress.phase is ExchangePhase.COMMITTED) <= (progress.holding and progress.have_received)
        if progress.phase is ExchangePhase.DOUBT:
            assert progress.have_sent


@given(
    script=st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["hold", "deliver", "lose", "break"])), max_size=40)
)
def test_two_that_speak_over_a_losing_line_never_end_one_new_one_old_until_a_doubt_expires(
    script: list[tuple[int, str]],
) -> None:
    """A model of the line: messages arrive or get lost, or the stream breaks, in any order. A side in doubt asks."""
    sides, words = [ExchangeProgress(), ExchangeProgress()], [0, 0]  # messages of each side on their way
    for side, happening in script:
        other = 1 - side
        if happening == "hold" and sides[side].phase is ExchangePhase.OPEN and not sides[side].holding:
            sides[side] = after_event(sides[side], ExchangeEvent.HELD)
            sides[side] = after_event(
                sides[side], ExchangeEvent.SENDING_HAVE
            )  # or, if it has committed, its last message: the same bytes
            words[side] += 1
        elif happening == "deliver" and words[side]:
            words[side] -= 1
            sides[other] = after_event(sides[other], ExchangeEvent.HAVE_RECEIVED)
        elif happening == "lose" and words[side]:
            words[side] -= 1
        elif happening == "break":
            sides[side] = after_event(sides[side], ExchangeEvent.LOST)
    for side in (0, 1):  # the time is over, and they can reach each other
        sides[side] = after_event(sides[side], ExchangeEvent.LOST)
    for side in (0, 1):
        if sides[side].phase is ExchangePhase.DOUBT:
            sides[1 - side] = after_event(
                sides[1 - side], ExchangeEvent.HAVE_RECEIVED
            )  # the question repeats the lost message
            committed = sides[1 - side].phase is ExchangePhase.COMMITTED
            sides[side] = after_event(sides[side], ExchangeEvent.HAVE_RECEIVED if committed else ExchangeEvent.REFUSED)
    assert sides[0].phase is sides[1].phase
    assert sides[0].phase in (ExchangePhase.COMMITTED, ExchangePhase.ABANDONED)
