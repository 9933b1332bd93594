"""The passes of a step over some groups: planned, with what tokens are compared with, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from node.configuration import ObjectiveSection
from node.learner.objective.baselines import with_baselines
from node.learner.objective.batch import TrainingGroup
from node.learner.objective.forward import MicroBatch, Network, completion_logps, plan_micro_batches
from node.learner.objective.loss import Anchors, BatchTotals, mean_token_weight, objective_loss, weight_sums
from node.learner.objective.other_policies import OtherPolicies
from node.learner.objective.pass_settings import PassSettings
from node.learner.objective.report import ObjectiveReport
from node.learner.objective.spans import RaggedSpans
from node.learner.objective.weights import CORRECTIONS, span_weights
from node.learner.steps.devices import Devices, divided, share_of_tokens
from node.learner.steps.optimizer import MasterAdamW


@dataclass(slots=True, eq=False)
class GradientPass:
    """One micro-batch of this device with what its tokens are compared with."""

    micro_batch: MicroBatch
    spans: RaggedSpans
    anchors: Anchors


@dataclass(frozen=True, slots=True, eq=False)
class GradientPasses:
    """Plans and computes passes of one policy, for one optimizer."""

    network: Network
    optimizer: MasterAdamW
    objective: ObjectiveSection
    others: OtherPolicies
    devices: Devices
    temperature: float

    def with_baselines(self, groups: Sequence[TrainingGroup], passes: PassSettings) -> list[TrainingGroup]:
        return with_baselines(self.network, groups, passes, self.objective, temperature=self.temperature)

    def planned(self, groups: Sequence[TrainingGroup], passes: PassSettings) -> list[GradientPass]:
        """Returns the passes of this device over groups whose advantages are known."""
        planned = _planned(self.network, groups, passes, self.devices)
        micro_batches = [(each, RaggedSpans.of(each.completions, self.network.head.weight.device)) for each in planned]
        anchors = _anchors(self, micro_batches, passes)
        return [GradientPass(*each, anchor) for each, anchor in zip(micro_batches, anchors, strict=True)]

    def add_gradient(self, todo: Sequence[GradientPass], passes: PassSettings, totals: BatchTotals) -> ObjectiveReport:
        """Adds the gradient of these passes to that in the optimizer. An exception drops both."""
        report = ObjectiveReport()
        with self.optimizer.accumulated.accumulating():
            for each in todo:
                logps, entropies = completion_logps(
                    self.network, each.micro_batch, passes, temperature=self.temperature
                )
                loss, of_pass = objective_loss(logps, entropies, each.spans, self.objective, totals, each.anchors)
                loss.backward()  # type: ignore[no-untyped-call]
                report.add(of_pass)
                if self.objective.steps > 1 and each.anchors.proximal is None:
                    each.anchors = each.anchors.with_proximal(logps.detach())
        return report


def _planned(
    network: Network, groups: Sequence[TrainingGroup], passes: PassSettings, devices: Devices
) -> list[MicroBatch]:
    """Returns the micro-batches of this device."""
    planned = plan_micro_batches(groups, batch_tokens=passes.batch_tokens, pads_prompts=network.pads_prompts)
    if len(planned) < devices.count:
        batch_tokens = share_of_tokens(planned, passes.batch_tokens, devices.count)
        planned = plan_micro_batches(groups, batch_tokens=batch_tokens, pads_prompts=network.pads_prompts)
    return divided(planned, devices)


@torch.no_grad()
def _anchors(
    policy: GradientPasses, micro_batches: Sequence[tuple[MicroBatch, RaggedSpans]], passes: PassSettings
) -> list[Anchors]:
    """Returns for each micro-batch what its tokens are compared with."""
    network, objective, others, temperature = policy.network, policy.objective, policy.others, policy.temperature
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
    mean = mean_token_weight(*policy.devices.sums(weight_sums(weights)))
    return [Anchors(logps, each.reference, mean) for logps, each in zip(proximal, anchors, strict=True)]
