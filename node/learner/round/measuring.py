"""Measures the weights on held-out prompts when that is due; the best so far are kept in a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from node.evaluation.while_training import EvaluationWhileTraining
from node.events import BaselineMeasured, Evaluated, Event, PhaseBegan
from node.learner.memory.phases import PhaseRunner
from node.learner.state.learner_state import LearnerState
from node.learner.state.persistence import Persistence


@dataclass(eq=False)
class Measuring:
    """Measures one learner. Only the learner's thread may call it.

    Without ``evaluation`` nothing is ever measured; without ``persistence`` no best weights are kept.
    """

    evaluation: EvaluationWhileTraining | None
    persistence: Persistence | None
    phases: PhaseRunner
    report: Callable[[Event], None]
    clock: Callable[[], float]

    def before_first_round(self, state: LearnerState, temperature: float) -> None:
        """Measures weights that no round has changed yet: as practice measures them, and as evaluations do. The best
        is chosen among later evaluations."""
        evaluation = self.evaluation
        if evaluation is None or not evaluation.section.every_rounds or state.round:
            return
        began = self.clock()
        self.report(PhaseBegan(time_seconds=began, round=1, phase="evaluate"))
        measured = self.phases.attempt("evaluate", lambda: evaluation.baseline(temperature))
        self.report(
            BaselineMeasured(
                time_seconds=self.clock(),
                round=0,
                prompts=evaluation.section.prompts,
                reward_by_task=measured or {},
                seconds=self.clock() - began,
            )
        )
        self._evaluate(evaluation, state)

    def after_round(self, state: LearnerState) -> None:
        evaluation = self.evaluation
        if evaluation is not None and evaluation.is_due(state.round):
            self._evaluate(evaluation, state)

    def _evaluate(self, evaluation: EvaluationWhileTraining, state: LearnerState) -> None:
        began = self.clock()
        self.report(PhaseBegan(time_seconds=began, round=state.round + 1, phase="evaluate"))
        measured = self.phases.attempt("evaluate", lambda: evaluation.measure(state.round))
        if measured is None:
            return
        state.evaluation = measured
        best = measured if self.persistence is None or state.round == 0 else self.persistence.best_after(measured)
        self.report(
            Evaluated(
                time_seconds=self.clock(),
                round=state.round,
                policy_version=state.policy_version,
                prompts=measured.prompts,
                reward=measured.reward,
                reward_by_task=measured.reward_by_task,
                validation=measured.validation,
                best_round=best.round,
                best_reward=best.reward,
                seconds=self.clock() - began,
            )
        )
