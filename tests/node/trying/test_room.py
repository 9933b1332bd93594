"""Whether the process that answers fits beside the learner."""

from __future__ import annotations

import msgspec
import pytest

from node.fit.candidates import Trained
from node.fit.planning import sizes_of
from node.policy.model_files import model_folder
from node.trying.room import OVERHEAD_BYTES, needed_bytes, no_room, room_bytes

SIZES = sizes_of(model_folder("builtin:wren"))
GB = 10**9


def test_a_whole_model_is_there_twice_and_an_adapter_beside_its_base() -> None:
    base = needed_bytes(SIZES, None, 0)
    assert base == OVERHEAD_BYTES + 4 * SIZES.parameters
    assert needed_bytes(SIZES, Trained(adapter_rank=0, four_bit=False), 7) == base + 4 * SIZES.parameters + 7
    adapter = needed_bytes(SIZES, Trained(adapter_rank=2, four_bit=False), 7)
    assert base < adapter < base + 4 * SIZES.parameters


@pytest.mark.parametrize(
    ("planned", "held", "left"),
    [(0, 0, 10), (6, 2, 6), (6, 6, 10), (6, 8, 10)],  # a learner above its plan takes nothing further
)
def test_what_the_learner_has_planned_and_not_taken_yet_is_not_free(planned: int, held: int, left: int) -> None:
    assert room_bytes(10 * GB, planned_bytes=planned * GB, held_bytes=held * GB) == left * GB


def test_where_it_does_not_fit_both_amounts_are_said() -> None:
    assert no_room(2 * GB, 2 * GB) is None
    said = no_room(2 * GB, -GB)
    assert said is not None and "2.0 GB" in said and " 0 B" in said
    large = msgspec.structs.replace(SIZES, layers=1000 * SIZES.layers)
    assert no_room(needed_bytes(large, None, 0), GB) is not None
