"""Nodes agree about each message of a sender that sends too many, and refuse none of one that keeps to its rhythm."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.announcements.pacing import ALLOWANCE, allowance, messages_per_second
from swarm.announcements.sender_slots import RESERVE, RESERVE_SECONDS, SenderAllowance, SenderSlots, phase_seconds

EPOCH = 1_700_000_000.0
MAY = allowance(1000, 5.0)


def sybil(seconds: int) -> list[float]:
    """Signed times of a message a second."""
    return [EPOCH + number for number in range(seconds)]


def accepted(messages: list[float], may: SenderAllowance = MAY, slots: SenderSlots | None = None) -> set[float]:
    slots = slots or SenderSlots("sybil")
    return {signed for signed in messages if slots.admit(signed, may)}


def shuffled(messages: list[float], random: Random, late_seconds: float) -> list[float]:
    """The messages in the order in which they arrive, each up to so much late."""
    return sorted(messages, key=lambda signed: signed + random.uniform(0.0, late_seconds))


@pytest.mark.parametrize("seed", range(4))
def test_receivers_agree_whatever_order_messages_come_in_and_since_when_they_listen(seed: int) -> None:
    random, messages = Random(seed), sybil(3 * int(RESERVE_SECONDS))
    one = accepted(shuffled(messages, random, 1.0))
    started = random.randrange(1024)
    other = accepted(shuffled(messages[started:], random, 1.0))
    settled = EPOCH + 1024 + RESERVE_SECONDS  # the reserve of one that began to listen lasts until its next one
    one, other = {m for m in one if m > settled}, {m for m in other if m > settled}
    assert len(one & other) >= 0.95 * len(one | other)
    assert len(one) <= 1.1 * (2 * RESERVE_SECONDS - 1024) * messages_per_second(1000, 5.0)


@pytest.mark.parametrize("seed", range(4))
def test_receiver_accepts_all_that_another_accepted_in_any_order(seed: int) -> None:
    random = Random(seed)
    forwarded = accepted(sybil(1024))
    order = [m for m in sybil(1024) if m in forwarded]
    assert accepted(shuffled(order, random, MAY.slot_seconds / 2)) == forwarded


@pytest.mark.parametrize("nodes", [930, 1000, 5000])
def test_receivers_that_count_the_swarm_a_little_differently_agree(nodes: int) -> None:
    messages = sybil(4096)
    one, other = accepted(messages), accepted(messages, allowance(nodes, 5.0))
    assert len(one & other) >= 0.9 * len(one | other)  # slots of 12 and 13 messages


@given(st.integers(1, 10**4), st.integers(0, 10**6), st.floats(0.0, 1.0))
def test_a_sender_in_its_rhythm_is_never_refused(nodes: int, since: int, share: float) -> None:
    """Half of what is allowed, in pairs: as one that counts half as many nodes sends, or nearly so."""
    between_seconds = 2.0 * ALLOWANCE / messages_per_second(nodes, 5.0)
    between_seconds /= 1.0 + share
    pairs = [EPOCH + since + number * between_seconds for number in range(200)]
    slots, may = SenderSlots("honest"), allowance(nodes, 5.0)
    assert all(slots.admit(each, may) for each in pairs for _ in range(2))


def test_a_sender_that_goes_back_in_time_or_reuses_slots_gains_a_reserve_and_no_more() -> None:
    slots = SenderSlots("sybil")
    times = [EPOCH + offset for _ in range(20) for offset in range(0, 600, 5)]
    bound = (600 / MAY.slot_seconds + 2) * MAY.messages_a_slot + 2 * RESERVE
    assert len([each for each in times if slots.admit(each, MAY)]) <= bound


def test_a_clock_that_is_set_back_lets_a_reserve_through_until_it_has_caught_up() -> None:
    slots, phase = SenderSlots("honest"), phase_seconds("honest")
    begin = EPOCH - (EPOCH + phase) % RESERVE_SECONDS + 600.0
    assert slots.admit(begin, MAY)
    back = [begin - 300.0 + 7.0 * number for number in range(RESERVE + 5)]
    assert [slots.admit(each, MAY) for each in back] == [True] * RESERVE + [False] * 5
    assert slots.admit(begin + 1.0, MAY)


def test_slots_that_change_their_length_again_and_again_bring_no_further_messages() -> None:
    slots = SenderSlots("sybil")
    double = SenderAllowance(2 * MAY.slot_seconds, 2 * MAY.messages_a_slot)
    admitted = [slots.admit(each, (MAY, double)[number % 2]) for number, each in enumerate(sybil(1024))]
    assert sum(admitted) <= (1024 / MAY.slot_seconds + 2) * double.messages_a_slot + 2 * RESERVE
