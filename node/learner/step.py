"""Optimizer steps on one batch of groups: forward and backward in passes, then AdamW.

The gradient of a step is that of the whole batch, in however many passes. With ``objective.steps`` above 1 the whole
batch is used again; π_prox is the policy before the first of them. VCPO (arXiv 2602.17616) scales a step's learning
rate by √(ESS/B), B the completions with a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from node.configuration import LearnerSection, ObjectiveSection
from node.learner.objective.baselines import with_baselines
from node.learner.objective.batch import TrainingGroup
from node.learner.objective.forward import MicroBatch, Network, completion_logps, plan_micro_batches
from node.learner.objective.loss import Anchors, BatchTotals, mean_token_weight, objective_loss
from node.learner.objective.other_policies import OtherPolicies
from node.learner.objective.report import ObjectiveReport
from node.learner.objective.spans import RaggedSpans
from node.learner.objective.weights import span_weights
from node.learner.optimizer import MasterAdamW, StepReport


@dataclass(frozen=True, slots=True)
class LearnReport:
    objective: ObjectiveReport  # sums over the steps; its loss is their mean
    step: StepReport | None  # None where no completion had a gradient
    foreign_spans: int
    foreign_multi_token_spans: int
    foreign_completions: int = 0  # trained on
    foreign_unusable: int = 0  # completions whose log-probabilities cannot be, dropped or taken as text

    def multi_token_span_share(self) -> float | None:
        return self.foreign_multi_token_spans / self.foreign_spans if self.foreign_spans else None


def optimizer_steps(
    network: Network,
    optimizer: MasterAdamW,
    groups: Sequence[TrainingGroup],
    learner: LearnerSection,
    objective: ObjectiveSection,
    others: OtherPolicies,
    *,
    temperature: float,
    longest: int,
) -> LearnReport:
    """Takes ``objective.steps`` steps on all of ``groups``, whose answers may have ``longest`` tokens at most."""
    groups = with_baselines(network, groups, learner, objective, temperature=temperature)
    totals = BatchTotals(sum(g.tokens for g in groups), sum(g.size for g in groups), longest)
    passes = plan_micro_batches(groups, batch_tokens=learner.batch_tokens, pads_prompts=network.pads_prompts)
    laid_out = [(part, RaggedSpans.of(part.completions, network.head.weight.device)) for part in passes]
    anchors = _anchors(network, laid_out, objective, others, temperature)
    total, steps = ObjectiveReport(), list[StepReport]()
    for _ in range(objective.steps):
        report = ObjectiveReport()
        for index, (part, spans) in enumerate(laid_out):
            logps, entropies = completion_logps(network, part, temperature=temperature)
            loss, of_pass = objective_loss(logps, entropies, spans, objective, totals, anchors[index])
            loss.backward()  # type: ignore[no-untyped-call]
            report.add(of_pass)
            if objective.steps > 1 and anchors[index].proximal is None:
                anchors[index] = anchors[index].with_proximal(logps.detach())
        total.add(report)
        if report.tokens or report.kl_tokens:
            steps.append(optimizer.step(rate_scale=_rate_scale(report, objective)))
            others.after_step(_active_share(report))
    total.loss /= objective.steps
    return _report(groups, total, steps)


@torch.no_grad()
def _anchors(
    network: Network,
    laid_out: Sequence[tuple[MicroBatch, RaggedSpans]],
    objective: ObjectiveSection,
    others: OtherPolicies,
    temperature: float,
) -> list[Anchors]:
    """For each pass, what its tokens are compared with."""
    anchors = [
        Anchors(
            others.proximal_logps(network, part, temperature=temperature),
            others.reference_logps(network, part, temperature=temperature),
        )
        for part, _ in laid_out
    ]
    if objective.correction != "masked_is":
        return anchors
    # Its weights are divided by their mean over the batch, which must be known before the first backward pass.
    proximal = [completion_logps(network, part, temperature=temperature)[0] for part, _ in laid_out]
    weights = [
        (span_weights(spans.log_ratios(logps), torch.zeros_like(spans.advantages), spans, objective), spans)
        for logps, (_, spans) in zip(proximal, laid_out, strict=True)
    ]
    mean = mean_token_weight(weights)
    return [Anchors(logps, each.reference, mean) for logps, each in zip(proximal, anchors, strict=True)]


def _rate_scale(report: ObjectiveReport, objective: ObjectiveSection) -> float:
    share = report.effective_sequence_share() if objective.ess_learning_rate else None
    return 1.0 if share is None else math.sqrt(min(1.0, share))


def _active_share(report: ObjectiveReport) -> float | None:
    return 1 - report.capped_spans / report.spans if report.spans else None


def _report(groups: Sequence[TrainingGroup], total: ObjectiveReport, steps: Sequence[StepReport]) -> LearnReport:
    foreign = [c for group in groups for c in group.completions if c.foreign]
    aligned = [c for c in foreign if not c.as_text]
    return LearnReport(
        total,
        StepReport(steps[-1].gradient_norm, any(step.taken for step in steps)) if steps else None,
        sum(c.alignment.spans * c.count for c in aligned),
        sum(c.alignment.multi_token * c.count for c in aligned),
        sum(c.count for c in foreign),
        sum(group.unusable for group in groups),
    )
