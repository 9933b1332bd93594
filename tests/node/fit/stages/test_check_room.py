"""Whether an owner has memory to check its machines: beside learning, and within what the plan counts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from node.fit.stages.checks import check_bytes, missing_for_checks
from tests.node.fit.shapes import GB, sizes
from tests.node.fit.stages.test_stage_plan import ALONE, SHAPE, machine, planned


@pytest.mark.parametrize("memory", [2 * GB, 4 * GB])
def test_a_check_has_room_where_learning_takes_more_beside_the_weights(memory: int) -> None:
    plan = planned(memory, machine("attic", memory), machine("cellar", memory))
    assert missing_for_checks(plan, sizes(SHAPE), ALONE) < 0


def test_what_is_missing_for_a_check_grows_with_a_layer_and_shrinks_with_what_the_plan_leaves_free() -> None:
    plan = planned(2 * GB, machine("attic", 2 * GB), machine("cellar", 2 * GB))
    own = replace(plan.held[0], usable_bytes=plan.held[0].expected_bytes)
    full, wide = replace(plan, held=(own, *plan.held[1:])), replace(sizes(SHAPE), layer_parameters=200_000_000)
    missing = missing_for_checks(full, wide, ALONE)
    assert missing > 0
    freer = replace(own, usable_bytes=own.usable_bytes + missing)
    assert missing_for_checks(replace(plan, held=(freer, *plan.held[1:])), wide, ALONE) == 0


def test_a_check_takes_one_layer_whatever_the_machine_holds() -> None:
    found, settings = sizes(SHAPE), planned(2 * GB, machine("attic", 2 * GB), machine("cellar", 2 * GB)).settings
    layer = 4 * found.layer_parameters
    few, many = check_bytes(found, settings, 1), check_bytes(found, settings, 20)
    assert layer < few < 2 * layer and many - few < 1.5 * layer
