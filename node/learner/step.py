"""Optimizer steps on one batch of groups: forward and backward over micro-batches, then AdamW.

The gradient of a step is that of the whole batch, however many micro-batches it is computed in, and on however many
devices: each takes some of the micro-batches (``sharding.devices``), and all of them take the same steps. With
``objective.steps`` above 1 the whole batch is used again; π_prox is the policy before the first of these steps. VCPO
(arXiv 2602.17616) scales a step's learning rate by √(ESS/B), B being the number of completions with a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from node.configuration import ObjectiveSection
from node.learner.influence.shares import mass
from node.learner.objective.baselines import with_baselines
from node.learner.objective.batch import TrainingGroup
from node.learner.objective.forward import MicroBatch, Network, completion_logps, plan_micro_batches
from node.learner.objective.loss import Anchors, BatchTotals, mean_token_weight, objective_loss, weight_sums
from node.learner.objective.other_policies import OtherPolicies
from node.learner.objective.pass_settings import PassSettings
from node.learner.objective.report import ObjectiveReport
from node.learner.objective.spans import RaggedSpans
from node.learner.objective.weights import CORRECTIONS, span_weights
from node.learner.optimizer import MasterAdamW, StepReport
from node.learner.sharding.devices import ONE_DEVICE, Devices, StepTask, divided, share_of_tokens
from node.learner.signal import signal_share


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What training on one batch did."""

    objective: ObjectiveReport  # sums over the steps; its loss is their mean
    step: StepReport | None  # the last step's norm, and whether any was taken; None where no completion had a gradient
    foreign_spans: int
    foreign_multi_token_spans: int
    foreign_completions: int = 0  # trained on
    foreign_unusable: int = 0  # completions whose claimed log-probabilities are impossible, dropped or taken as text
    masses: tuple[float, ...] = ()  # of the groups in their order: ``node.learner.influence.shares.mass``
    further_steps: int = 0  # taken in the same round, on remembered answers of peers

    @property
    def moved(self) -> bool:
        """Whether any step changed the weights."""
        return self.further_steps > 0 or (self.step is not None and self.step.taken)

    def multi_token_span_share(self) -> float | None:
        return self.foreign_multi_token_spans / self.foreign_spans if self.foreign_spans else None


def optimizer_steps(
    network: Network,
    optimizer: MasterAdamW,
    groups: Sequence[TrainingGroup],
    passes: PassSettings,
    objective: ObjectiveSection,
    others: OtherPolicies,
    *,
    temperature: float,
    max_new_tokens: int,
    whole_batch: int,
    rate: float = 1.0,
    devices: Devices = ONE_DEVICE,
) -> BatchReport:
    """Takes ``objective.steps`` steps on all of ``groups``. ``max_new_tokens`` is the longest answer of any task,
    ``whole_batch`` the completions that a round generates, ``rate`` what the learning rate is multiplied by. All
    ``devices`` call it with the same arguments, and get the same report.

    An exception in a pass leaves no gradient behind, so that the same batch can be tried again with other ``passes``;
    with ``objective.steps`` above 1, steps that were taken before it stay taken.
    """
    groups = with_baselines(network, groups, passes, objective, temperature=temperature)
    totals = BatchTotals(
        round(sum(g.tokens * g.influence for g in groups)),
        round(sum(g.size * g.influence for g in groups)),
        max_new_tokens,
    )
    planned = _planned(network, groups, passes, devices)
    micro_batches = [(each, RaggedSpans.of(each.completions, network.head.weight.device)) for each in planned]
    anchors = _anchors(network, micro_batches, passes, objective, others, temperature, devices)
    signal = signal_share(groups, whole_batch) if objective.kl_weight == 0 else 1.0  # a KL term speaks in every token
    total, steps = ObjectiveReport(), list[StepReport]()
    for _ in range(objective.steps):
        report = ObjectiveReport()
        with optimizer.accumulated.accumulating():
            for index, (micro_batch, spans) in enumerate(micro_batches):
                logps, entropies = completion_logps(network, micro_batch, passes, temperature=temperature)
                loss, of_micro_batch = objective_loss(logps, entropies, spans, objective, totals, anchors[index])
                loss.backward()  # type: ignore[no-untyped-call]
                report.add(of_micro_batch)
                if objective.steps > 1 and anchors[index].proximal is None:
                    anchors[index] = anchors[index].with_proximal(logps.detach())
        report = devices.added(report)
        total.add(report)
        if report.tokens or report.kl_tokens:
            step = optimizer.step(rate_scale=_rate_scale(report, objective) * signal * rate)
            steps.append(step)
            others.after_step(_active_share(report))
    total.loss /= objective.steps
    return _batch_report(groups, total, steps)


