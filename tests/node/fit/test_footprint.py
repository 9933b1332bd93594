"""The formulas as a whole: what grows with what, what is shared, which phase is the peak."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from node.fit.footprint import (
    ENGINE_PROCESS_BYTES,
    checkpoint_tensor_bytes,
    footprint_of,
    trained_parameters,
    weight_bytes,
)
from node.fit.settings import MemorySettings
from node.fit.workload import Workload, workload_of
from scripts.bench.common.published_shapes import SHAPES
from tests.node.fit.shapes import PLAIN, ROUND, config, sizes

QWEN = sizes("Qwen2.5-0.5B")
KINDS = st.sampled_from(["cpu", "cuda"])
SETTINGS = st.builds(
    MemorySettings,
    dtype=st.sampled_from(["float32", "bfloat16"]),
    adapter_rank=st.sampled_from([0, 8, 64]),
    four_bit=st.just(False),
    rows=st.integers(1, 256),
    batch_tokens=st.integers(64, 20_000),
    recompute=st.booleans(),
    chunk_tokens=st.sampled_from([None, 256, 1024]),
    optimizer=st.sampled_from(["adamw", "adamw8bit", "host"]),
    merge_adapters=st.booleans(),
    store_bytes=st.just(1 << 31),
    save_beside=st.booleans(),
    averages=st.booleans(),
)
WORKLOADS = st.builds(
    lambda **changes: replace(ROUND, **changes),
    prompt_tokens=st.integers(1, 600),
    answer_tokens=st.integers(1, 1500),
    own_groups=st.integers(1, 64),
    foreign_groups=st.integers(0, 64),
    completions=st.integers(2, 16),
    engine_copies=st.integers(0, 3),
    generates_ahead=st.booleans(),
)
SHAPE = st.sampled_from(sorted(SHAPES)).map(sizes)


@settings(max_examples=60, deadline=None)
@given(shape=SHAPE, chosen=SETTINGS, workload=WORKLOADS, device=KINDS, layers=st.integers(1, 20))
def test_more_layers_never_take_less(
    shape: Any, chosen: MemorySettings, workload: Any, device: Any, layers: int
) -> None:
    deeper, chosen = replace(shape, layers=shape.layers + layers), replace(chosen, averages=False)  # or other encoding
    workload = replace(workload, foreign_groups=0)  # or a model too large for copies against harm
    for place in ("device", "host"):
        assert footprint_of(deeper, chosen, workload, device).peak_bytes(place) >= footprint_of(
            shape, chosen, workload, device
        ).peak_bytes(place)


@settings(max_examples=60, deadline=None)
@given(shape=SHAPE, chosen=SETTINGS, workload=WORKLOADS, more=st.integers(1, 300))
def test_more_groups_never_take_less(shape: Any, chosen: MemorySettings, workload: Any, more: int) -> None:
    larger = replace(workload, own_groups=workload.own_groups + more)
    before, after = (footprint_of(shape, chosen, each) for each in (workload, larger))
    assert after.phase("learning").bytes("host") >= before.phase("learning").bytes("host")


@settings(max_examples=60, deadline=None)
@given(shape=SHAPE, chosen=SETTINGS, workload=WORKLOADS, rows=st.integers(1, 16).map(lambda count: 16 * count))
def test_half_the_rows_of_a_crowded_batch_never_take_more(
    shape: Any, chosen: MemorySettings, workload: Any, rows: int
) -> None:
    """Rows come in eights, and a batch that becomes crowded gets spare slots: between others halving may take more."""
    assume(workload.own_groups * workload.completions > rows)
    chosen, fewer = replace(chosen, rows=rows), replace(chosen, rows=rows // 2)
    assert footprint_of(shape, fewer, workload).peak_bytes("host") <= footprint_of(shape, chosen, workload).peak_bytes(
        "host"
    )


@settings(max_examples=60, deadline=None)
@given(shape=SHAPE, chosen=SETTINGS, workload=WORKLOADS, device=KINDS)
def test_what_saves_memory_never_takes_more(shape: Any, chosen: MemorySettings, workload: Any, device: Any) -> None:
    full = replace(chosen, recompute=False, optimizer="adamw", save_beside=True, averages=True, merge_adapters=True)
    before = footprint_of(shape, full, workload, device)
    savers: tuple[dict[str, Any], ...] = (
        {"recompute": True}, {"optimizer": "adamw8bit"}, {"averages": False}, {"merge_adapters": False},
    )  # fmt: skip
    for saver in savers:
        after = footprint_of(shape, replace(full, **saver), workload, device)
        assert after.peak_bytes("device") <= before.peak_bytes("device"), saver
        assert after.peak_bytes("host") <= before.peak_bytes("host"), saver


def test_parts_of_whole_training_are_those_of_the_formulas() -> None:
    parameters = QWEN.parameters
    found = footprint_of(QWEN, replace(PLAIN, averages=False, save_beside=False), ROUND)
    parts = {part.name: part.bytes for part in found.phase("learning").parts}
    assert parts["weights"] == parts["gradients"] == 4 * parameters
    assert parts["optimizer"] == 8 * parameters
    assert found.checkpoint_bytes == 12 * parameters
    assert found.published_bytes == 2 * parameters


def test_copies_against_harm_are_planned_where_groups_of_others_are_learnt_from() -> None:
    adapted = replace(PLAIN, adapter_rank=16)

    def planned(settings: MemorySettings, workload: Workload) -> int:
        parts = footprint_of(QWEN, settings, workload).phase("stepping").parts
        return sum(part.bytes for part in parts if part.name == "copies against harm")

    assert planned(adapted, ROUND) == 2 * 12 * QWEN.adapter_parameters(16)
    assert planned(adapted, replace(ROUND, foreign_groups=0)) == 0
    assert planned(PLAIN, ROUND) == 0  # the whole model is too large


def test_an_adapter_takes_gradients_and_moments_of_itself_alone() -> None:
    adapted = replace(PLAIN, adapter_rank=16)
    trained = QWEN.adapter_parameters(16)
    assert trained_parameters(QWEN, adapted) == trained < QWEN.parameters // 40
    assert weight_bytes(QWEN, adapted) == 4 * (QWEN.parameters + trained)
    assert checkpoint_tensor_bytes(replace(adapted, averages=False), ROUND, trained) == 12 * trained


def test_weights_in_four_bits_take_about_an_eighth_of_their_matrices() -> None:
    four = weight_bytes(QWEN, replace(PLAIN, dtype="bfloat16", adapter_rank=16, four_bit=True))
    assert four == pytest.approx(451e6 + 4 * QWEN.adapter_parameters(16), rel=0.03)  # as bitsandbytes holds this shape


def test_the_host_optimizer_moves_masters_and_moments_off_the_device() -> None:
    kinds = {
        kind: footprint_of(QWEN, replace(PLAIN, dtype="bfloat16", optimizer=kind, averages=False), ROUND, "cuda")
        for kind in ("adamw", "host")
    }
    apart = kinds["adamw"].peak_bytes("device") - kinds["host"].peak_bytes("device")
    assert apart == 12 * QWEN.parameters
    assert kinds["host"].peak_bytes("host") > kinds["adamw"].peak_bytes("host")


def test_without_cuda_nothing_is_on_a_device() -> None:
    for device in ("cpu", "mps"):
        assert footprint_of(QWEN, PLAIN, ROUND, device).peak_bytes("device") == 0


def test_a_prompt_is_held_once_for_its_completions() -> None:
    long_prompts = replace(ROUND, prompt_tokens=512, answer_tokens=64, own_groups=1, completions=8)
    parts = {part.name: part.bytes for part in footprint_of(QWEN, PLAIN, long_prompts).phase("generating").parts}
    every_row_with_its_prompt = 8 * (512 + 64) * 2 * QWEN.layers * QWEN.keys * 4
    assert parts["keys and values"] <= every_row_with_its_prompt / 4 * 1.05


@pytest.mark.parametrize("rank", [0, 16])
def test_an_engine_in_its_own_process_takes_the_model_once_more_and_two_copies_of_what_is_trained(
    rank: int,
) -> None:
    chosen = replace(PLAIN, adapter_rank=rank)
    beside, here = (
        footprint_of(QWEN, chosen, replace(ROUND, engine_elsewhere=elsewhere)).peak_bytes("host")
        for elsewhere in (True, False)
    )
    copies = 4 * trained_parameters(QWEN, chosen)
    assert beside - here == weight_bytes(QWEN, chosen) + copies + ENGINE_PROCESS_BYTES


@pytest.mark.parametrize("rank", [0, 16])
def test_donors_cost_copies_of_what_is_trained_in_bfloat16(rank: int) -> None:
    chosen = replace(PLAIN, adapter_rank=rank)
    invited, alone = (
        footprint_of(QWEN, chosen, replace(ROUND, has_donors=has_donors)).peak_bytes("host")
        for has_donors in (True, False)
    )
    assert invited - alone == 3 * 2 * trained_parameters(QWEN, chosen)
    assert not workload_of(config(learner={"devices": 2}), (), QWEN, has_donors=True).has_donors


@pytest.mark.parametrize("rank", [0, 16])
@pytest.mark.parametrize("shape", ["Qwen2.5-0.5B", "Llama-3.2-1B"])
def test_a_card_that_computes_in_float32_alone_needs_a_third_to_a_half_more(shape: str, rank: int) -> None:
    settings = replace(PLAIN, adapter_rank=rank)
    short, wide = (
        footprint_of(sizes(shape), replace(settings, dtype=dtype), ROUND, "cuda").peak_bytes("device")
        for dtype in ("bfloat16", "float32")
    )
    assert 1.3 <= wide / short <= 1.5
