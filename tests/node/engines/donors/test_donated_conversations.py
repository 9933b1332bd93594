"""Conversations that an engine and its donors have at once: each is whole, whoever had it and whoever was lost."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from node.engines.donors.donated_engine import DonatedEngine
from node.engines.donors.shared_turns import SharedTurns
from node.engines.engine import GenerationProgress, GenerationRequest, Heard, Sample, Sampling, Segment
from node.engines.resumption import sampled_since
from node.policy.policy import Policy
from protocol.rollouts import FinishReason
from protocol.streams.engine_messages import EngineAnswer, EngineProgress, Welcome
from tests.node.engines.donors.lent import ASKED, Village, learner_of, until_ready
from tests.node.engines.process.hosted import Load
from tests.node.engines.test_torch_engine import logps_by_forward
from tests.node.engines.test_turns import CONTEXT, Said, partial_delay

CONVERSED = [replace(each, max_new_tokens=6, conversation_tokens=CONTEXT) for each in ASKED]


def check(policy: Policy, requests: Sequence[GenerationRequest], reached: Sequence[GenerationProgress]) -> None:
    """Every conversation has ended, was told what follows in its own request, and says how its tokens were drawn: by
    the learner's weights, or by these in bfloat16, which donors have."""
    rounded = policy.separate()
    for parameter in rounded.model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    for at, (request, progress) in enumerate(zip(requests, reached, strict=True)):
        assert len(progress.samples) == request.completions and not progress.partials
        for sample in progress.samples:
            turns = len(sample.observed) + 1
            for turn, (place, ids) in enumerate(sample.observed, 1):
                said = Said()
                said.acted(0, at, until(sample, turn, place))
                ((_, heard),) = said.replies(wait=True)
                assert heard is not None and tuple(heard.ids) == ids
            assert turns == (2 if at == 2 else 4)
        row, (ids_, logps) = sampled_since(request.prompt_ids, progress.samples[0], 0)[-1]
        found = [logps_by_forward(each, row, ids_.tolist(), 1.0).numpy() for each in (policy, rounded)]
        assert min(np.abs(logps - each).max() for each in found) < 1e-4


def until(sample: Sample, turn: int, place: int) -> Sample:
    return replace(sample, token_ids=sample.token_ids[:place], observed=sample.observed[: turn - 1])


def conversed(village: Village, engine: DonatedEngine, donors: int) -> list[str]:
    """Converses until so many donors have had a part. Returns what became of each in that call."""
    for seed in range(40):
        turns = Said(partial_delay(seed, 4))
        check(village.policy, CONVERSED, engine.advance(CONVERSED, Sampling(1.0, seed), turns=turns))
        states = [each.state for each in village.told[-1].donors]
        if states.count("generated") >= donors:
            return states
    raise AssertionError("the donors never had a part")


def test_donors_have_their_share_of_conversations_each_in_its_own_row(
    load_policy: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    village = Village(load_policy("qwen3").separate())
    runs = [village.comes("ada"), village.comes("bob")]
    with learner_of(village) as engine:
        until_ready(engine, 2)
        prompts = [counted_prompts(run.engine._engine._decoder, monkeypatch) for run in runs]
        conversed(village, engine, 2)
        told = village.told[-1]
        assert all(each.groups_done == each.groups > 0 and each.tokens > 0 for each in told.donors)
        assert all(0 < len(each) <= len(CONVERSED) * len(village.told) for each in prompts)
        assert sum(map(len, prompts)) < 2 * sum(each.groups for told in village.told for each in told.donors)
    assert not village.dropped


def counted_prompts(decoder: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    prompts, prefill = list[Any](), decoder.prefill

    def noted(prefixes: Sequence[Sequence[int]], completions: Sequence[int]) -> Any:
        prompts.extend(prefixes)
        return prefill(prefixes, completions)

    monkeypatch.setattr(decoder, "prefill", noted)
    return prompts


def test_a_donor_that_is_lost_in_the_middle_costs_its_part_alone(load_policy: Load) -> None:
    village = Village(load_policy("qwen3").separate())
    run = village.comes("ada")

    class Cutting(Said):
        cut = False

        def acted(self, conversation: int, request: int, so_far: Sample) -> None:
            super().acted(conversation, request, so_far)
            if request == len(CONVERSED) - 1 and not self.cut:  # the last requests are a donor's
                run.die()
                self.cut = True

    with learner_of(village) as engine:
        until_ready(engine, 1)
        check(village.policy, CONVERSED, engine.advance(CONVERSED, Sampling(1.0, 1), turns=Cutting()))
        assert village.told[-1].donors[0].state == "lost"


def test_a_donor_that_claims_other_log_probabilities_of_its_actions_is_dropped(load_policy: Load) -> None:
    village = Village(load_policy("qwen3").separate())

    def higher(answer: EngineAnswer) -> EngineAnswer:
        if isinstance(answer, EngineProgress) and lying.is_set():
            return msgspec.structs.replace(answer, logps=bytes(len(answer.logps)))
        return answer

    lying = threading.Event()
    village.comes("eve", higher)
    with learner_of(village) as engine:
        until_ready(engine, 1)
        lying.set()
        check(village.policy, CONVERSED, engine.advance(CONVERSED, Sampling(1.0, 1), turns=Said()))
    assert "log-probabilit" in village.dropped["eve"]


def test_where_a_donor_takes_no_conversations_all_go_in_step(load_policy: Load) -> None:
    village = Village(load_policy("qwen3").separate())
    village.comes("old", older)
    with learner_of(village) as engine:
        until_ready(engine, 1)
        assert conversed(village, engine, 1) == ["generated"]


def older(answer: EngineAnswer) -> EngineAnswer:
    return msgspec.structs.replace(answer, minor=0, converses=False) if isinstance(answer, Welcome) else answer


def test_what_turns_raise_is_raised_to_every_engine() -> None:
    class Failing(Said):
        def replies(self, *, wait: bool) -> list[tuple[int, Heard | None]]:
            raise ValueError("the environment is broken")

    shared = SharedTurns(Failing())
    for part in (shared.part([0]), shared.part([1])):
        with pytest.raises(ValueError, match="broken"):
            part.replies(wait=True)


def test_each_engine_hears_what_follows_its_own_actions() -> None:
    slept, delays = list[float](), [3, 0]
    shared = SharedTurns(Said(lambda: delays.pop(0)), sleep=slept.append)
    first, second = shared.part([4]), shared.part([2, 7])
    first.acted(9, 0, sampled(5))
    second.acted(9, 1, sampled(6))
    assert first.replies(wait=False) == []
    assert [number for number, _ in second.replies(wait=True)] == [9]
    assert [number for number, _ in first.replies(wait=True)] == [9]
    assert slept


def sampled(token: int) -> Sample:
    return Sample(np.array([token]), np.zeros(1, np.float32), FinishReason.STOP, (Segment(1, 1),))
