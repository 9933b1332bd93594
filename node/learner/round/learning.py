"""What a round learns from: one batch of own groups, groups of others and remembered own answers; then, where
``learner.foreign_groups`` is "auto", further lessons on remembered right answers of peers.

What each group weighed in a step is counted by class and peer (``RoundRecord.learnt_from``), and what may teach again
is remembered for later rounds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from node.configuration import Config, chosen
from node.engines.engine import Engine
from node.learner.answers.hints import in_own_words
from node.learner.answers.right_answers import IMITATION_RATE, of_others
from node.learner.foreign.candidates import ForeignCandidates, VerifiedGroup
from node.learner.generation.hint import Hint
from node.learner.influence.guard import Guard
from node.learner.memory.abandoned import WaitAbandoned
from node.learner.memory.phases import PhaseRunner
from node.learner.objective.advantages import AdvantageRule, Capabilities
from node.learner.objective.batch import SELF, TrainingGroup, one_row_each
from node.learner.objective.training_groups import own_training_group
from node.learner.round.record import RoundRecord
from node.learner.round.scoring import ScoredRound
from node.learner.state.learner_state import LearnerState
from node.learner.steps.batch_steps import BatchSteps
from node.learner.steps.early_learning import EarlyLearning
from node.learner.steps.rate_control import in_use, is_measured, most_factor, next_rate
from node.learner.steps.step import BatchReport
from node.tasks.answers import RIGHT
from node.tasks.task import Task


@dataclass(eq=False)
class RoundLearning:
    """The learning of one learner. Only the learner's thread may call it.

    ``release`` gives back what the engine holds; ``draws`` are a round's random numbers for one purpose.
    """

    config: Config
    tasks: Mapping[str, Task]
    state: LearnerState
    engine: Engine
    foreign: ForeignCandidates
    guard: Guard
    early: EarlyLearning
    steps: BatchSteps
    phases: PhaseRunner
    release: Callable[[], None]
    draws: Callable[[str, int], random.Random]
    capabilities: Capabilities = field(default_factory=Capabilities)

    def learn(self, scored: ScoredRound, record: RoundRecord) -> tuple[BatchReport, list[VerifiedGroup]]:
        """Takes one optimizer step on own and foreign groups, and on own right answers of earlier rounds; then further
        ones on right answers of peers. The swarm learns which groups of others were used.

        Returns also the groups of others that the first step learnt from.
        """
        objective, state = self.config.objective, self.state
        own, verified = scored.own, scored.verified
        if not own:
            self.early.drop()  # what was begun on is not to be learnt from
        theirs = [group.rewards for group in verified] if objective.research.foreign_advantage == "group" else []
        rule = AdvantageRule.of(objective.research.advantage, [*(scores.rewards for _, scores in own), *theirs])
        early = self.early.groups
        late = own[len(early) :]
        own_batch = [*early, *(own_training_group(each, scores.rewards, objective, rule) for each, scores in late)]
        if objective.research.foreign_advantage == "capability":
            groups = [(SELF, scores.rewards) for _, scores in own]
            self.capabilities.observe([*groups, *((each.foreign.peer, each.rewards) for each in verified)])
        capability_ratio = partial(self.capabilities.ratio, learner=SELF)
        foreign_batch = self.foreign.training_groups(verified, rule, state.success.of, capability_ratio)
        hints = self.foreign.hints(verified)
        # a peer whose answers are hints is not one without any use
        foreign_batch = [
            group if hint is None else replace(group, not_copied=())
            for group, hint in zip(foreign_batch, hints, strict=True)
        ]
        own_words = self._own_words(scored)
        record.hints, record.hints_right = len(scored.hinted), len(own_words)
        foreign_sources = [(each.prompt.ref.task, each.foreign.peer) for each in verified]
        foreign_sources += [(hint.task, hint.peer) for hint, _ in own_words]
        foreign_batch += [group for _, group in own_words]
        from_peers = [(peer, group) for (_, peer), group in zip(foreign_sources, foreign_batch, strict=True)]
        foreign_batch = self.guard.shaped(state.round + 1, own_batch, from_peers)
        self.foreign.report_use(verified, foreign_batch[: len(verified)], hints, record.foreign)
        for hint in hints:
            if hint is not None:
                state.hints.keep(hint)
        for group in one_row_each(foreign_batch):
            self.engine.remember(group.prompt_ids, [each.row_ids.tolist() for each in group.completions])
        record.own_groups_informative = sum(1 for group in own_batch if group.informative)
        draws = self.draws("rehearse", state.round)
        seen_again = state.rehearsal.drawn(len(own), list(self.tasks), state.success, draws)
        rest = [*own_batch[len(early) :], *foreign_batch, *(group for _, group in seen_again)]
        finds_rate = self.config.learner.learning_rate == "auto"
        learnt = self.steps.take(
            rest, self.phases, self.release,
            rate=in_use(state.rate, self.config.learner.learning_rate).factor,
            begun=self.early.begun,
            measured=state.round if finds_rate and is_measured(state.rate, state.round) else None,
        )  # fmt: skip
        for rollout, scores in own:
            state.rehearsal.remember(rollout, scores.rewards)
        record.foreign_completions = learnt.foreign_completions
        masses: list[tuple[str, str, float]] = []
        taught: list[VerifiedGroup] = []
        if learnt.step is not None and learnt.step.taken:
            sources = [(rollout.prompt.ref.task, SELF) for rollout, _ in own]
            sources += foreign_sources
            sources += [(task, SELF) for task, _ in seen_again]
            masses += [(*source, mass) for source, mass in zip(sources, learnt.masses, strict=True)]
            taught = [each for each, mass in zip(verified, learnt.masses[len(own) :], strict=False) if mass > 0]
        if self.config.learner.foreign_groups == "auto":
            learnt = replace(learnt, further_steps=self._imitate(own_batch, masses))
            for (task, peer), group in zip(foreign_sources, foreign_batch, strict=True):
                if self.guard.may_teach_again(peer):
                    state.imitation.remember(task, group)
        if finds_rate and learnt.step is not None and learnt.step.taken:
            adapter = chosen(self.config.policy.adapter_rank, 0) > 0
            most = most_factor(self.steps.own_rate, adapter=adapter)
            kl, signal = learnt.objective.mean_moved(), learnt.own_signal
            state.rate = next_rate(state.rate, kl, signal, state.round + 1, most=most)
        record.learnt_from(masses)
        return learnt, taught

    def _own_words(self, scored: ScoredRound) -> list[tuple[Hint, TrainingGroup]]:
        """Returns what was answered rightly with hints of peers."""
        success = self.state.success
        self.state.hints.tried((hint, scores.rewards[0] >= RIGHT) for _, scores, hint in scored.hinted)
        return [
            (hint, in_own_words(rollout, scores.rewards[0], scores.rewards[0] - success.of(hint.task), hint.peer))
            for rollout, scores, hint in scored.hinted
            if scores.rewards[0] >= RIGHT
        ]

    def _imitate(self, own_batch: Sequence[TrainingGroup], masses: list[tuple[str, str, float]]) -> int:
        """Takes steps on remembered right answers of peers, and on own ones beside them; returns how many. Adds what
        each answer weighed to ``masses``: class, peer, mass."""
        state, taken = self.state, 0
        rate = IMITATION_RATE * in_use(state.rate, self.config.learner.learning_rate).factor
        lessons = state.imitation.lessons(
            state.rehearsal,
            list(self.tasks),
            state.success,
            self.guard.may_teach_again,
            self.steps.whole_batch,
            self.draws("imitate", state.round),
        )
        for lesson in lessons:
            groups = self.guard.shaped_again(state.round + 1, own_batch, of_others(lesson))
            own = [(task, peer, group) for task, peer, group in lesson if peer == SELF]
            batch = [*(group for _, _, group in own), *groups]
            try:
                report = self.steps.take(batch, self.phases, self.release, rate=rate)
            except WaitAbandoned:  # the round's own step is taken: it ends here, and not with weights of half a round
                break
            if report.step is not None and report.step.taken:
                taken += 1
                sources = [*own, *(each for each in lesson if each[1] != SELF)]
                masses += [(task, peer, mass) for (task, peer, _), mass in zip(sources, report.masses, strict=True)]
        return taken
