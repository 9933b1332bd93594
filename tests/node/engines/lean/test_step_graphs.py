"""Recorded decode steps: the same samples as steps that the host starts, and what is refused (``recorded_calls``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from node.engines.engine import GenerationRequest, Sampling
from node.engines.lean import decoder, step_graphs
from node.engines.lean.decoder import LeanDecoder
from node.engines.lean.step_graphs import Recorded, StepGraphs, graph_rows
from node.engines.torch import TorchEngine
from node.policy.policy import Policy
from tests.node.engines.lean.recorded_calls import Recorder

Load = Callable[..., Policy]
ASKED = [GenerationRequest([5, 9, 3], 2, 6), GenerationRequest([7] * 9, 1, 4), GenerationRequest([4, 4], 2, 6)]


@pytest.mark.usefixtures("by_triton")
@pytest.mark.parametrize("shared", [False, True])
def test_rows_that_join_and_leave_get_the_same_samples_from_recorded_steps(
    load_policy: Load, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, recorder = load_policy("qwen3-narrow"), Recorder()
    plain = TorchEngine(policy, rows=3, seed=0, shared_prompts=shared, look_every=4)
    monkeypatch.setattr(decoder, "recorder_for", lambda device: recorder)
    graphs = TorchEngine(policy, rows=3, seed=0, shared_prompts=shared, look_every=4)
    for seed in (1, 2):  # the second call has other addresses
        wanted = plain.generate(ASKED, Sampling(seed=seed))
        for ours, theirs in zip(graphs.generate(ASKED, Sampling(seed=seed)), wanted, strict=True):
            for one, other in zip(ours, theirs, strict=True):
                assert one.token_ids.tolist() == other.token_ids.tolist()
                np.testing.assert_allclose(one.logps, other.logps, atol=1e-5)
    assert recorder.recorded >= 2 and recorder.replayed >= 10


@pytest.mark.usefixtures("by_triton")
def test_new_weights_are_not_those_of_a_recorded_step(load_policy: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = load_policy("qwen3-narrow")
    monkeypatch.setattr(decoder, "recorder_for", lambda device: Recorder())
    engine = TorchEngine(policy, rows=3, seed=0)
    assert isinstance(engine._decoder, LeanDecoder)
    engine.generate(ASKED[:1], Sampling(seed=1))
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.mul_(0.5)
    engine.load_weights(1, policy.trainable())
    again = engine.generate(ASKED[:1], Sampling(seed=1))
    anew = TorchEngine(policy, rows=3, seed=0).generate(ASKED[:1], Sampling(seed=1))
    assert [s.token_ids.tolist() for s in again[0]] == [s.token_ids.tolist() for s in anew[0]]


def test_rows_are_rounded_up_to_few_sizes() -> None:
    assert [graph_rows(rows, 256) for rows in (1, 8, 9, 17, 33, 65, 256)] == [8, 8, 16, 32, 64, 96, 256]
    assert graph_rows(20, 24) == 24
    assert len({graph_rows(rows, 256) for rows in range(1, 257)}) == 10


class Wrong(Recorder):
    """Replays something else than what was recorded."""

    def record(self, work: Callable[[], Tensor]) -> Recorded:
        return Recorded(lambda: None, work() + 1.0, None)


class Unable(Recorder):
    def record(self, work: Callable[[], Tensor]) -> Recorded:
        raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize(("recorder", "said"), [(Wrong(), "does not repeat"), (Unable(), "not permitted")])
def test_a_recording_that_fails_or_differs_is_not_used(
    recorder: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    steps = list[int]()

    def step(rows: int) -> Tensor:
        steps.append(rows)
        return torch.ones(rows, 3)

    graphs = StepGraphs(step, recorder)
    for _ in range(6):
        assert torch.equal(graphs.logits(8), torch.ones(8, 3))
    assert said in caplog.text and len(caplog.records) == 1
    assert len(steps) - 6 <= 1, "it is tried once"


def test_what_the_host_would_have_to_read_is_refused_by_the_stand_in() -> None:
    with pytest.raises(RuntimeError, match="makes the host wait"):
        Recorder().record(lambda: torch.ones(2) * float(torch.ones(1).sum()))


def test_a_step_is_recorded_only_after_as_many_rows_came_several_times() -> None:
    recorder = Recorder()
    graphs = StepGraphs(lambda rows: torch.zeros(rows, 2), recorder)
    for _ in range(step_graphs.WARM_STEPS):
        graphs.logits(8)
    assert recorder.recorded == 0
    for _ in range(3):
        graphs.logits(8)
    assert (recorder.recorded, recorder.replayed) == (1, 3)  # one to see that it agrees


def test_after_forgetting_steps_of_known_rows_are_recorded_before_they_are_computed() -> None:
    recorder, asked = Recorder(), list[int]()

    def step(rows: int) -> Tensor:
        asked.append(rows)
        return torch.full((rows, 2), float(rows))

    graphs = StepGraphs(step, recorder)
    for _ in range(step_graphs.WARM_STEPS + 1):
        graphs.logits(8)
    graphs.forget()
    asked.clear()
    assert torch.equal(graphs.logits(8), torch.full((8, 2), 8.0)) and asked == [8]
    assert recorder.recorded == 2
    assert torch.equal(graphs.logits(16), torch.full((16, 2), 16.0))  # never recorded: warm steps come first
    assert recorder.recorded == 2


def test_where_recording_at_once_is_refused_the_step_is_computed_and_recorded_later() -> None:
    class Compiling(Recorder):
        refuses = False

        def record(self, work: Callable[[], Tensor]) -> Recorded:
            if self.refuses:
                raise RuntimeError("operation not permitted when stream is capturing")
            return super().record(work)

    recorder = Compiling()
    graphs = StepGraphs(lambda rows: torch.ones(rows, 2), recorder)
    for _ in range(step_graphs.WARM_STEPS + 1):
        graphs.logits(8)
    graphs.forget()
    recorder.refuses = True
    assert torch.equal(graphs.logits(8), torch.ones(8, 2))
    recorder.refuses = False
    for _ in range(step_graphs.WARM_STEPS):
        graphs.logits(8)
    assert recorder.recorded == 2
