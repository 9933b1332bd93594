"""Optimizer steps on one batch of groups: forward and backward over micro-batches, then AdamW.

The gradient of a step is that of the whole batch, however many micro-batches it is computed in, and on however many
devices: each takes some of the micro-batches (``sharding.devices``), and all of them take the same steps. With
``objective.steps`` above 1 the whole batch is used again; π_prox is the policy before the first of these steps.

The first step can begin on some groups before the others are known (``OptimizerSteps.begin``): gradients add up, and
what they are divided by is a factor of the whole sum, applied at the end. So the step is the same up to rounding.

How long a step is follows from how much of its batch says something:

    scale = min(1, Σ count · |A| / completions that a round generates)

A completion with A = 0 has no gradient: in a group that is all wrong or all right, or of a peer that does no better
than we do. The loss is divided by all completions, so the gradient is small where few say something; Adam divides that
out again, and would move the weights as far by one group as by thirty-two. The gradient of one group is mostly noise
(docs/experiments/forgetting.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from node.configuration import ObjectiveSection
from node.learner.memory.errors import forget, give_back
from node.learner.objective.batch import RaggedSpans, TrainingGroup, one_row_each
from node.learner.objective.forward import MicroBatch, Network, completion_logps, plan_micro_batches
from node.learner.objective.loss import Anchors, BatchTotals, divisor_of, objective_loss
from node.learner.objective.reference_policy import ReferencePolicy
from node.learner.objective.report import ObjectiveReport, report_of_movement
from node.learner.steps.devices import ONE_DEVICE, Devices, StepTask, divided, share_of_tokens
from node.learner.steps.optimizer import MasterAdamW, StepReport
from node.policy.device_faults import is_out_of_memory
from protocol.errors import StageLostError

UNDIVIDED: Final = BatchTotals(1, 1, 1)


def signal_share(groups: Sequence[TrainingGroup], whole_batch: int) -> float:
    """Returns by how much the learning rate of a step on ``groups`` is scaled, 0 to 1; their advantages are those that
    the gradient has. ``whole_batch`` is how many completions a round generates."""
    return min(1.0, _said(groups) / max(1, whole_batch))


def own_share(groups: Sequence[TrainingGroup]) -> float:
    """Returns the part of what a batch says that own completions say, 0 to 1."""
    said = _said(groups)
    return _said(groups, own=True) / said if said else 0.0


def _said(groups: Sequence[TrainingGroup], *, own: bool = False) -> float:
    return sum(c.count * abs(c.advantage) for g in groups for c in g.completions if not (own and c.foreign))


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What training on one batch did."""

    objective: ObjectiveReport  # sums over the steps; its loss is their mean
    step: StepReport | None  # the last step's norm, and whether any was taken; None where no completion had a gradient
    foreign_spans: int
    foreign_multi_token_spans: int
    foreign_completions: int = 0  # trained on
    foreign_unusable: int = 0  # completions whose claimed log-probabilities are impossible, dropped or taken as text
    masses: tuple[float, ...] = ()  # of the groups in their order
    own_signal: float = 1.0  # by how much the steps were scaled, times what own completions said of it
    further_steps: int = 0  # taken in the same round, on remembered answers of peers

    @property
    def moved(self) -> bool:
        """Whether any step changed the weights."""
        return self.further_steps > 0 or (self.step is not None and self.step.taken)

    def multi_token_span_share(self) -> float | None:
        return self.foreign_multi_token_spans / self.foreign_spans if self.foreign_spans else None


