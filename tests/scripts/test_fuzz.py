"""The fuzzer itself, and a few seconds of it: every decoder takes damaged and extreme inputs without a surprise."""

from __future__ import annotations

from random import Random

import pytest

from protocol.errors import MalformedError
from protocol.messages import Goodbye, Heartbeat, RolloutAdvert, StateAdvert
from protocol.wire import decode
from scripts.attacks import fuzz
from scripts.attacks.fuzzing.extremes import encoded
from scripts.attacks.fuzzing.measuring import Act, InputWatch
from scripts.attacks.fuzzing.mutation import MAX_BYTES, mutated
from scripts.attacks.fuzzing.targets import Target, blocks_in

INPUTS_EACH = 24
PEAK_BYTES = 32e6


def test_no_target_raises_what_it_does_not_declare_or_allocates_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "BLOCK", INPUTS_EACH)
    watch = InputWatch()
    for target in fuzz.all_targets():
        if target.share:
            fuzz.give_block(watch, target, False, seed=5, number=1)
        if target.structured_share:
            fuzz.give_block(watch, target, True, seed=5, number=1)
    assert len(watch.records) > 40
    assert {record.inputs for record in watch.records.values()} == {INPUTS_EACH}
    assert [fault for record in watch.records.values() for fault in record.faults] == []
    assert max(record.largest_bytes for record in watch.records.values()) < PEAK_BYTES


def wrong(raw: bytes) -> Act:
    def act() -> None:
        if len(raw) % 2:
            raise MalformedError("odd")
        raise KeyError(len(raw))

    return act


def test_an_undeclared_exception_is_kept_with_the_block_that_draws_its_input_again() -> None:
    target = Target("wrong", wrong, [b"abcd", b"efghi"], 1)
    first, again = InputWatch(), InputWatch()
    fuzz.give_block(first, target, False, seed=1, number=7)
    fuzz.give_block(again, target, False, seed=1, number=7)
    record = first.records["wrong, mutated"]
    assert record.refused + record.undeclared == record.inputs == fuzz.BLOCK
    assert 0 < record.undeclared < fuzz.BLOCK
    assert record.faults[0].block == "mutated/1/7"
    assert record.faults[0].error.startswith("KeyError")
    assert record.faults == again.records["wrong, mutated"].faults


def test_targets_get_blocks_by_their_shares_and_both_kinds_end_together() -> None:
    often = Target("often", wrong, [b"ab"], 3, lambda random: b"", 1)
    seldom = Target("seldom", wrong, [b"ab"], 0.5)
    plan = list(fuzz.blocks([often, seldom], 70 * fuzz.BLOCK, 10 * fuzz.BLOCK))
    drawn = [(target.name, structured) for target, structured, _ in plan]
    assert drawn.count(("often", False)) == 60
    assert drawn.count(("seldom", False)) == 10
    assert drawn.count(("often", True)) == 10
    assert ("often", True) in drawn[:16]
    assert len({(target.name, kind, number) for target, kind, number in plan}) == len(plan)
    assert [blocks_in(0.5, turn) for turn in (1, 2, 3, 4)] == [0, 1, 0, 1]


@pytest.mark.parametrize("kind", [Heartbeat, RolloutAdvert, StateAdvert, Goodbye])
def test_extreme_messages_keep_their_schema(kind: type) -> None:
    random = Random(3)
    for _ in range(20):
        raw = encoded(random, kind, 65_000)
        assert len(raw) <= 65_000
        assert decode(raw, kind, max_bytes=65_000) is not None


def test_mutated_inputs_follow_from_their_seed_and_do_not_grow_without_bound() -> None:
    originals = [bytes(range(200)), b"short"]
    drawn = [mutated(random, originals) for random in (Random(1),) for _ in range(500)]
    assert drawn == [mutated(random, originals) for random in (Random(1),) for _ in range(500)]
    assert max(map(len, drawn)) <= MAX_BYTES
    assert len(set(drawn)) > 400
