"""vLLM in the plan: as what it is, not as the embedded engine in a process of its own."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from node.engines.vllm_backend.environment import Installed
from node.fit.footprint import Phase, footprint_of, trained_parameters, weight_bytes
from node.fit.model_sizes import ModelSizes
from node.fit.workload import VllmMemory, workload_of
from tests.node.fit.shapes import GB, PLAIN, ROUND, config, sizes

QWEN, LARGE = sizes("Qwen2.5-0.5B"), sizes("Qwen2.5-0.5B", layers=500)
CPU, CUDA = Installed("cpu", "0.32.0"), Installed("cuda", "0.32.0")
ON_VLLM = replace(ROUND, engine_elsewhere=True, vllm=VllmMemory(GB, 30 * GB))
EMBEDDED_ALONE = {"engine process", "weights in the engine's process", "keys and values", "sampling", "prompts"}


def parts(phase: Phase) -> dict[str, int]:
    return {part.name: part.bytes for part in phase.parts}


@pytest.mark.parametrize("rank", [0, 16])
def test_on_a_processor_it_holds_weights_and_cache_in_every_phase_and_nothing_is_counted_as_the_embedded_engine(
    rank: int,
) -> None:
    chosen = replace(PLAIN, adapter_rank=rank)
    for phase in footprint_of(QWEN, chosen, ON_VLLM).phases:
        found = parts(phase)
        assert found["vLLM's keys and values"] == GB
        loaded_anew = 1 if rank else 2  # all weights, or an adapter alone
        assert found["vLLM's weights"] >= loaded_anew * weight_bytes(QWEN, chosen) + 2 * trained_parameters(
            QWEN, chosen
        )
        assert found["copies for the engine"] == 4 * trained_parameters(QWEN, chosen)  # in the learner
        assert not EMBEDDED_ALONE & found.keys() and "engine's copies" not in found


def test_a_larger_cache_is_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = config(engine={"backend": "vllm"})
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    small = workload_of(chosen, (), QWEN, vllm=CPU)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "5")
    large = workload_of(chosen, (), QWEN, vllm=CPU)
    peaks = [footprint_of(QWEN, PLAIN, replace(each, answer_tokens=100)).peak_bytes("host") for each in (small, large)]
    assert peaks[1] - peaks[0] == 4 * 2**30


def test_on_a_card_it_has_its_share_while_the_round_generates_and_main_memory_while_it_learns() -> None:
    found = footprint_of(QWEN, PLAIN, ON_VLLM, "cuda")
    generating, learning = (parts(found.phase(name)) for name in ("generating", "learning"))
    assert generating["vLLM"] == 30 * GB and "vLLM" not in learning
    assert learning["vLLM's process"] > weight_bytes(QWEN, PLAIN)
    assert not EMBEDDED_ALONE & generating.keys()


@pytest.mark.parametrize(
    ("backend", "model", "installed", "card_bytes", "counted"),
    [
        ("vllm", QWEN, CUDA, 80 * GB, VllmMemory(2**30, 40 * GB)),
        ("auto", LARGE, CUDA, 80 * GB, VllmMemory(2**30, 40 * GB)),
        ("auto", QWEN, CUDA, 80 * GB, None),  # a small model has the embedded engine
        ("auto", LARGE, CPU, None, None),  # on a processor it is the engine only for who sets it
        ("vllm", QWEN, CPU, None, VllmMemory(2**30)),
        ("vllm", QWEN, None, 80 * GB, None),  # the embedded engine takes over
    ],
)
def test_it_is_counted_where_it_will_generate(
    backend: str,
    model: ModelSizes,
    installed: Installed | None,
    card_bytes: int | None,
    counted: VllmMemory | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    chosen = config(engine={"backend": backend, "memory_share": 0.5})
    found = workload_of(chosen, (), model, card_bytes=card_bytes, vllm=installed)
    assert found.vllm == counted and found.engine_elsewhere == (counted is not None)


def test_an_engine_that_runs_beside_the_learner_keeps_the_card() -> None:
    found = footprint_of(QWEN, PLAIN, replace(ON_VLLM, generates_ahead=True), "cuda")
    assert parts(found.phase("learning"))["vLLM"] == 30 * GB


def test_a_base_model_in_4_bits_is_generated_from_by_the_embedded_engine() -> None:
    chosen = replace(PLAIN, adapter_rank=16, four_bit=True)
    assert footprint_of(QWEN, chosen, ON_VLLM, "cuda") == footprint_of(
        QWEN, chosen, replace(ON_VLLM, vllm=None), "cuda"
    )