@dataclass(slots=True, eq=False)
class BegunStep:
    """The part of a batch's first step that ``OptimizerSteps.begin`` computed before all groups of the batch were
    known.

    Its gradient waits in the optimizer as a sum that is not divided yet: the divisor is known only with the last group.
    Who drops the optimizer's gradients drops this one too and must call ``clear`` afterwards.
    """

    groups: list[TrainingGroup] = field(default_factory=list)  # as given
    _known: list[TrainingGroup] = field(default_factory=list)  # with their influence in their advantages
    _passes: list[GradientPass] = field(default_factory=list)
    _report: ObjectiveReport = field(default_factory=ObjectiveReport)

    def add(
        self,
        groups: Sequence[TrainingGroup],
        known: Sequence[TrainingGroup],
        passes: Sequence[GradientPass],
        report: ObjectiveReport,
    ) -> None:
        self.groups += groups
        self._known += known
        self._passes += passes
        self._report.add(report)

    def clear(self) -> None:
        self.groups, self._known, self._passes, self._report = [], [], [], ObjectiveReport()

    def computed(self) -> tuple[list[TrainingGroup], list[GradientPass], ObjectiveReport]:
        """Returns what was computed of ``groups``, once: from then on nothing is, since a step may fail."""
        found = self._known, self._passes, self._report
        self._known, self._passes, self._report = [], [], ObjectiveReport()
        return found


def may_begin(objective: ObjectiveSection) -> bool:
    """Whether the gradient of a group can be computed before all groups of the batch are known, but for a factor."""
    return objective.research.advantage != "batch"


@dataclass(slots=True, eq=False)
class GradientPass:
    """One micro-batch of this device with what its tokens are compared with."""

    micro_batch: MicroBatch
    spans: RaggedSpans
    anchors: Anchors
    before: Tensor | None = None  # (N,) log-probabilities before the first step, where steps are measured


@dataclass(frozen=True, slots=True, eq=False)
class OptimizerSteps:
    """Takes the steps of one policy. All ``devices`` call it with the same tasks."""

    network: Network
    optimizer: MasterAdamW
    objective: ObjectiveSection
    reference: ReferencePolicy
    devices: Devices = ONE_DEVICE

    def begin(self, begun: BegunStep, task: StepTask) -> None:
        """Adds the groups of ``task`` to ``begun``: their gradient to the optimizer's, where ``may_begin``.

        An exception drops all gradients.
        """
        known = influenced(task.groups)
        todo = self._planned(known, task)
        begun.add(task.groups, known, todo, self._add_gradient(todo, task, UNDIVIDED))

    def take(self, task: StepTask, begun: BegunStep | None = None) -> BatchReport:
        """Takes ``objective.steps`` steps on all groups of ``task``, and on those of ``begun`` before them. All devices
        get the same report.

        An exception in a pass leaves no gradient behind, so that the same batch can be tried again with other passes;
        with ``objective.steps`` above 1, steps that were taken before it stay taken. What was computed of ``begun`` is
        used once: the second time its groups are computed like the others.
        """
        objective = self.objective
        first, early, so_far = begun.computed() if begun is not None else ([], [], ObjectiveReport())
        groups: Sequence[TrainingGroup] = task.groups
        if begun is not None and not first:
            groups = [*begun.groups, *groups]
        rest = influenced(groups)
        groups = [*first, *rest]
        totals = BatchTotals(
            round(sum(g.tokens * g.influence for g in groups)),
            round(sum(g.size * g.influence for g in groups)),
            task.max_new_tokens,
        )
        late = self._planned(rest, task)
        # A KL term speaks in every token.
        signal = signal_share(groups, task.whole_batch) if objective.kl_weight == 0 else 1.0
        total, steps = ObjectiveReport(), list[StepReport]()
        for number in range(objective.steps):
            divide_by = 1
            if early and number == 0:
                report = so_far
                report.add(self._add_gradient(late, task, UNDIVIDED))
                divide_by = divisor_of(totals, objective)
                report.loss /= divide_by
            else:
                report = self._add_gradient([*early, *late], task, totals)
            report = self.devices.added(report)
            total.add(report)
            if report.tokens or report.kl_tokens:
                steps.append(self.optimizer.step(rate_scale=signal * task.rate, divide_by=divide_by))
        total.loss /= objective.steps
        if task.measured is not None and late and any(step.taken for step in steps):
            total.add(self._measured(late[task.measured % len(late)], task))
        return _batch_report(groups, total, steps, signal * own_share(groups))

    def _planned(self, groups: Sequence[TrainingGroup], task: StepTask) -> list[GradientPass]:
        """Returns the passes of this device over groups whose influence is in their advantages."""
        plan = partial(plan_micro_batches, one_row_each(groups), pads_prompts=self.network.pads_prompts)
        planned = plan(batch_tokens=task.passes.batch_tokens)
        if len(planned) < self.devices.count:
            planned = plan(batch_tokens=share_of_tokens(planned, task.passes.batch_tokens, self.devices.count))
        device = self.network.head.weight.device
        own = [
            (each, RaggedSpans.of(each.completions, device, policy_version=task.policy_version))
            for each in divided(planned, self.devices)
        ]
        reference = partial(self.reference.logps, self.network, passes=task.passes, temperature=task.temperature)
        return [GradientPass(each, spans, Anchors(reference=reference(each))) for each, spans in own]

    def _add_gradient(self, todo: Sequence[GradientPass], task: StepTask, totals: BatchTotals) -> ObjectiveReport:
        """Adds the gradient of these passes to that in the optimizer. An exception drops both."""
        report = ObjectiveReport()
        with self.optimizer.accumulated.accumulating():
            for of_pass in self.network.each(partial(self._add_pass, task=task, totals=totals), todo):
                report.add(of_pass)
        return report

    def _add_pass(self, each: GradientPass, task: StepTask, totals: BatchTotals) -> ObjectiveReport:
        logps, entropies = completion_logps(self.network, each.micro_batch, task.passes, temperature=task.temperature)
        loss, report = objective_loss(logps, entropies, each.spans, self.objective, totals, each.anchors)
        self.network.backward(loss)
        if task.measured is not None and each.before is None:
            each.before = logps.detach()
        if self.objective.steps > 1:
            each.spans = replace(each.spans, present=torch.zeros_like(each.spans.present))
            if each.anchors.proximal is None:
                each.anchors = replace(each.anchors, proximal=logps.detach())
        return report

    def _measured(self, one: GradientPass, task: StepTask) -> ObjectiveReport:
        """Returns how far the steps have moved the policy on one pass of each device. Where memory runs out, or a stage
        is lost, that is not known: the steps are taken, and must not be taken again."""
        try:
            return self.devices.added(self._moved(one, task))
        except Exception as error:
            if self.devices.count > 1 or not (is_out_of_memory(error) or isinstance(error, StageLostError)):
                raise
            forget(error)
            give_back()
            return ObjectiveReport()

    @torch.no_grad()
    def _moved(self, measured: GradientPass, task: StepTask) -> ObjectiveReport:
        """Returns how far the steps have moved the policy on the own completions of one pass."""
        assert measured.before is not None
        logps, _ = completion_logps(self.network, measured.micro_batch, task.passes, temperature=task.temperature)
        return report_of_movement(logps - measured.before, measured.spans)


