"""The round, top to bottom. Each node counts its own rounds, and no node waits for another.

     1 allocate   which prompts; meanwhile the swarm is asked for groups of others             (``generation``)
     2 generate   own groups, in turn with learning or ahead of it                             (``generation``)
     3 collect    groups of others that have arrived                                           (``foreign``)
     4 score      own and foreign groups together; averaging that did harm is taken back       (``round.scoring``)
     5 learn      one optimizer step on both, further ones on remembered answers of peers      (``round.learning``)
     6 share      own groups that may help others                                              (``round.scoring``)
     7 average    weights with a partner, now and then                                         (``node.averaging``)
     8 publish    new weights to the engine; learning that did harm is taken back              (``round.taking_back``)
     9 report     the round, to the supervisor and the swarm                                   (``round.report``)
    10 keep       measure on held-out prompts, now and then; checkpoint in the background      (``round.measuring``)

The next file to read is ``round/learning.py``; the optimizer's step is ``steps.step.OptimizerSteps``. Without peers no
foreign group arrives, and the round trains alone and gives the reason. A round is a pure function of the state before
it, the configuration and what arrives: every random draw is seeded by (node, round), so a round repeated after a
restart is the same round. With ``learner.max_staleness`` above 0 generation runs ahead on a thread of its own. What a
round learns from then depends on which of the two was faster, and what was generated ahead when the process ends is
lost. A phase that runs out of memory is dropped whole and run again with less (``memory.phases``): no round is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from node.averaging.weight_averager import WeightAverager
from node.configuration import Config
from node.events import RoundDone, Stopped
from node.learner.foreign.candidates import ForeignGroups
from node.learner.foreign.intake import RolloutIntake
from node.learner.generation.schedule import GenerationSchedule, PlanOf
from node.learner.memory.abandoned import WaitAbandoned
from node.learner.memory.phases import PhaseRunner
from node.learner.round.learning import RoundLearning
from node.learner.round.measuring import Measuring
from node.learner.round.report import Reporting
from node.learner.round.scoring import RoundScoring, share
from node.learner.round.taking_back import TakingBack
from node.learner.state.learner_state import LearnerState
from node.learner.state.persistence import Persistence, SnapshotInputs
from node.learner.steps.early_learning import EarlyLearning
from node.learner.steps.optimizer import MasterAdamW
from node.policy.policy import Policy


@dataclass(slots=True, eq=False)
class Learner:
    """One policy that learns, put together by ``assembly.wiring``. Call ``run`` and ``round`` from one thread."""

    config: Config
    policy: Policy
    optimizer: MasterAdamW
    state: LearnerState
    own: GenerationSchedule
    plan_of: PlanOf
    early: EarlyLearning
    foreign: ForeignGroups
    intake: RolloutIntake
    scoring: RoundScoring
    learning: RoundLearning
    averager: WeightAverager | None  # None: weights are never averaged
    taking_back: TakingBack
    measuring: Measuring
    reporting: Reporting
    persistence: Persistence | None  # None: nothing is kept
    phases: PhaseRunner
    _before: SnapshotInputs | None = None  # as the round under way found it

    def round(self) -> RoundDone:
        """Runs one round and returns its event, which it also reports."""
        state, record = self.state, self.reporting.begin()
        self.phases.round = state.round + 1
        self._before = self._copied_inputs()

        # 1. Which prompts. Meanwhile the swarm is asked for groups of others.
        self.foreign.ask(state.round, state.success)
        self.own.launch(state.round, state.unfinished, self.plan_of)
        record.watch.lap("allocate")

        # 2. Own groups; where generation runs ahead, they may be ready already.
        generated = self.own.take(self.early)
        state.unfinished = generated.unfinished
        record.generated(generated, state.policy_version)
        generate_seconds = record.watch.lap("generate")

        # 3. Groups of others that have arrived. The round waits for them no longer than generation took.
        incoming, candidates = self.foreign.collected(state.round, state.success, generate_seconds, record.foreign)
        record.incoming(incoming)
        record.watch.lap("collect")

        # 4. Rewards of both. What weights sampled whose averaging is taken back teaches nothing.
        scored = self.scoring.score(generated, candidates, record)
        taken_back = self.taking_back.averaging(scored)
        if taken_back:
            scored = scored.without_own()
            self._before = self._copied_inputs()  # the weights are others from here on
            self._before[0].policy_version += 1
        record.watch.lap("score")

        # 5. One optimizer step on both, and further ones on remembered answers of peers.
        learnt, taught = self.learning.learn(scored, record)
        self.foreign.measured(learnt.objective)
        self.reporting.learnt_from(scored, taught)
        record.watch.lap("learn")

        # 6. Own groups to others.
        record.groups_offered = share(scored, self.foreign.candidates, self.policy, self.config.learner.share_groups)
        record.count_in(state, scored.rewards_by_task())

        # 7. Weights averaged with a partner, now and then.
        averaged = self._average()

        # 8. New weights to the engine, and those from before where learning from peers did harm.
        taken_back |= self.taking_back.learning(scored)
        if averaged or taken_back or learnt.moved:
            state.policy_version += 1
            self.own.publish(state.policy_version, self.policy.weights())
        record.watch.lap("publish")

        # 9. The report.
        done = self.reporting.done(record, learnt, generated, self.optimizer)

        # 10. Measured on held-out prompts and written to disk, where that is due.
        self.measuring.after_round(state)
        if self.persistence is not None:
            self.persistence.after_round(state.round, self._snapshot_inputs, self.phases)
        self.phases.round_done()
        return done

    def run(self, should_stop: Callable[[], str | None]) -> Stopped:
        """Runs rounds until the configuration's limit, counted from here, or until ``should_stop`` gives a reason."""
        self.phases.should_stop = should_stop
        try:
            because = self._rounds_until(should_stop)
        finally:
            self.close()
        saved, before = self._snapshot_inputs(), self._before
        if before is not None and before[0].round == self.state.round:  # it was abandoned: the next start does it again
            saved = before
        path = self.persistence.save_last(saved, self.phases) if self.persistence else None
        return Stopped(
            time_seconds=self.reporting.clock(),
            round=self.state.round,
            because=because,
            tokens_generated_total=self.state.tokens_generated,
            checkpoint=path,
            lost=self.persistence.lost(self.state.round) if self.persistence is not None else None,
        )

    def close(self) -> None:
        """Ends generation that runs ahead, promptly. ``run`` calls it; a caller of ``round`` alone must call it."""
        self.phases.should_stop = lambda: "closed"  # generation that runs ahead may be waiting for memory
        self.own.close()

    def _rounds_until(self, should_stop: Callable[[], str | None]) -> str:
        first_round, first_token = self.state.round, self.state.tokens_generated
        self.reporting.starting()
        with suppress(WaitAbandoned):
            self.measuring.before_first_round(self.state, self.config.engine.temperature)
        while True:
            because = should_stop()
            if self.config.rounds and self.state.round - first_round >= self.config.rounds:
                because = "rounds"
            elif self.config.tokens and self.state.tokens_generated - first_token >= self.config.tokens:
                because = "tokens"
            if because is not None:
                return because
            with suppress(WaitAbandoned):  # asked to stop
                self.round()

    def _average(self) -> bool:
        """Returns whether averaging with a partner has changed the weights."""
        averager = self.averager
        if averager is None:
            return False
        return bool(self.phases.attempt("average", lambda: averager.after_round(self.state), self.own.release))

    def _snapshot_inputs(self) -> SnapshotInputs:
        return self.state, self.intake.position

    def _copied_inputs(self) -> SnapshotInputs:
        return self.state.copied(), self.intake.kept_position()
