"""What a learner on several devices takes: divided on GPUs, together one whole in the memory of a machine without."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from node.fit.footprint import Footprint, Phase, footprint_of, weight_bytes
from node.fit.plan import Plan, make_plan
from node.fit.workload import Workload, workload_of
from protocol.errors import ConfigurationError
from tests.node.fit.shapes import GB, PLAIN, ROUND, config, cpu, gpu, sizes

QWEN = sizes("Qwen2.5-0.5B")
WHOLE = replace(PLAIN, recompute=True, chunk_tokens=1024)
SEVEN_BILLION = replace(
    QWEN, layers=28, hidden=3584, intermediate=18944, heads=28, kv_heads=4, head_size=128, vocabulary=152064,
    tied=False, embedding_parameters=152064 * 3584, head_parameters=152064 * 3584, layer_parameters=233_000_000,
    layer_linear_widths=28 * 3584,
)  # fmt: skip


def on(devices: int) -> Workload:
    return replace(ROUND, devices=devices, engine_elsewhere=True)


def parts(phase: Phase) -> dict[str, int]:
    return {part.name: part.bytes for part in phase.parts}


def of(devices: int, device: Any) -> Footprint:
    return footprint_of(QWEN, replace(WHOLE, averages=False), on(devices), device)


@pytest.mark.parametrize("devices", [2, 3, 8])
def test_a_gpu_holds_its_share_of_weights_moments_and_gradients_and_gathered_layers_besides(devices: int) -> None:
    one, several = (parts(of(each, "cuda").phase("learning")) for each in (1, devices))
    for name in ("weights", "optimizer", "gradients"):
        assert several[name] == -(-one[name] // devices)
    assert several["activations"] == one["activations"]
    assert "gathered layers" not in one and several["gathered layers"] < one["weights"] * 3
    assert "weights in the engine's process" in one and "weights in the engine's process" not in several


def test_the_engines_gpu_holds_the_whole_model_and_nothing_of_the_learner() -> None:
    found = parts(of(2, "cuda").phase("generating, on the engine's GPU"))
    assert found["weights in the engine's process"] == weight_bytes(QWEN, WHOLE)
    assert not {"weights", "optimizer"} & found.keys()


def test_on_a_cpu_all_processes_hold_one_model_together_and_each_its_own_pass_and_libraries() -> None:
    one, several = (parts(of(each, "cpu").phase("learning")) for each in (1, 3))
    for name in ("weights", "optimizer", "gradients"):
        assert several[name] == one[name]
    for name in ("learner process", "activations", "compiled kernels"):
        assert several[name] == 3 * one[name]


def test_every_process_loads_the_whole_model_into_main_memory_first() -> None:
    loading = of(4, "cuda").phase("loading")
    assert parts(loading)["weights"] == 4 * weight_bytes(QWEN, WHOLE)
    assert loading.bytes("device") == 0


def plan(machine: Any, devices: int, **learner: Any) -> Plan:
    chosen = config(learner={"devices": devices} | learner, policy={"model": "tests/model", "adapter_rank": 0})
    return make_plan(chosen, SEVEN_BILLION, machine, replace(workload_of(chosen, (), SEVEN_BILLION), answer_tokens=100))


def test_a_model_whose_training_no_gpu_holds_fits_on_four_of_them() -> None:
    with pytest.raises(ConfigurationError):
        plan(gpu(48 * GB, 1000 * GB), 1, optimizer="adamw")
    found = plan(gpu(48 * GB, 1000 * GB), 4, optimizer="adamw").settings
    assert found.optimizer == "adamw" and not found.adapter_rank


def test_layers_are_recomputed_and_nothing_is_chosen_that_shards_cannot_have() -> None:
    chosen = config(learner={"devices": 2})
    roomy = make_plan(chosen, QWEN, cpu(512 * GB), on(2)).settings
    assert roomy.recompute and roomy.optimizer == "adamw"
    for memory in (4, 6, 8, 12):
        try:
            found = make_plan(chosen, QWEN, gpu(memory * GB), on(2)).settings
        except ConfigurationError:
            continue
        assert found.recompute and not found.four_bit and found.optimizer != "adamw8bit"


def test_a_learner_on_several_devices_has_its_engine_elsewhere() -> None:
    assert workload_of(config(learner={"devices": 2}), (), QWEN).engine_elsewhere
    assert not workload_of(config(), (), QWEN).engine_elsewhere