def influenced(groups: Iterable[TrainingGroup]) -> list[TrainingGroup]:
    """Returns ``groups`` in their order, every advantage times its group's influence; without any influence there is no
    completion left."""
    return [each if each.influence == 1.0 else _influenced(each) for each in groups]


def _influenced(group: TrainingGroup) -> TrainingGroup:
    scaled = tuple(
        replace(
            each,
            advantage=each.advantage * group.influence,
            turn_advantages=tuple(of_turn * group.influence for of_turn in each.turn_advantages),
        )
        for each in group.completions
    )
    return replace(group, completions=scaled if group.influence > 0 else ())


def _batch_report(
    groups: Sequence[TrainingGroup], total: ObjectiveReport, steps: Sequence[StepReport], own_signal: float
) -> BatchReport:
    foreign = [c for group in groups for c in group.completions if c.foreign]
    aligned = [c for c in foreign if not c.as_text]
    return BatchReport(
        objective=total,
        step=StepReport(steps[-1].gradient_norm, any(step.taken for step in steps)) if steps else None,
        foreign_spans=sum(c.alignment.spans * c.count for c in aligned),
        foreign_multi_token_spans=sum(c.alignment.multi_token * c.count for c in aligned),
        foreign_completions=sum(c.count for c in foreign),
        foreign_unusable=sum(group.unusable for group in groups),
        masses=tuple(group.mass for group in groups),
        own_signal=own_signal,
    )
