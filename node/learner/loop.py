"""The round, top to bottom. Each node counts its own rounds, and no node waits for another.

    allocate → generate → (foreign groups have meanwhile been chosen and fetched) → score own and foreign together
    → one optimizer step on own and foreign groups, further ones on remembered answers of peers → share own groups that
    may help others → average weights with a partner, now and then → new weights to the engine → report → measure on
    held-out prompts, now and then → checkpoint in the background

``Learner.round`` does this, in this order; what each step does is in the module that it calls. What it learns from is
in ``round_learning.py``, the next file to read; the optimizer's step is ``step.optimizer_steps``. Without peers no
foreign group arrives, and the round trains alone and gives the reason. A round is a pure function of the state before
it, the configuration and what arrives: every random draw is seeded by (node, round), so a round repeated after a
restart is the same round. With ``learner.max_staleness`` above 0 generation runs ahead on a thread of its own. What a
round learns from then depends on which of the two was faster, and what was generated ahead when the process ends is
lost. In turn with an engine that has a device of its own, the one optimizer step begins on groups that have ended
(``early_learning.py``).

A phase that runs out of memory is dropped whole and run again with less (``memory/phases.py``): no round is lost by it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from node.averaging.guard import OwnGroup
from node.averaging.weight_averager import WeightAverager
from node.configuration import DEFAULT_BATCH_TOKENS, Config, chosen
from node.engines.engine import Engine
from node.evaluation.while_training import EvaluationWhileTraining
from node.events import Evaluated, Event, Fault, PhaseBegan, RoundDone, Stopped
from node.fit.fitted import Sizes
from node.fit.footprint import HARM_COPIED_WEIGHTS
from node.learner.allocation.allocator import Allocation, allocate
from node.learner.batch_steps import BatchSteps
from node.learner.early_learning import EarlyLearning
from node.learner.foreign.candidates import ForeignCandidate, ForeignCandidates, VerifiedGroup
from node.learner.foreign.intake import RolloutIntake
from node.learner.generation.generation import Generated, Generation, RewardScorer, RoundPlan, launched_for
from node.learner.generation.own_rollouts import can_be_shared, group_of, scoring_item, worth_sharing
from node.learner.generation.schedule import schedule_of
from node.learner.influence.guard import Guard
from node.learner.memory.device_memory import device_memory
from node.learner.memory.phases import PhaseRunner, SizePlan, WaitAbandoned
from node.learner.memory.undo import copy_within
from node.learner.objective.batch import SELF
from node.learner.objective.forward import Network
from node.learner.objective.other_policies import OtherPolicies
from node.learner.objective.pass_settings import PassSettings
from node.learner.optimizer import MasterAdamW
from node.learner.persistence import LearnerState, Persistence
from node.learner.round_learning import RoundLearning, ScoredRollout
from node.learner.round_record import RoundRecord, Stopwatch
from node.learner.round_report import heartbeat, round_done
from node.learner.samples import SampleChoice
from node.learner.sharding.devices import ONE_DEVICE, LeadingDevice
from node.learner.step import BatchReport
from node.policy.policy import Policy
from node.tasks.task import Task

MIN_COLLECT_SECONDS = 0.25  # waiting for foreign groups
SLOW_PHASE_SECONDS = 1.0  # a phase that took longer is reported when it begins in the next round


class Learner:
    """One policy that learns. Collaborators are passed in; ``run`` and ``round`` are called from one thread."""

    def __init__(
        self,
        config: Config,
        policy: Policy,
        tasks: Mapping[str, Task],
        engine: Engine,
        scorer: RewardScorer,
        intake: RolloutIntake,
        optimizer: MasterAdamW,
        state: LearnerState,
        *,
        report: Callable[[Event], None],
        clock: Callable[[], float],
        persistence: Persistence | None = None,
        others: OtherPolicies | None = None,
        weight_averager: WeightAverager | None = None,
        evaluation: EvaluationWhileTraining | None = None,
        passes: PassSettings | None = None,
        size_plan: SizePlan | None = None,
        devices: LeadingDevice = ONE_DEVICE,
    ) -> None:
        """``clock`` gives Unix time. Where ``state`` comes from a checkpoint, its tensors are loaded already, and
        ``others`` were made before that. Without ``others`` the policy as it is now is the reference; without
        ``weight_averager`` weights are never averaged; without ``evaluation`` they are never measured.

        Rows and passes begin and change as ``size_plan`` says; without it they begin as ``engine`` and ``config`` say.
        ``devices`` hold policy and optimizer, in shards where they are several.
        """
        self.config, self.policy, self.tasks, self.state = config, policy, tasks, state
        passes = passes or PassSettings(
            chosen(config.learner.batch_tokens, DEFAULT_BATCH_TOKENS), chosen(config.learner.recompute, False)
        )
        self._scorer, self._intake, self._optimizer = scorer, intake, optimizer
        self._report, self._clock, self._persistence = report, clock, persistence
        self._weight_averager, self._evaluation = weight_averager, evaluation
        self._network = Network.of(policy.model, policy.tokens.vocabulary)
        self._others = others or OtherPolicies(policy.trainable(), config.objective)
        self._foreign = ForeignCandidates(intake, tasks, policy.tokens, config.objective, context=self._network.context)
        self._seed = f"{config.seed}/{config.name}"  # the name sets apart nodes that share a configuration
        self._guard = Guard(
            state.influence,
            completions=config.learner.completions,
            staleness=config.learner.max_staleness,
            seed=self._seed,
        )
        self._slow_phases: set[str] = set()  # of the round before
        self._samples = SampleChoice()
        self._reported_faults: set[str] = set()  # kinds that occurred in the round before
        self._engine = engine
        self._steps = BatchSteps(
            config,
            self._network,
            optimizer,
            self._others,
            devices,
            passes,
            max_new_tokens=max(task.max_new_tokens for task in tasks.values()),
        )
        configured = Sizes(engine.rows, passes.batch_tokens, passes.recompute)
        self._phases = PhaseRunner(
            size_plan or SizePlan(begin=configured, most=configured),
            use=self._use_sizes,
            report=report,
            clock=clock,
            memory=partial(device_memory, policy.device),
        )
        generation = Generation(
            engine,
            tasks,
            policy.tokens,
            scorer,
            config.learner,
            temperature=config.engine.temperature,
            context=self._network.context,
        )
        self._schedule = schedule_of(config, generation, self._phases)
        self._early = EarlyLearning(
            config.objective, scorer, self._steps.begin, self._steps.drop_begun, lambda: self._steps.tokens_at_once
        )
        self._learning = RoundLearning(
            config,
            tasks,
            state,
            engine,
            self._foreign,
            self._guard,
            self._early,
            self._steps,
            self._phases,
            release=self._schedule.release,
            draws=self._draws,
        )
        self._schedule.publish(state.policy_version, policy.weights())

    @property
    def passes(self) -> PassSettings:
        """The sizes of training passes now."""
        return self._steps.passes

    def run(self, should_stop: Callable[[], str | None]) -> Stopped:
        """Runs rounds until the configuration's limit, counted from here, or until ``should_stop`` gives a reason."""
        self._phases.should_stop = should_stop
        try:
            because = self._rounds_until(should_stop)
        finally:
            self.close()
        path = self._persistence.save_last(self._snapshot_inputs(), self._phases) if self._persistence else None
        return Stopped(
            time_seconds=self._clock(),
            round=self.state.round,
            because=because,
            tokens_generated_total=self.state.tokens_generated,
            checkpoint=path,
            lost=self._persistence.lost(self.state.round) if self._persistence is not None else None,
        )

    def close(self) -> None:
        """Ends generation that runs ahead, promptly. ``run`` calls it; a caller of ``round`` alone must call it."""
        self._phases.should_stop = lambda: "closed"  # generation that runs ahead may be waiting for memory
        self._schedule.close()

    def _rounds_until(self, should_stop: Callable[[], str | None]) -> str:
        first_round, first_token = self.state.round, self.state.tokens_generated
        self._intake.calls.beat(heartbeat(self.config, self.policy, self.state, "starting", 0.0))
        while True:
            because = should_stop()
            if self.config.rounds and self.state.round - first_round >= self.config.rounds:
                because = "rounds"
            elif self.config.tokens and self.state.tokens_generated - first_token >= self.config.tokens:
                because = "tokens"
            if because is not None:
                return because
            done, unfinished = self.state.round, self.state.unfinished
            try:
                self.round()
            except WaitAbandoned:  # asked to stop
                if self.state.round == done:
                    self.state.unfinished = unfinished  # the next start repeats the round

    def round(self) -> RoundDone:
        """Runs one round and returns its event, which it also reports."""
        watch, record = Stopwatch(partial(self._on_phase, self.state.round + 1)), RoundRecord()
        self._phases.round = self.state.round + 1

        # Which prompts. Meanwhile the swarm is asked for groups of others.
        self._choose_foreign(self.state.round)
        self._schedule.launch(self.state.round, self.state.unfinished, self._plan)
        watch.lap("allocate")

        # Own groups; where generation runs ahead, they may be ready already.
        generated = self._schedule.take(self._early)
        self.state.unfinished = generated.unfinished
        record.generated(generated, self.state.policy_version)
        generate_seconds = watch.lap("generate")

        # Foreign groups that have arrived. The round waits for them no longer than generation took.
        incoming = self._intake.collect(max(MIN_COLLECT_SECONDS, generate_seconds))
        record.incoming(incoming)
        candidates = self._foreign.regenerated(incoming.groups, record.foreign)
        if self.config.learner.max_staleness:  # generation ran ahead and left no time: the next come while learning
            self._choose_foreign(self.state.round + 1)
        watch.lap("collect")

        # Own and foreign completions are scored together. A claim that does not hold costs its sender reputation.
        own, verified = self._score(generated, candidates, record)
        everything = [*own, *generated.dropped]
        rewards_by_task = _rewards_by_task(everything)
        record.rewards(rewards_by_task, [scores for _, scores in everything])
        taken_back = self._take_back_averaging(everything)
        if taken_back:  # what those weights sampled teaches nothing
            own, everything, rewards_by_task = [], [], {}
            self._early.drop()
        watch.lap("score")

        # One optimizer step on own and foreign groups, and further ones on remembered answers of peers.
        learnt, taught = self._learning.learn(own, verified, record)
        self._intake.measured(_of_others(learnt.objective.divergence_by_peer()))
        samples = self._samples.of_round(self._clock(), self.state.round + 1, own, taught)
        if samples is not None:
            self._report(samples)
        watch.lap("learn")

        # Own groups to others, weights averaged with a partner now and then, new weights to the engine.
        self._share(everything, record)
        groups = [(rollout.prompt.ref.task, scores.rewards) for rollout, scores in everything]
        self.state.advance(record, rewards_by_task)
        averaged = self._average()
        taken_back |= self._take_back_learning(groups)
        if averaged or taken_back or learnt.moved:
            self.state.policy_version += 1
            self._schedule.publish(self.state.policy_version, self.policy.weights())
        watch.lap("publish")

        # Report, evaluate and checkpoint.
        self._slow_phases = {phase for phase, seconds in watch.seconds.items() if seconds > SLOW_PHASE_SECONDS}
        done = round_done(self._clock(), watch, record, learnt, self.state, self._optimizer.steps_skipped)
        foreign_groups = record.foreign.event(self._clock(), self.state.round)
        if foreign_groups is not None:
            self._report(foreign_groups)
        self._report(done)
        self._intake.calls.beat(heartbeat(self.config, self.policy, self.state, "learning", done.tokens_per_second))
        self._report_faults(learnt, generated.too_long, record)
        self._evaluate()
        if self._persistence is not None:
            self._persistence.after_round(self.state.round, self._snapshot_inputs, self._phases)
        self._phases.round_done()
        return done

    def _choose_foreign(self, round_number: int) -> None:
        self._intake.admits = self._guard.admits(round_number + 1)
        self._intake.begin(self.state.success.copy().of, self._draws("choose", round_number))

    def _take_back_learning(self, own: Sequence[tuple[str, Sequence[float]]]) -> bool:
        """Returns whether own success showed that learning from others did harm, and earlier weights are back."""
        harm = self._guard.after_round(
            self.state.round,
            own,
            lambda oldest: self._phases.attempt(
                "checkpoint", lambda: copy_within(HARM_COPIED_WEIGHTS, self._optimizer, self._others, oldest)
            ),
        )
        if harm is None:
            return False
        self.state.imitation.forget(harm.peers)
        self._report(
            Fault(time_seconds=self._clock(), kind="harm", detail=str(harm), round=self.state.round, fatal=False)
        )
        if harm.weights_of_round is None:
            return False
        self.state.averaging.passed()  # an outer step on trial is not to be taken back from other weights
        return True

    def _evaluate(self) -> None:
        """Measures the weights on held-out prompts if that is due; the best so far are kept in a checkpoint."""
        state = self.state
        if self._evaluation is None or not self._evaluation.is_due(state.round):
            return
        began = self._clock()
        self._report(PhaseBegan(time_seconds=began, round=state.round + 1, phase="evaluate"))
        evaluation = self._evaluation
        measured = self._phases.attempt("evaluate", lambda: evaluation.measure(state.round))
        if measured is None:
            return
        state.evaluation = measured
        best = self._persistence.best_after(measured) if self._persistence is not None else measured
        self._report(
            Evaluated(
                time_seconds=self._clock(),
                round=state.round,
                policy_version=state.policy_version,
                prompts=measured.prompts,
                reward=measured.reward,
                reward_by_task=measured.reward_by_task,
                validation=measured.validation,
                best_round=best.round,
                best_reward=best.reward,
                seconds=self._clock() - began,
            )
        )

    def _on_phase(self, round_number: int, phase: str) -> None:
        if phase in self._slow_phases:
            self._report(PhaseBegan(time_seconds=self._clock(), round=round_number, phase=phase))

    def _draws(self, purpose: str, round_number: int) -> random.Random:
        """Returns a round's random numbers for one purpose."""
        return random.Random(f"starling/{purpose}/{self._seed}/{round_number}")

    def _plan(self, round_number: int) -> RoundPlan:
        """Plans what a round, this or a later one, may generate. Prompts after the first lot are for ``resample``."""
        section = self.config.learner
        launched = launched_for(section.own_groups, section.overprovision)
        first = self._allocate(round_number, self._seed, launched)
        for lot in range(1, section.resample):
            first += self._allocate(round_number, f"{self._seed}/lot {lot}", section.own_groups)
        return RoundPlan(section.own_groups, tuple(first), self._draws("sample", round_number).getrandbits(63))

    def _allocate(self, round_number: int, seed: str, groups: int) -> list[Allocation]:
        completions = self.config.learner.completions
        return allocate(round_number, seed, list(self.tasks), groups=groups, completions=completions)

    def _score(
        self, generated: Generated, candidates: Sequence[ForeignCandidate], record: RoundRecord
    ) -> tuple[list[ScoredRollout], list[VerifiedGroup]]:
        """Returns our own groups to learn from, with their scores, and those foreign groups whose claims hold."""
        own = self._early.ordered(generated.rollouts)
        known = dict(self._early.scores)
        if generated.scores is not None:
            known |= zip(generated.rollouts, generated.scores, strict=True)
        missing = [rollout for rollout in own if rollout not in known]
        items = [scoring_item(rollout.prompt.ref, rollout.texts) for rollout in missing]
        scores = self._scorer.score([*items, *(candidate.scoring_item() for candidate in candidates)])
        verified = self._foreign.verified(candidates, scores[len(missing) :], record.foreign)
        known |= zip(missing, scores[: len(missing)], strict=True)
        return [(rollout, known[rollout]) for rollout in own], verified

    def _average(self) -> bool:
        """Returns whether averaging with a partner has changed the weights."""
        averager = self._weight_averager
        if averager is None:
            return False
        return bool(self._phases.attempt("average", lambda: averager.after_round(self.state), self._schedule.release))

    def _take_back_averaging(self, own: Sequence[ScoredRollout]) -> bool:
        """Returns whether own rewards showed that the last averaging did harm, and it was taken back."""
        if self._weight_averager is None:
            return False
        groups = [OwnGroup(r.prompt.ref.task, r.oldest_version, scores.rewards) for r, scores in own]
        return self._weight_averager.take_back_if_harmful(self.state, groups)

    def _use_sizes(self, sizes: Sizes) -> None:
        self._engine.rows = sizes.rows
        self._steps.use(sizes)

    def _share(self, own: Sequence[ScoredRollout], record: RoundRecord) -> None:
        if not self._intake.calls.may_share():
            return
        own = [(rollout, scores) for rollout, scores in own if can_be_shared(rollout, self.policy.tokens)]
        rewards = [scores.rewards for _, scores in own]
        chosen = worth_sharing(rewards, [r.prompt.ref.task for r, _ in own], self.config.learner.share_groups)
        if chosen:
            groups = [group_of(own[i][0], rewards[i], self.policy.tokens, family=self.policy.family) for i in chosen]
            self._intake.share(groups)
            record.groups_shared = len(groups)

    def _report_faults(self, learnt: BatchReport, too_long: int, record: RoundRecord) -> None:
        """Reports each kind of fault once, and again only after a round without it."""
        faults = dict.fromkeys((error.reason, str(error)) for error in self._intake.faults())
        if learnt.step is not None and not learnt.step.taken:
            faults["gradient", f"the gradient's norm is {learnt.step.gradient_norm}: the step was skipped"] = None
        if too_long:
            left = f"{too_long} prompts of this round left no room for an answer in the model's context"
            faults["prompt_too_long", f"{left}, and were left out: choose shorter tasks"] = None
        if record.scoring_fault is not None:
            without = f"{record.scoring_failures} own answers of this round got no reward, since scoring them failed"
            faults["scoring", f"{without}; the first: {record.scoring_fault}"] = None
        for kind, detail in faults:
            if kind not in self._reported_faults:
                self._report(
                    Fault(time_seconds=self._clock(), kind=kind, detail=detail, round=self.state.round, fatal=False)
                )
        self._reported_faults = {kind for kind, _ in faults}

    def _snapshot_inputs(self) -> tuple[LearnerState, dict[str, object]]:
        return self.state, self._intake.position()


def _rewards_by_task(own: Sequence[ScoredRollout]) -> dict[str, list[float]]:
    by_task: dict[str, list[float]] = {}
    for rollout, scores in own:
        by_task.setdefault(rollout.prompt.ref.task, []).extend(scores.rewards)
    return by_task


def _of_others(by_peer: Mapping[str, float]) -> dict[str, float]:
    return {peer: value for peer, value in by_peer.items() if peer != SELF and math.isfinite(value)}
