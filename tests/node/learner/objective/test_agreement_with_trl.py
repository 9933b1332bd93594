"""Our losses against TRL 1.16, whose values scripts/make_trl_vectors.py printed: value and gradient to 1e-6."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from node.configuration import ObjectiveSection
from node.learner.objective.alignment import Alignment
from node.learner.objective.batch import SELF, RaggedSpans, TrainingCompletion
from node.learner.objective.loss import Anchors, BatchTotals, objective_loss
from tests.node.learner.objective_sections import objective_section

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[3] / "vectors" / "trl_losses.json").read_text())
GIVEN = {name: torch.tensor(rows, dtype=torch.float64) for name, rows in VECTORS["inputs"].items()}
REAL = GIVEN["mask"].bool()
LENGTHS = [int(n) for n in REAL.sum(1)]
CONSTANTS = VECTORS["constants"]
CORRECTIONS = {
    "token_truncate": "token_tis",
    "sequence_truncate": "sequence_tis",
    "off_policy_mask": "sequence_mask",
}


SAME_HERE = {"bnpo": "dapo"}  # TRL's vectors are one micro-batch, whose tokens are those of the whole batch


def name_of(case: dict[str, Any]) -> str:
    return "-".join(str(case[key]) for key in ("loss", "beta", "delta", "sampler"))


def section_for(case: dict[str, Any], correction: str) -> ObjectiveSection:
    loss = case["loss"]
    gspo = loss == "gspo"
    return objective_section(
        loss=SAME_HERE.get(loss, loss),
        correction=correction,
        clip=CONSTANTS["gspo_low" if gspo else "low"],
        clip_high=CONSTANTS[{"gspo": "gspo_high", "cispo": "cispo_high"}.get(loss, "high")],
        clip_negative=case["delta"] or 0.0,
        kl_weight=case["beta"],
        ratio_cap=CONSTANTS["cap"],
        ratio_floor=0.0,
        steps=2,  # so that the ratio to the proximal policy may differ from 1
    )


def ours(case: dict[str, Any], correction: str, behaviour: Tensor, proximal: Tensor | None) -> tuple[Tensor, Tensor]:
    """Loss, and its gradient laid out as TRL's (B, T); in two micro-batches, as if the batch did not fit one."""
    completions = [
        TrainingCompletion(
            np.zeros(length, np.int64),
            Alignment(np.arange(length), row[:length].numpy(), 0),
            float(advantage),
            SELF,
        )
        for length, row, advantage in zip(LENGTHS, behaviour, GIVEN["advantages"], strict=True)
    ]
    totals = BatchTotals(sum(LENGTHS), len(LENGTHS), CONSTANTS["max_completion_length"])
    logps = GIVEN["logps"].clone().requires_grad_()
    loss = torch.zeros((), dtype=torch.float64)
    for rows in (slice(0, 2), slice(2, len(LENGTHS))):
        real = REAL[rows]
        values = logps[rows][real]
        spans = RaggedSpans.of(completions[rows], dtype=torch.float64)
        anchors = Anchors(
            None if proximal is None else proximal[rows][real],
            GIVEN["reference_logps"][rows][real] if case["beta"] else None,
        )
        section = section_for(case, correction)
        loss = loss + objective_loss(values, torch.zeros_like(values), spans, section, totals, anchors)[0]
    (gradient,) = torch.autograd.grad(loss, logps)
    return loss, gradient


def assert_agrees(case: dict[str, Any], loss: Tensor, gradient: Tensor) -> None:
    assert loss.dtype == torch.float64
    assert abs(loss.item() - case["value"]) < 1e-6
    expected = torch.tensor(case["gradient"], dtype=torch.float64)
    assert float((gradient - expected).abs().max()) < 1e-6
    assert float(expected.abs().max()) > 1e-3


@pytest.mark.parametrize("case", [c for c in VECTORS["cases"] if c["sampler"] is None], ids=name_of)
def test_loss_and_gradient_are_those_of_trl(case: dict[str, Any]) -> None:
    assert_agrees(case, *ours(case, "none", GIVEN["sampling_logps"], GIVEN["old_logps"]))
    assert_agrees(case, *ours(case, "ppo", GIVEN["old_logps"], None))


@pytest.mark.parametrize("case", [c for c in VECTORS["cases"] if c["sampler"] is not None], ids=name_of)
def test_correction_for_another_sampler_is_that_of_trl(case: dict[str, Any]) -> None:
    correction = CORRECTIONS[case["sampler"]]
    assert_agrees(case, *ours(case, correction, GIVEN["sampling_logps"], GIVEN["old_logps"]))


def test_the_vectors_reach_every_bound() -> None:
    """Were no ratio beyond a bound, agreement would say nothing of it."""
    ratios = torch.exp(GIVEN["logps"] - GIVEN["old_logps"])[REAL]
    advantages = GIVEN["advantages"][:, None].expand(REAL.shape)[REAL]
    assert ((ratios < 1 - CONSTANTS["low"]) & (advantages < 0)).any()
    assert ((ratios > 1 + CONSTANTS["high"]) & (advantages > 0)).any()
    assert ((ratios > max(c["delta"] or 0 for c in VECTORS["cases"])) & (advantages < 0)).any()
    assert (ratios > CONSTANTS["cispo_high"]).any()
    assert (torch.exp(GIVEN["old_logps"] - GIVEN["sampling_logps"])[REAL] > CONSTANTS["cap"]).any()
    assert len(VECTORS["cases"]) >= 28
