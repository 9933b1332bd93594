"""Optimizer steps on a batch: sums over micro-batches, batches without a gradient, several steps, other policies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from node.configuration import LearnerSection, ObjectiveSection
from node.learner.objective.alignment import Alignment
from node.learner.objective.batch import SELF, TrainingCompletion, TrainingGroup
from node.learner.objective.forward import Network, PassSettings, completion_logps, plan_micro_batches
from node.learner.objective.loss import BatchTotals, divisor_of
from node.learner.objective.reference_policy import ReferencePolicy
from node.learner.steps.devices import StepTask
from node.learner.steps.optimizer import MasterAdamW
from node.learner.steps.step import BatchReport, BegunStep, OptimizerSteps, may_begin
from tests.node.learner.objective_sections import objective_section

VOCABULARY = 11
RATE = 1e-3


class Bench:
    """A small policy with what a step needs."""

    def __init__(self, objective: ObjectiveSection, *, batch_tokens: int = 8192, tied: bool = True) -> None:
        torch.manual_seed(1)
        shape: dict[str, Any] = {
            "vocab_size": VOCABULARY,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 64,
            "tie_word_embeddings": tied,
        }
        self.model: Any = Qwen3ForCausalLM(Qwen3Config(**shape)).eval()
        self.parameters = dict(self.model.named_parameters())
        self.network = Network.of(self.model)
        self.passes = PassSettings(batch_tokens)
        self.objective = objective
        self.optimizer = MasterAdamW(self.parameters, LearnerSection(learning_rate=RATE))
        self.reference = ReferencePolicy(self.parameters, objective)
        self.steps = OptimizerSteps(self.network, self.optimizer, objective, self.reference)

    def begin(self, begun: BegunStep, groups: Sequence[TrainingGroup]) -> None:
        task = StepTask(tuple(groups), self.passes, 1.0, max_new_tokens=8, whole_batch=1)
        self.steps.begin(begun, task)

    def divisor(self, groups: Sequence[TrainingGroup]) -> int:
        return divisor_of(BatchTotals(sum(g.tokens for g in groups), sum(g.size for g in groups), 8), self.objective)

    def learn(
        self, groups: Sequence[TrainingGroup], whole_batch: int = 1, begun: BegunStep | None = None
    ) -> BatchReport:
        return self.steps.take(StepTask(tuple(groups), self.passes, 1.0, 8, whole_batch), begun)

    def weights(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self.parameters.items()}

    def logps(self, groups: Sequence[TrainingGroup]) -> Tensor:
        micro_batches = plan_micro_batches(groups, batch_tokens=8192)
        with torch.no_grad():
            return torch.cat([completion_logps(self.network, each)[0] for each in micro_batches])


def completion(ids: Sequence[int], advantage: float, behaviour: float = -2.4, peer: str = SELF) -> TrainingCompletion:
    alignment = Alignment(np.arange(len(ids)), np.full(len(ids), behaviour, np.float32), 0)
    return TrainingCompletion(np.array(ids, dtype=np.int64), alignment, advantage, peer, reward=float(advantage > 0))


def batch(seed: int = 0, groups: int = 6, *, zeros: bool = False) -> list[TrainingGroup]:
    """Groups of three own or foreign completions; with ``zeros`` some own ones have A = 0, as kept for a KL term."""
    rng = np.random.default_rng(seed)
    made = []
    for index in range(groups):
        peer = SELF if index % 2 == 0 else "p"
        each = []
        for number in range(3):
            advantage = 0.0 if zeros and peer == SELF and number == 0 else float(rng.normal())
            ids = rng.integers(0, VOCABULARY, rng.integers(1, 7)).tolist()
            each.append(completion(ids, advantage, float(rng.uniform(-3.5, -1.5)), peer))
        prompt = tuple(int(i) for i in rng.integers(0, VOCABULARY, rng.integers(1, 5)))
        tokens = sum(len(c.token_ids) for c in each)
        made.append(TrainingGroup(prompt, tuple(each), tokens + 4, 5))  # two more with A = 0, of two tokens each
    return made


EVERY_NORMALISATION = [
    {"loss": "dapo"},
    {"loss": "grpo", "correction": "token_tis"},
    {"loss": "dapo", "correction": "sequence_tis"},
    {"loss": "dr_grpo", "correction": "token_tis", "steps": 2},
    {"loss": "gspo", "correction": "ppo", "clip": 0.05},
    {"loss": "cispo", "correction": "ppo", "clip_high": 5.0},
]


@pytest.mark.parametrize("keys", EVERY_NORMALISATION, ids=lambda keys: "-".join(map(str, keys.values())))
def test_many_small_micro_batches_make_the_same_step_as_one_large_one(keys: dict[str, Any]) -> None:
    keys = {"kl_weight": 0.1} | keys
    whole, small = Bench(objective_section(**keys)), Bench(objective_section(**keys), batch_tokens=30)
    groups = batch(zeros=True)
    assert len(plan_micro_batches(groups, batch_tokens=8192)) == 1
    assert len(plan_micro_batches(groups, batch_tokens=30)) > 3
    for _ in range(2):
        reports = whole.learn(groups), small.learn(groups)
    for name in whole.parameters:
        torch.testing.assert_close(small.parameters[name], whole.parameters[name], atol=RATE / 20, rtol=0)
    assert reports[0].objective.loss == pytest.approx(reports[1].objective.loss, rel=1e-3, abs=1e-6)
    assert reports[0].objective.mean_kl() == pytest.approx(reports[1].objective.mean_kl(), rel=1e-3, abs=1e-6)
    assert reports[0].objective.tokens == reports[1].objective.tokens


@pytest.mark.parametrize("keys", EVERY_NORMALISATION, ids=lambda keys: "-".join(map(str, keys.values())))
def test_a_step_that_began_before_all_groups_were_known_is_the_same_step(keys: dict[str, Any]) -> None:
    objective = objective_section(**({"kl_weight": 0.1} | keys))
    assert may_begin(objective)
    whole, in_lots = Bench(objective), Bench(objective)
    for seed in range(2):
        groups = batch(seed, zeros=True)
        begun = BegunStep()
        for lot in (groups[3:5], groups[:1]):
            in_lots.begin(begun, lot)
        gradients = {name: g / in_lots.divisor(groups) for name, g in in_lots.optimizer.accumulated.gradients().items()}
        rest = in_lots.learn([groups[i] for i in (1, 2, 5)], whole_batch=9, begun=begun)
        report = whole.learn(groups, whole_batch=9)
        assert gradients and in_lots.optimizer.accumulated.gradients() == {}
        for name in whole.parameters:
            torch.testing.assert_close(in_lots.parameters[name], whole.parameters[name], atol=RATE / 20, rtol=0)
        assert report.step is not None and rest.step is not None and report.step.taken and rest.step.taken
        assert rest.step.gradient_norm == pytest.approx(report.step.gradient_norm, rel=1e-4)
        assert rest.objective.loss == pytest.approx(report.objective.loss, rel=1e-3, abs=1e-6)
        assert rest.objective.tokens == report.objective.tokens
        assert rest.masses == tuple(report.masses[i] for i in (3, 4, 0, 1, 2, 5))


def test_the_gradient_of_groups_that_were_known_early_is_that_of_the_whole_batch_up_to_rounding() -> None:
    whole, in_lots = Bench(objective_section(kl_weight=0.1)), Bench(objective_section(kl_weight=0.1))
    groups, begun = batch(zeros=True), BegunStep()
    for group in groups:
        in_lots.begin(begun, [group])
    whole.begin(BegunStep(), groups)
    theirs = whole.optimizer.accumulated.gradients()
    for name, gradient in in_lots.optimizer.accumulated.gradients().items():
        torch.testing.assert_close(gradient, theirs[name], atol=1e-6 * float(theirs[name].abs().max()), rtol=1e-5)
    clipped = whole.divisor(groups)
    norm = in_lots.learn([], begun=begun).step
    assert norm is not None
    expected = math.sqrt(sum(float(g.double().square().sum()) for g in theirs.values())) / clipped
    assert norm.gradient_norm == pytest.approx(expected, rel=1e-5)


def test_a_begun_step_whose_rest_fails_is_computed_anew_with_everything() -> None:
    bench, undisturbed = Bench(objective_section()), Bench(objective_section())
    groups, begun = batch(), BegunStep()
    bench.begin(begun, groups[:3])

    def fails(*_: Any) -> None:
        raise torch.OutOfMemoryError("no memory")

    handle = bench.network.body.register_forward_pre_hook(fails)
    with pytest.raises(torch.OutOfMemoryError):
        bench.learn(groups[3:], begun=begun)
    handle.remove()
    bench.optimizer.drop_gradients()
    assert bench.learn(groups[3:], begun=begun).step == undisturbed.learn(groups).step
    assert all(torch.equal(undisturbed.parameters[name], p) for name, p in bench.parameters.items())


def test_recomputed_layers_make_the_same_step_as_those_that_are_kept() -> None:
    keys: dict[str, Any] = {"kl_weight": 0.1, "correction": "token_tis", "steps": 2}
    kept, recomputed = Bench(objective_section(**keys)), Bench(objective_section(**keys))
    recomputed.passes = PassSettings(30, recompute=True, chunk_tokens=4)
    for bench in (kept, recomputed):
        bench.learn(batch(zeros=True))
    for name in kept.parameters:
        torch.testing.assert_close(recomputed.parameters[name], kept.parameters[name], atol=RATE / 20, rtol=0)


def test_pass_that_fails_leaves_no_gradient_and_the_same_batch_can_be_tried_again() -> None:
    bench, undisturbed = (Bench(objective_section(), batch_tokens=30) for _ in range(2))
    calls = 0

    def fails_in_the_third_pass(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:  # each pass of short rows runs the body once
            raise torch.OutOfMemoryError("no memory")

    handle = bench.network.body.register_forward_pre_hook(fails_in_the_third_pass)
    with pytest.raises(torch.OutOfMemoryError):
        bench.learn(batch())
    handle.remove()
    assert calls == 3 and all(p.grad is None for p in bench.parameters.values())
    assert bench.learn(batch()).step == undisturbed.learn(batch()).step
    assert all(torch.equal(undisturbed.parameters[name], p) for name, p in bench.parameters.items())


def test_batch_without_any_gradient_takes_no_step() -> None:
    bench = Bench(objective_section())
    bench.learn(batch())  # momentum that would carry on
    before = bench.weights()
    report = bench.learn([TrainingGroup((1,), (), 12, 3)])
    assert report.step is None and report.objective.tokens == 0
    assert bench.learn([]).step is None
    assert all(torch.equal(before[name], p) for name, p in bench.parameters.items())


@pytest.mark.parametrize(
    "keys",
    [
        {"filter_gamma": 1e-6},
        {"correction": "sequence_mask"},
    ],
    ids=lambda keys: "-".join(map(str, keys.values())),
)
def test_batch_that_is_all_filtered_takes_no_step_and_says_so(keys: dict[str, Any]) -> None:
    bench = Bench(objective_section(**keys))
    bench.learn(batch())
    before = bench.weights()
    # Bad completions that their sampler wrote with certainty and we hardly ever would: ratios about e^-12.
    far = tuple(completion([i, i, i], -1.0, 10.0, "p") for i in range(3))
    report = bench.learn([TrainingGroup((1, 2), far, 9, 3)])
    assert report.step is not None and not report.step.taken and report.step.gradient_norm == 0
    assert bench.optimizer.steps_skipped == 0
    assert all(torch.equal(before[name], p) for name, p in bench.parameters.items())
    assert report.objective.effective_sample_share() is None or report.objective.filter_share() == 1.0


def test_second_step_on_a_batch_is_clipped_where_the_first_went_far() -> None:
    once, twice = (Bench(objective_section(correction="none", clip=1e-4, steps=steps)) for steps in (1, 2))
    groups = batch()
    assert once.learn(groups).objective.clipped_token_share() == 0
    report = twice.learn(groups)
    assert 0.1 < (report.objective.clipped_token_share() or 0) < 0.5  # of both steps; nothing in the first
    assert report.objective.tokens == 2 * sum(len(c.token_ids) for g in groups for c in g.completions)


def test_reference_is_the_policy_as_it_was_loaded_and_the_policy_stays_in_place() -> None:
    bench = Bench(objective_section(kl_weight=0.5))
    groups = batch()
    (micro_batch,) = plan_micro_batches(groups, batch_tokens=8192)
    at_start = bench.logps(groups)
    for _ in range(3):
        report = bench.learn(groups)
    reference = bench.reference.logps(bench.network, micro_batch, temperature=1.0)
    assert reference is not None
    torch.testing.assert_close(reference, at_start)
    assert float((bench.logps(groups) - at_start).abs().max()) > 1e-3
    assert (report.objective.mean_kl() or 0) > 0
    without = ReferencePolicy(bench.parameters, objective_section())
    assert without.logps(bench.network, micro_batch, temperature=1.0) is None


def test_kl_term_holds_the_policy_back() -> None:
    def distance(weight: float) -> float:
        bench, groups = Bench(objective_section(kl_weight=weight)), batch(zeros=True)
        for _ in range(25):
            report = bench.learn(groups)
        return report.objective.mean_kl() or 0.0

    assert 0 < distance(20.0) < 0.5 * distance(1e-3)


def test_measured_step_says_how_far_it_moved_the_policy_on_own_completions() -> None:
    bench, groups = Bench(ObjectiveSection()), batch()
    own = [replace(group, completions=tuple(c for c in group.completions if not c.foreign)) for group in groups]
    before = bench.logps(own)
    report = bench.steps.take(StepTask(tuple(groups), bench.passes, 1.0, 8, 1, measured=3)).objective
    gap = (bench.logps(own) - before).double()
    assert report.moved_tokens == len(gap)
    assert report.mean_moved() == pytest.approx(float((torch.expm1(gap) - gap).mean()), rel=1e-2)
    assert bench.learn(groups).objective.mean_moved() is None
