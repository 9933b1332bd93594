"""Which layers each machine holds: all have a place, what fits is kept to, and a refusal says what is missing."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

from node.fit.candidates import Trained
from node.fit.stages.plan import USUAL_LINK, LinkSpeed, Pace, StageMachine, StagePlan, plan_stages
from node.fit.stages.table import stage_plan_lines
from node.fit.stages.work import layers_by_time
from protocol.errors import ConfigurationError
from tests.node.fit.shapes import GB, ROUND, config, cpu, sizes

PACE = Pace(0.15e12, 30e9)
SHAPE = "Qwen2.5-0.5B"
ALONE = replace(ROUND, foreign_groups=0)


def machine(name: str, memory_bytes: float, speed: float = 1.0) -> StageMachine:
    return StageMachine(name, int(memory_bytes), Pace(speed * PACE.flops, speed * PACE.bytes_a_second))


def planned(owner_bytes: float, *machines: StageMachine, **changes: Any) -> StagePlan:
    return plan_stages(config(**changes), sizes(SHAPE), cpu(int(owner_bytes)), PACE, PACE, machines, ALONE)


def test_all_layers_have_one_place_in_order_and_no_machine_is_filled_beyond_its_memory() -> None:
    for memory in (2 * GB, 4 * GB):
        plan = planned(memory, machine("attic", memory), machine("cellar", memory))
        begins = [each.first for each in plan.held]
        assert [*begins, 24] == [0, *(each.last for each in plan.held)]
        assert all(each.first < each.last and each.expected_bytes <= each.usable_bytes for each in plan.held)
        assert plan.settings.adapter_rank > 0 and not plan.settings.merge_adapters
        assert plan.order.begun > plan.order.behind


def test_a_faster_machine_holds_more_layers_and_a_small_one_no_more_than_it_has_room_for() -> None:
    slow, fast = planned(8 * GB, machine("slow", 8 * GB, 0.5), machine("fast", 8 * GB, 2.0)).held[1:]
    assert fast.last - fast.first > 2 * (slow.last - slow.first)
    small = planned(8 * GB, machine("slow", 8 * GB, 0.5), machine("fast", 0.9 * GB, 2.0)).held[2]
    assert small.last - small.first < fast.last - fast.first
    assert small.expected_bytes <= 0.9 * GB


def test_machines_of_a_third_of_the_others_speed_leave_none_idle_for_more_than_a_fifth_of_a_step() -> None:
    for other in (1 / 3, 1.0, 3.0):
        plan = planned(16 * GB, machine("attic", 16 * GB, other))
        assert max(each.idle for each in plan.held) <= 0.2


def test_layers_are_computed_twice_only_where_memory_is_short_or_a_person_says_so() -> None:
    small, large = ([machine(name, memory) for name in ("attic", "cellar")] for memory in (2 * GB, 32 * GB))
    assert planned(2 * GB, *small).settings.recompute
    free, asked = planned(32 * GB, *large), planned(32 * GB, *large, learner={"recompute": True})
    assert not free.settings.recompute and asked.settings.recompute
    assert free.training_seconds < 0.85 * asked.training_seconds
    never = planned(32 * GB, *large, learner={"recompute": False})
    assert never.settings == free.settings


def test_a_round_takes_longer_by_what_slow_links_take() -> None:
    near, far = (
        planned(16 * GB, *(replace(machine(name, 16 * GB), link=link) for name in ("attic", "cellar")))
        for link in (USUAL_LINK, LinkSpeed(6.25e6, 0.02))
    )
    assert far.sent_bytes == near.sent_bytes and [each.last for each in far.held] == [each.last for each in near.held]
    assert far.generating_seconds > near.generating_seconds
    assert far.batches > near.batches > 1  # more of them are on their way
    assert far.training_seconds > near.training_seconds + 0.1


def test_work_for_messages_takes_the_owners_time_and_layers() -> None:
    free, works = (
        planned(16 * GB, *(replace(machine(name, 16 * GB), link=link) for name in ("attic", "cellar")))
        for link in (USUAL_LINK, LinkSpeed(125e6, 0.0002, 0.001, 1e-6))
    )
    assert works.held[0].last < free.held[0].last
    assert works.training_seconds > 1.05 * free.training_seconds
    assert works.generating_seconds > free.generating_seconds


def test_a_slower_head_leaves_the_owner_fewer_layers() -> None:
    held = [
        plan_stages(
            config(), sizes(SHAPE), cpu(16 * GB), PACE, Pace(speed * PACE.flops, PACE.bytes_a_second),
            [machine("attic", 16 * GB)], ALONE,
        ).held[0].last
        for speed in (1.0, 0.5)
    ]  # fmt: skip
    assert held[1] < held[0]


def test_machines_that_are_too_small_are_refused_with_what_is_missing_and_that_much_more_is_enough() -> None:
    memory = [1.4 * GB, 0.85 * GB, 0.85 * GB]
    with pytest.raises(ConfigurationError) as refused:
        planned(memory[0], *(machine(str(at), each) for at, each in enumerate(memory[1:])))
    found = re.search(r"([\d.]+) (MB|GB) more memory in all", str(refused.value))
    assert found is not None
    missing = float(found[1]) * (GB if found[2] == "GB" else 1e6)
    assert 0 < missing < 2 * GB
    assert planned(memory[0] + missing, *(machine(str(at), each + missing) for at, each in enumerate(memory[1:])))


def test_weights_are_in_the_owners_dtype_and_a_refusal_names_the_smaller_one_where_that_would_fit() -> None:
    others = machine("attic", 1.5 * GB), machine("cellar", 1.5 * GB)
    with pytest.raises(ConfigurationError, match=r"policy\.dtype=bfloat16 would fit"):
        planned(1.5 * GB, *others)
    narrow = planned(1.5 * GB, *others, policy={"model": "tests/model", "dtype": "bfloat16"})
    assert narrow.settings.dtype == "bfloat16"
    assert planned(4 * GB, *others).settings.dtype == "float32"


def test_whole_weights_four_bits_and_more_machines_than_layers_are_refused() -> None:
    others = machine("attic", 8 * GB), machine("cellar", 8 * GB)
    for policy in ({"adapter_rank": 0}, {"four_bit": True, "adapter_rank": 16}):
        with pytest.raises(ConfigurationError, match="adapter"):
            planned(8 * GB, *others, policy={"model": "tests/model", **policy})
    with pytest.raises(ConfigurationError, match="adapter"):
        plan_stages(config(), sizes(SHAPE), cpu(8 * GB), PACE, PACE, others, ALONE, kept=Trained(0, four_bit=False))
    with pytest.raises(ConfigurationError, match="too few"):
        plan_stages(config(), sizes(SHAPE, layers=2), cpu(8 * GB), PACE, PACE, others, ALONE)


def test_what_a_person_set_is_kept_and_the_lines_name_every_machine() -> None:
    plan = planned(4 * GB, machine("attic\x1b[31m", 4 * GB), learner={"batch_tokens": 2048}, engine={"rows": 8})
    assert (plan.settings.batch_tokens, plan.settings.rows) == (2048, 8)
    text = "\n".join(stage_plan_lines(plan, 24))
    assert "\x1b" not in text and "layers 1 to" in text and "to 24 of 24" in text


def test_layers_end_as_early_as_any_other_way_of_sharing_them_out() -> None:
    for seconds in ([1.0, 1.0], [1.0, 3.0], [2.0, 1.0]):
        held = layers_by_time(10, seconds, [2.5, 0.5], [1, 1], [10, 8])
        ends = [
            max(2.5 + own * seconds[0], 0.5 + (10 - own) * seconds[1]) for own in range(1, 10) if 1 <= 10 - own <= 8
        ]
        assert sum(held) == 10 and held[1] <= 8
        assert max(2.5 + held[0] * seconds[0], 0.5 + held[1] * seconds[1]) == pytest.approx(min(ends))
