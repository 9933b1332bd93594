from __future__ import annotations

from dataclasses import replace

import pytest

from node.configuration import BackendName, EngineSection
from node.engines.backend_choice import EngineFacts, choose_backend, donors_unused
from node.engines.vllm_backend.environment import Installed

NOTHING = EngineFacts(vllm=None, on_card=True, four_bit=False)
FOR_CARDS = EngineFacts(Installed("cuda", "0.32.0"), on_card=True, four_bit=False, parameters=7_600_000_000)
FOR_PROCESSORS = EngineFacts(Installed("cpu", "0.32.0"), on_card=False, four_bit=False)


@pytest.mark.parametrize("facts", [NOTHING, FOR_CARDS, FOR_PROCESSORS])
@pytest.mark.parametrize("backend", ["torch", "process"])
def test_an_engine_that_needs_nothing_is_the_one_that_is_set(backend: str, facts: EngineFacts) -> None:
    choice = choose_backend(EngineSection.model_validate({"backend": backend}), facts)
    assert (choice.backend, choice.wanted) == (backend, backend)
    assert f'engine.backend = "{backend}"' in choice.because


@pytest.mark.parametrize(
    ("facts", "backend"),
    [
        (FOR_CARDS, "vllm"),
        (NOTHING, "torch"),
        (FOR_PROCESSORS, "torch"),
        (EngineFacts(FOR_CARDS.vllm, on_card=False, four_bit=False), "torch"),
        (EngineFacts(FOR_PROCESSORS.vllm, on_card=True, four_bit=False), "torch"),
        (EngineFacts(FOR_CARDS.vllm, on_card=True, four_bit=True), "torch"),
        (replace(FOR_CARDS, parameters=1_500_000_000), "torch"),
        (replace(FOR_CARDS, parameters=0), "torch"),
    ],
)
def test_auto_takes_vllm_for_a_large_model_where_it_was_installed_for_the_card_that_is_used(
    facts: EngineFacts, backend: str
) -> None:
    choice = choose_backend(EngineSection(), facts)
    assert (choice.backend, choice.wanted) == (backend, backend)


def test_auto_names_vllm_where_it_is_there_and_not_taken() -> None:
    assert '"vllm" would take vLLM' in choose_backend(EngineSection(), replace(FOR_CARDS, parameters=1)).because
    assert "vLLM" not in choose_backend(EngineSection(), NOTHING).because


def test_vllm_that_cannot_be_had_is_replaced_and_the_remedy_told() -> None:
    section = EngineSection(backend="vllm")
    assert choose_backend(section, FOR_PROCESSORS).backend == "vllm"
    missing = choose_backend(section, NOTHING)
    assert (missing.backend, missing.wanted) == ("torch", "vllm")
    assert "starling engine install vllm" in missing.because
    four_bit = choose_backend(section, EngineFacts(FOR_CARDS.vllm, on_card=True, four_bit=True))
    assert four_bit.backend == "torch" and "4 bits" in four_bit.because


@pytest.mark.parametrize(
    ("backend", "facts", "chosen"),
    [
        ("auto", NOTHING, "process"),
        ("auto", FOR_CARDS, "vllm"),
        ("vllm", NOTHING, "process"),
        ("process", NOTHING, "process"),
    ],
)
def test_a_learner_in_shards_never_has_the_engine_in_its_own_process(
    backend: str, facts: EngineFacts, chosen: str
) -> None:
    section = EngineSection.model_validate({"backend": backend})
    assert choose_backend(section, replace(facts, in_shards=True)).backend == chosen


@pytest.mark.parametrize(
    ("backend", "behind", "in_shards", "why"),
    [
        ("torch", False, False, None),
        ("torch", True, False, None),  # it has weights of its own in the learner's process
        ("process", False, False, None),
        ("vllm", False, False, None),
        ("process", True, False, "max_staleness"),
        ("vllm", True, False, "max_staleness"),
        ("process", False, True, "learner.devices"),
    ],
)
def test_donors_help_where_the_learner_has_the_weights_that_they_sample_from(
    backend: BackendName, behind: bool, in_shards: bool, why: str | None
) -> None:
    found = donors_unused(backend, behind=behind, in_shards=in_shards)
    assert found is None if why is None else why in str(found)
