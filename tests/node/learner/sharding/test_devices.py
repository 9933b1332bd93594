"""How a batch is divided among devices, rows among them, and tensors put together again: without any process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from node.learner.objective.batch import RaggedSpans, TrainingGroup
from node.learner.objective.forward import MicroBatch, PassSettings, plan_micro_batches
from node.learner.sharding.messages import DeviceTask, Gather, Put, TakeSteps, line_of, message_in
from node.learner.sharding.starting import check_cards, device_of
from node.learner.steps.devices import IDLE, ONE_DEVICE, Devices, StepTask, divided, share_of_tokens
from node.learner.steps.gradients import rows_of, shard_of
from node.policy.whole_tensors import TensorKind, WholeTensors, bytes_of, elements_of, joined, renamed, shapes_of
from protocol.errors import ConfigurationError
from tests.node.learner.objective.tiny_networks import groups


@dataclass(frozen=True)
class Place(Devices):
    rank: int
    count: int


def planned(prompts: int, batch_tokens: int = 40) -> list[MicroBatch]:
    return plan_micro_batches(groups(prompts=prompts), batch_tokens=batch_tokens)


@given(prompts=st.integers(0, 9), count=st.integers(2, 5))
def test_every_micro_batch_is_one_devices_and_all_devices_have_equally_many(prompts: int, count: int) -> None:
    whole = planned(prompts)
    parts = [divided(whole, Place(rank, count)) for rank in range(count)]
    assert len({len(part) for part in parts}) == 1
    assert all(each.in_step for part in parts for each in part)
    got = [id(c) for part in parts for each in part for c in each.completions if c is not IDLE.completions[0]]
    assert sorted(got) == sorted(id(c) for each in whole for c in each.completions)


def test_one_device_has_all_of_them_as_they_were_planned() -> None:
    whole = planned(5)
    assert divided(whole, ONE_DEVICE) == whole and not any(each.in_step for each in whole)


def test_a_device_without_work_computes_something_that_counts_nowhere() -> None:
    spans = RaggedSpans.of(IDLE.completions)
    assert float(spans.advantages.abs().sum()) == 0.0 and IDLE.padded_tokens() == 2


def test_a_batch_with_fewer_micro_batches_than_devices_is_cut_smaller() -> None:
    whole = planned(6, batch_tokens=100_000)
    assert len(whole) == 1
    smaller = share_of_tokens(whole, 100_000, 4)
    assert len(planned(6, batch_tokens=smaller)) >= 4
    assert share_of_tokens(whole, 3, 4) == 3 and share_of_tokens([], 100, 4) == 1


@given(rows=st.integers(1, 40), count=st.integers(1, 9))
def test_rows_are_divided_as_torch_divides_them_and_none_is_left_out(rows: int, count: int) -> None:
    tensor = torch.arange(rows * 2).view(rows, 2)
    parts = [tensor[rows_of(tensor.shape, rank, count)] for rank in range(count)]
    assert torch.equal(torch.cat(parts), tensor)
    for ours, theirs in zip(parts, torch.chunk(tensor, count), strict=False):
        assert torch.equal(ours, theirs)


def test_a_tensor_that_is_not_in_shards_is_its_own_shard() -> None:
    tensor = torch.ones(3)
    assert shard_of(tensor) is tensor


def test_tasks_arrive_at_the_other_devices_as_they_were_sent() -> None:
    task = StepTask(tuple(groups(prompts=2)), PassSettings(60, recompute=True, chunk_tokens=5), 0.7, 8, 4)
    line = line_of(TakeSteps(task))
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    found = message_in(line[:-1], cast(Any, DeviceTask))
    assert isinstance(found, TakeSteps)
    assert (found.task.passes, found.task.temperature, found.task.whole_batch) == (task.passes, 0.7, 4)
    for ours, theirs in zip(found.task.groups, task.groups, strict=True):
        assert _plain(ours) == _plain(theirs)
    for message in (Gather("exp_avg.x"), Put("state", (("step.x", (), "float32"), ("master.x", (3, 2), "float32")))):
        assert message_in(line_of(message)[:-1], cast(Any, DeviceTask)) == message


def _plain(group: TrainingGroup) -> Any:
    completions = [
        (
            c.token_ids.tolist(), c.alignment.span_of_token.tolist(), c.alignment.behaviour_logps.tolist(),
            c.alignment.multi_token, c.advantage, c.peer, c.count, c.reward, c.as_text,
        )
        for c in group.completions
    ]  # fmt: skip
    return group.prompt_ids, completions, group.tokens, group.size, group.influence


def test_tensors_in_parts_are_put_together_one_at_a_time_and_only_when_asked_for() -> None:
    asked: list[str] = []

    def put_together(name: str) -> torch.Tensor:
        asked.append(name)
        return torch.full((2, 3), float(len(name)))

    whole = WholeTensors({name: TensorKind(torch.Size((2, 3)), torch.float32) for name in ("a", "bb")}, put_together)
    everything = joined(renamed(whole, "w."), renamed({"c": torch.zeros(4, dtype=torch.bfloat16)}, "o."))
    assert set(everything) == {"w.a", "w.bb", "o.c"} and len(everything) == 3 and "w.a" in everything
    assert bytes_of(everything) == 2 * 24 + 8 and bytes_of(whole) == 48
    assert shapes_of(whole) == {"a": (2, 3), "bb": (2, 3)} and elements_of(whole) == 12
    assert asked == []
    assert float(everything["w.bb"][0, 0]) == 2.0 and asked == ["bb"]
    assert [name for name, _ in everything.items() if name.startswith("w.")] and asked.count("a") == 1
    with pytest.raises(KeyError):
        whole["missing"]


def test_of_gpus_each_process_has_its_own_and_one_is_left_for_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [str(device_of("cuda", rank)) for rank in range(2)] == ["cuda:0", "cuda:1"]
    assert str(device_of("cpu", 1)) == "cpu"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    check_cards("cuda", 2)
    with pytest.raises(ConfigurationError, match=r"3 GPUs.*learner\.devices to 2"):
        check_cards("cuda", 3)
    check_cards("cpu", 60)
