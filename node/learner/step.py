"""One optimizer step on one batch of groups: forward and backward in passes, then AdamW."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from node.config import LearnerSection
from node.learner.forward import Network, completion_logps, plan_passes
from node.learner.objective import ObjectiveReport, RaggedSpans, f_tis_loss
from node.learner.optimizer import MasterAdamW, StepReport
from node.learner.training_batch import TrainingGroup


@dataclass(frozen=True, slots=True)
class LearnReport:
    objective: ObjectiveReport
    step: StepReport | None  # None where no completion had a gradient
    foreign_spans: int
    foreign_multi_token_spans: int

    def multi_token_span_share(self) -> float | None:
        return self.foreign_multi_token_spans / self.foreign_spans if self.foreign_spans else None


def learn(
    network: Network,
    optimizer: MasterAdamW,
    groups: Sequence[TrainingGroup],
    section: LearnerSection,
    *,
    temperature: float,
) -> LearnReport:
    """Takes one step on all of ``groups``; the gradient is that of the whole batch, in however many passes."""
    normalizing_tokens = max(1, sum(group.tokens for group in groups))
    device = network.head.weight.device
    total = ObjectiveReport()
    for part in plan_passes(groups, batch_tokens=section.batch_tokens, pads_prompts=network.pads_prompts):
        logps, entropies = completion_logps(network, part, temperature=temperature)
        spans = RaggedSpans.of(part.completions, device)
        loss, report = f_tis_loss(logps, entropies, spans, section, normalizing_tokens=normalizing_tokens)
        loss.backward()  # type: ignore[no-untyped-call]
        total.add(report)
    step = optimizer.step() if total.tokens else None
    foreign = [c for group in groups for c in group.completions if c.foreign]
    foreign_spans = sum(c.alignment.spans * c.count for c in foreign)
    return LearnReport(total, step, foreign_spans, sum(c.alignment.multi_token * c.count for c in foreign))
