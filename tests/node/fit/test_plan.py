"""The choice of settings: what is preferred, what is kept, what is refused and with which remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from node.configuration import DEFAULT_STORE_BYTES
from node.fit.candidates import ADAPTER_RANK, Trained
from node.fit.footprint import footprint_of
from node.fit.model_sizes import known_sizes
from node.fit.plan import Plan, make_plan
from node.fit.settings import with_settings
from node.policy.model_files import model_folder
from node.state_sync.publishing import ROOM_SHARE
from protocol.errors import ConfigurationError
from scripts.bench.common.published_shapes import SHAPES
from tests.node.fit.shapes import GB, PLAIN, ROUND, config, cpu, gpu, sizes

QWEN = sizes("Qwen2.5-0.5B")
SEVEN_BILLION = replace(
    QWEN, layers=28, hidden=3584, intermediate=18944, heads=28, kv_heads=4, head_size=128, vocabulary=152064,
    tied=False, embedding_parameters=152064 * 3584, head_parameters=152064 * 3584, layer_parameters=233_000_000,
    layer_linear_widths=28 * 3584,
)  # fmt: skip


@dataclass(frozen=True)
class RanOut:
    rows: int
    batch_tokens: int
    learner_killed: int = 0
    recompute: bool = False


def plan(shape: Any, machine: Any, keys: dict[str, dict[str, Any]] | None = None, **extra: Any) -> Plan:
    return make_plan(config(**(keys or {})), shape, machine, ROUND, **extra)


@pytest.mark.parametrize("name", ["wren", "robin", "finch"])
@pytest.mark.parametrize("memory_bytes", [2 * GB, 16 * GB, 512 * GB])
def test_built_in_models_run_as_they_did_without_a_plan(name: str, memory_bytes: int) -> None:
    shape = known_sizes(model_folder(f"builtin:{name}"))
    assert shape is not None
    workload = replace(ROUND, prompt_tokens=15, answer_tokens=12)
    found = make_plan(config(), shape, cpu(memory_bytes), workload)
    assert found.settings == PLAIN
    resolved = with_settings(config(), found.settings)
    assert (resolved.policy.adapter_rank, resolved.engine.rows, resolved.learner.batch_tokens) == (0, 128, 8192)
    assert resolved.averaging == config().averaging and resolved.checkpoint == config().checkpoint


@settings(max_examples=60, deadline=None)
@given(shape=st.sampled_from(sorted(SHAPES)), memory_gb=st.floats(1.5, 80), device_gb=st.none() | st.floats(2, 90))
def test_a_plan_always_fits_what_it_was_made_for(shape: str, memory_gb: float, device_gb: float | None) -> None:
    host_bytes = int(memory_gb * GB)
    machine = cpu(host_bytes) if device_gb is None else gpu(int(device_gb * GB), host_bytes)
    try:
        found = plan(sizes(shape), machine)
    except ConfigurationError:
        return
    footprint = footprint_of(sizes(shape), found.settings, ROUND, machine.device)
    assert footprint == found.footprint and machine.excess_bytes(footprint) <= 0


def test_less_memory_takes_the_next_way_in_the_stated_order() -> None:
    found = [plan(QWEN, cpu(memory * GB)).settings for memory in (80, 30, 9, 5)]
    full, beside_peers, alone, adapted = found
    assert (full.adapter_rank, full.optimizer, full.recompute, full.averages) == (0, "adamw", False, True)
    assert beside_peers.adapter_rank == 0 and beside_peers.averages and not beside_peers.save_beside
    assert (alone.adapter_rank, alone.optimizer, alone.recompute, alone.averages) == (0, "adamw8bit", True, False)
    assert (adapted.adapter_rank, adapted.rows) == (ADAPTER_RANK, 128)


def test_weights_that_do_not_fit_the_gpu_in_bfloat16_are_held_in_four_bits() -> None:
    found = plan(SEVEN_BILLION, gpu(9 * GB)).settings
    assert (found.adapter_rank, found.four_bit, found.merge_adapters) == (ADAPTER_RANK, True, False)


def test_the_host_takes_the_optimizer_where_the_gpu_is_too_small_for_it() -> None:
    assert plan(QWEN, gpu(6 * GB)).settings.optimizer == "host"
    assert plan(QWEN, gpu(80 * GB)).settings.optimizer == "adamw"


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("policy", "adapter_rank", 0),
        ("policy", "adapter_rank", 64),
        ("policy", "dtype", "bfloat16"),
        ("engine", "rows", 24),
        ("learner", "batch_tokens", 3000),
        ("learner", "recompute", False),
        ("learner", "recompute", True),
        ("learner", "optimizer", "adamw"),
        ("swarm", "store_bytes", 1 << 30),
    ],
)
@pytest.mark.parametrize("memory_gb", [12, 64])
def test_what_a_person_set_is_kept(section: str, key: str, value: Any, memory_gb: int) -> None:
    asked = {section: {key: value}}
    found = plan(QWEN, cpu(memory_gb * GB), asked).settings
    resolved = with_settings(config(**asked), found)
    assert getattr(found, key) == value == getattr(getattr(resolved, section), key)


def test_what_was_set_and_does_not_fit_is_refused_with_the_nearest_that_does() -> None:
    with pytest.raises(ConfigurationError) as refused:
        plan(QWEN, cpu(5 * GB), {"policy": {"adapter_rank": 0}})
    message = str(refused.value)
    assert "does not fit" in message and "more than the 5.0 GB" in message and "would fit" in message
    assert f"--set policy.adapter_rank={ADAPTER_RANK}" in message
    near = plan(QWEN, cpu(5 * GB))
    assert f"--set learner.batch_tokens={near.settings.batch_tokens}" in message


def test_a_model_that_fits_in_no_way_is_refused_with_the_size_that_would() -> None:
    with pytest.raises(ConfigurationError, match=r"at most [\d.]+ billion weights"):
        plan(SEVEN_BILLION, cpu(12 * GB))
    with pytest.raises(ConfigurationError, match="builtin:wren"):
        plan(SEVEN_BILLION, cpu(GB // 2))


def test_four_bit_weights_are_refused_where_a_checkpoint_was_trained_without_an_adapter() -> None:
    with pytest.raises(ConfigurationError, match=r"policy\.four_bit = true, and the checkpoint"):
        plan(QWEN, cpu(64 * GB), {"policy": {"four_bit": True}}, kept=Trained(0, four_bit=False))


@pytest.mark.parametrize(("kept", "memory_gb"), [(Trained(0, False), 8), (Trained(8, False), 500)])
def test_a_directory_with_a_checkpoint_keeps_what_that_was_trained_with(kept: Trained, memory_gb: int) -> None:
    found = plan(QWEN, cpu(memory_gb * GB), kept=kept)
    assert found.settings.adapter_rank == kept.adapter_rank
    assert found.because == "the checkpoint here was trained so"


def test_running_out_lowers_rows_and_passes_and_never_the_family() -> None:
    before = plan(QWEN, cpu(9 * GB)).settings
    after = plan(QWEN, cpu(9 * GB), fitted=RanOut(rows=16, batch_tokens=512)).settings
    assert (after.rows, after.batch_tokens) == (16, 512)
    assert (after.adapter_rank, after.four_bit) == (before.adapter_rank, before.four_bit)


def test_recomputation_that_was_switched_on_stays_unless_a_person_forbids_it() -> None:
    ran_out = RanOut(rows=128, batch_tokens=4096, recompute=True)
    after = plan(QWEN, cpu(80 * GB), fitted=ran_out).settings
    assert after.recompute and after.chunk_tokens is not None and after.batch_tokens == 4096
    assert not plan(QWEN, cpu(80 * GB), {"learner": {"recompute": False}}, fitted=ran_out).settings.recompute


def test_a_learner_that_was_killed_for_its_memory_comes_back_smaller_in_the_same_family() -> None:
    before = plan(QWEN, cpu(9 * GB))
    killed = plan(QWEN, cpu(9 * GB), fitted=RanOut(before.settings.rows, before.settings.batch_tokens, 2))
    assert killed.footprint.peak_bytes("host") < before.footprint.peak_bytes("host")
    assert killed.settings.adapter_rank == before.settings.adapter_rank


def test_the_store_has_room_to_publish_a_large_model_and_leaves_half_of_the_disk() -> None:
    llama = sizes("Llama-3.2-1B")
    found = plan(llama, cpu(500 * GB))
    assert ROOM_SHARE * found.settings.store_bytes >= found.footprint.published_bytes > DEFAULT_STORE_BYTES
    small_disk = plan(llama, cpu(500 * GB, disk_free_bytes=GB))
    assert small_disk.settings.store_bytes == DEFAULT_STORE_BYTES


def test_without_room_to_average_both_averaging_and_publishing_are_off() -> None:
    found = plan(QWEN, cpu(9 * GB))
    resolved = with_settings(config(), found.settings)
    assert not found.settings.averages
    assert resolved.averaging.every_rounds == 0 and resolved.checkpoint.publish_every_rounds == 0
