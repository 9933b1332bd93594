"""Optimizer steps on one batch of groups: forward and backward over micro-batches, then AdamW.

The gradient of a step is that of the whole batch, however many micro-batches it is computed in, and on however many
devices: each takes some of the micro-batches (``sharding.devices``), and all of them take the same steps. With
``objective.steps`` above 1 the whole batch is used again; π_prox is the policy before the first of these steps. VCPO
(arXiv 2602.17616) scales a step's learning rate by √(ESS/B), B being the number of completions with a gradient.

The first step can begin on some groups before the others are known (``begin_step``): gradients add up, and what they
are divided by is a factor of the whole sum, applied at the end. So the step is the same up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from node.configuration import ObjectiveSection
from node.learner.objective.batch import TrainingGroup
from node.learner.objective.forward import Network
from node.learner.objective.loss import BatchTotals, divisor_of
from node.learner.objective.other_policies import OtherPolicies
from node.learner.objective.pass_settings import PassSettings
from node.learner.objective.report import ObjectiveReport
from node.learner.objective.weights import CORRECTIONS
from node.learner.steps.devices import ONE_DEVICE, Devices, StepTask
from node.learner.steps.gradient_passes import GradientPass, GradientPasses
from node.learner.steps.optimizer import MasterAdamW, StepReport
from node.learner.steps.signal import signal_share

UNDIVIDED: Final = BatchTotals(1, 1, 1)


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
    further_steps: int = 0  # taken in the same round, on remembered answers of peers

    @property
    def moved(self) -> bool:
        """Whether any step changed the weights."""
        return self.further_steps > 0 or (self.step is not None and self.step.taken)

    def multi_token_span_share(self) -> float | None:
        return self.foreign_multi_token_spans / self.foreign_spans if self.foreign_spans else None


@dataclass(slots=True, eq=False)
class BegunStep:
    """The part of a batch's first step that ``begin_step`` computed before all groups of the batch were known.

    Its gradient waits in the optimizer as a sum that is not divided yet: the divisor is known only with the last group.
    Who drops the optimizer's gradients drops this one too and must call ``clear`` afterwards.
    """

    groups: list[TrainingGroup] = field(default_factory=list)  # as given
    _known: list[TrainingGroup] = field(default_factory=list)  # with every advantage known
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
    return objective.research.advantage != "batch" and not CORRECTIONS[objective.correction].divided_by_mean


def begin_step(
    begun: BegunStep,
    network: Network,
    optimizer: MasterAdamW,
    task: StepTask,
    objective: ObjectiveSection,
    others: OtherPolicies,
    devices: Devices = ONE_DEVICE,
) -> None:
    """Adds the groups of ``task`` to ``begun``: their gradient to the optimizer's, where ``may_begin``. An exception
    drops all gradients."""
    policy = GradientPasses(network, optimizer, objective, others, devices, task.temperature)
    known = policy.with_baselines(task.groups, task.passes)
    todo = policy.planned(known, task.passes)
    begun.add(task.groups, known, todo, policy.add_gradient(todo, task.passes, UNDIVIDED))


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
    begun: BegunStep | None = None,
) -> BatchReport:
    """Takes ``objective.steps`` steps on all of ``groups``, and on those of ``begun`` before them. ``max_new_tokens``
    is the longest answer of any task, ``whole_batch`` the completions that a round generates, ``rate`` what the
    learning rate is multiplied by. All ``devices`` call it with the same arguments, and get the same report.

    An exception in a pass leaves no gradient behind, so that the same batch can be tried again with other ``passes``;
    with ``objective.steps`` above 1, steps that were taken before it stay taken. What was computed of ``begun`` is used
    once: the second time its groups are computed like the others.
    """
    policy = GradientPasses(network, optimizer, objective, others, devices, temperature)
    first, early, so_far = begun.computed() if begun is not None else ([], [], ObjectiveReport())
    if begun is not None and not first:
        groups = [*begun.groups, *groups]
    rest = policy.with_baselines(groups, passes)
    groups = [*first, *rest]
    totals = BatchTotals(
        round(sum(g.tokens * g.influence for g in groups)),
        round(sum(g.size * g.influence for g in groups)),
        max_new_tokens,
    )
    late = policy.planned(rest, passes)
    signal = signal_share(groups, whole_batch) if objective.kl_weight == 0 else 1.0  # a KL term speaks in every token
    total, steps = ObjectiveReport(), list[StepReport]()
    for number in range(objective.steps):
        divide_by = 1
        if early and number == 0:
            report = so_far
            report.add(policy.add_gradient(late, passes, UNDIVIDED))
            divide_by = divisor_of(totals, objective)
            report.loss /= divide_by
        else:
            report = policy.add_gradient([*early, *late], passes, totals)
        report = devices.added(report)
        total.add(report)
        if report.tokens or report.kl_tokens:
            step = optimizer.step(rate_scale=_rate_scale(report, objective) * signal * rate, divide_by=divide_by)
            steps.append(step)
            others.after_step(_active_share(report))
    total.loss /= objective.steps
    return _batch_report(groups, total, steps)


def steps_of(
    task: StepTask,
    network: Network,
    optimizer: MasterAdamW,
    objective: ObjectiveSection,
    others: OtherPolicies,
    devices: Devices,
    begun: BegunStep | None = None,
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
        begun=begun,
    )


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
        masses=tuple(group.mass for group in groups),
    )