def _planned(
    network: Network, groups: Sequence[TrainingGroup], passes: PassSettings, devices: Devices
) -> list[MicroBatch]:
    """Returns the micro-batches of this device."""
    planned = plan_micro_batches(groups, batch_tokens=passes.batch_tokens, pads_prompts=network.pads_prompts)
    if len(planned) < devices.count:
        batch_tokens = share_of_tokens(planned, passes.batch_tokens, devices.count)
        planned = plan_micro_batches(groups, batch_tokens=batch_tokens, pads_prompts=network.pads_prompts)
    return divided(planned, devices)


def steps_of(
    task: StepTask,
    network: Network,
    optimizer: MasterAdamW,
    objective: ObjectiveSection,
    others: OtherPolicies,
    devices: Devices,
) -> BatchReport:
    """Takes the steps that all ``devices`` were told to take: ``optimizer_steps``."""
    return optimizer_steps(
        network,
        optimizer,
        task.groups,
        task.passes,
        objective,
        others,
        temperature=task.temperature,
        max_new_tokens=task.max_new_tokens,
        whole_batch=task.whole_batch,
        rate=task.rate,
        devices=devices,
    )


@torch.no_grad()
def _anchors(
    network: Network,
    micro_batches: Sequence[tuple[MicroBatch, RaggedSpans]],
    passes: PassSettings,
    objective: ObjectiveSection,
    others: OtherPolicies,
    temperature: float,
    devices: Devices,
) -> list[Anchors]:
    """Returns for each micro-batch what its tokens are compared with."""
    anchors = [
        Anchors(
            others.proximal_logps(network, micro_batch, passes, temperature=temperature),
            others.reference_logps(network, micro_batch, passes, temperature=temperature),
        )
        for micro_batch, _ in micro_batches
    ]
    if not CORRECTIONS[objective.correction].divided_by_mean:
        return anchors
    # The mean of the weights over the batch must be known before the first backward pass.
    proximal = [completion_logps(network, each, passes, temperature=temperature)[0] for each, _ in micro_batches]
    weights = [
        (span_weights(spans.log_ratios(logps), torch.zeros_like(spans.advantages), spans, objective), spans)
        for logps, (_, spans) in zip(proximal, micro_batches, strict=True)
    ]
    mean = mean_token_weight(*devices.sums(weight_sums(weights)))
    return [Anchors(logps, each.reference, mean) for logps, each in zip(proximal, anchors, strict=True)]


def _rate_scale(report: ObjectiveReport, objective: ObjectiveSection) -> float:
    share = report.effective_sequence_share() if objective.research.ess_learning_rate else None
    return 1.0 if share is None else math.sqrt(min(1.0, share))


def _active_share(report: ObjectiveReport) -> float | None:
    """Returns the share of spans with a weight, None without any span."""
    return 1 - report.capped_spans / report.spans if report.spans else None


def _batch_report(groups: Sequence[TrainingGroup], total: ObjectiveReport, steps: Sequence[StepReport]) -> BatchReport:
    foreign = [c for group in groups for c in group.completions if c.foreign]
    aligned = [c for c in foreign if not c.as_text]
    return BatchReport(
        objective=total,
        step=StepReport(steps[-1].gradient_norm, any(step.taken for step in steps)) if steps else None,
        foreign_spans=sum(c.alignment.spans * c.count for c in aligned),
        foreign_multi_token_spans=sum(c.alignment.multi_token * c.count for c in aligned),
        foreign_completions=sum(c.count for c in foreign),
        foreign_unusable=sum(group.unusable for group in groups),
        masses=tuple(mass(group) for group in groups),
    )
