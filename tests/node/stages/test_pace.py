"""What a machine takes for a layer, and the owner for its head, as the plan reckons with it."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
import torch

from node.fit.stages.work import Round, Training
from node.policy.model_counting import counted_sizes
from node.stages.pace import HEAD_TOKENS, ROWS, TOKENS, head_pace, layer_pace
from tests.node.stages.machines import saved, worker


def test_the_plans_formulas_give_the_seconds_that_were_measured(tmp_path: Path) -> None:
    folder = saved("qwen2", tmp_path)
    sizes, clock = counted_sizes(folder), map(float, count())  # every reading is a second after the one before
    measuring = worker(folder)
    pace = layer_pace(measuring, sizes, lambda: next(clock))
    a_pass = Round(ROWS, 1, 0, TOKENS, ROWS * TOKENS)
    flops = sum(Training(sizes, whole=False, recompute=False).layer_flops(a_pass))
    assert flops / pace.flops == pytest.approx(1.0)
    assert 4 * sizes.layer_parameters / pace.bytes_a_second == pytest.approx(1.0)
    assert measuring.cache_bytes == 0 and not measuring.gradients()
    assert sizes.vocabulary < HEAD_TOKENS
    head = head_pace(sizes, torch.device("cpu"), torch.float32, lambda: next(clock))
    head_flops = sum(Training(sizes, whole=False).head_flops(a_pass))
    assert head_flops / head.flops == pytest.approx(1.0)
    assert 4 * sizes.vocabulary * sizes.hidden / head.bytes_a_second == pytest.approx(1.0)
