"""The round, top to bottom. Each node counts its own; nobody waits for anybody.

    allocate → generate → (foreign groups have meanwhile been chosen and fetched) → score own and foreign together
    → share what may help others → one optimizer step on own and foreign groups → average weights with a partner,
    now and then → new weights to the engine → checkpoint in the background → report

``Learner.round`` is that, in this order; what each step does is in the module that it calls. With no peers nothing
foreign arrives, and the round trains alone and says why. A round is a pure function of the state before it, the
configuration and what arrives: every random draw is seeded by (node, round), so one repeated after a restart is the
same round. With ``learner.max_staleness`` above 0 generation runs ahead, on a thread of its own: what a round learns
from then depends on which of the two was faster, and what was generated ahead when the process ends is lost.
"""

from __future__ import annotations

import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from node.averaging.weight_averager import WeightAverager
from node.configuration import Config
from node.engines.engine import Engine
from node.events import Event, Fault, PhaseBegan, RoundDone, Stopped
from node.learner.allocation.allocator import Allocation, Known, allocate
from node.learner.allocation.peer_success import Announced
from node.learner.foreign.intake import ForeignGroup, Incoming, RolloutIntake
from node.learner.foreign.outcomes import Decided
from node.learner.foreign.verification import ForeignRefusal, check_rewards, regenerated_prompt
from node.learner.generation.generation import Generated, Generation, Plan, RewardScorer, launched_for
from node.learner.generation.own_rollouts import Rollout, group_of, scoring_item, worth_sharing
from node.learner.generation.schedule import schedule_of
from node.learner.objective.advantages import AdvantageRule
from node.learner.objective.batch import SELF, TrainingGroup
from node.learner.objective.forward import Network
from node.learner.objective.other_policies import OtherPolicies
from node.learner.objective.training_groups import foreign_training_group, own_training_group
from node.learner.optimizer import MasterAdamW
from node.learner.persistence import LearnerState, Persistence
from node.learner.round_record import RoundRecord, Stopwatch
from node.learner.round_report import heartbeat, round_done
from node.learner.step import BatchReport, optimizer_steps
from node.policy.policy import Policy
from node.tasks.scorer import Scores
from node.tasks.task import Prompt, Task
from protocol.errors import ProtocolError
from swarm.api import Judgement

MIN_COLLECT_SECONDS = 0.25
SLOW_PHASE_SECONDS = 1.0  # beyond it a round says what it is at

log = logging.getLogger(__name__)


Scored = tuple[Rollout, Scores]


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """A foreign group whose prompt was regenerated; its rewards are recomputed beside our own."""

    foreign: ForeignGroup
    prompt: Prompt


class Learner:
    """One policy that learns. Collaborators are passed in; ``run`` and ``round`` are called from one thread."""

    def __init__(
        self,
        config: Config,
        policy: Policy,
        tasks: Mapping[str, Task],
        engine: Engine,
        scorer: RewardScorer,
        exchange: RolloutIntake,
        optimizer: MasterAdamW,
        state: LearnerState,
        *,
        report: Callable[[Event], None],
        clock: Callable[[], float],
        persistence: Persistence | None = None,
        others: OtherPolicies | None = None,
        replica: WeightAverager | None = None,
    ) -> None:
        """``clock`` gives Unix time. ``state`` may come from a checkpoint whose tensors are loaded already; then
        ``others`` were made before they were. Without ``others`` the policy as it is now is the reference; without
        ``replica`` weights are never averaged."""
        self.config, self.policy, self.tasks, self.state = config, policy, tasks, state
        self._scorer, self._exchange, self._optimizer = scorer, exchange, optimizer
        self._report, self._clock, self._persistence = report, clock, persistence
        self._replica = replica
        self._network = Network.of(policy.model)
        self._others = others or OtherPolicies(policy.trainable(), config.objective)
        self._seed = f"{config.seed}/{config.name}"  # the name sets nodes apart that share a configuration
        self._peer_success: Mapping[str, Announced] = {}  # what others said of themselves when last heard
        self._slow_phases: set[str] = set()  # of the round before
        self._told: set[str] = set()  # faults told already and not gone since
        generation = Generation(
            engine,
            tasks,
            policy.tokens,
            scorer,
            config.learner,
            temperature=config.engine.temperature,
            context=self._network.context,
        )
        self._schedule = schedule_of(config, generation)
        self._schedule.publish(state.policy_version, policy.trainable())

    def run(self, should_stop: Callable[[], str | None]) -> Stopped:
        """Rounds until the configuration's limit, counted from here, is reached or ``should_stop`` gives a reason."""
        try:
            because = self._rounds_until(should_stop)
        finally:
            self.close()
        path = self._persistence.save_last(self._snapshot_inputs()) if self._persistence else None
        return Stopped(
            time_seconds=self._clock(),
            round=self.state.round,
            because=because,
            tokens_generated_total=self.state.tokens_generated,
            checkpoint=path,
        )

    def close(self) -> None:
        """Ends what generates ahead, promptly. ``run`` does so; who calls ``round`` alone does it himself."""
        self._schedule.close()

    def _rounds_until(self, should_stop: Callable[[], str | None]) -> str:
        first_round, first_token = self.state.round, self.state.tokens_generated
        self._exchange.beat(heartbeat(self.config, self.policy, self.state, "starting", 0.0))
        while True:
            because = should_stop()
            if self.config.rounds and self.state.round - first_round >= self.config.rounds:
                because = "rounds"
            elif self.config.tokens and self.state.tokens_generated - first_token >= self.config.tokens:
                because = "tokens"
            if because is not None:
                return because
            self.round()

    def round(self) -> RoundDone:
        """One round; returns what it also reports."""
        watch, record = Stopwatch(partial(self._tell_phase, self.state.round + 1)), RoundRecord()

        # Which prompts. The swarm is asked for groups of others meanwhile.
        self._exchange.begin(self.state.success.copy().of, self._draws("choose", self.state.round))
        self._schedule.launch(self.state.round, self.state.unfinished, self._plan)
        watch.lap("allocate")

        # Own groups; where generation runs ahead, they may be waiting already.
        generated = self._schedule.take()
        self.state.unfinished = generated.unfinished
        record.generated(generated, self.state.policy_version)
        generate_seconds = watch.lap("generate")

        # Foreign groups that have arrived; one waits for them no longer than generating took.
        incoming = self._exchange.collect(max(MIN_COLLECT_SECONDS, generate_seconds))
        record.incoming(incoming)
        if incoming.peer_success is not None:
            self._peer_success = incoming.peer_success
        candidates = self._regenerate(incoming, record)
        if self.config.learner.max_staleness:  # no time to fetch in while generating: the next ones come while learning
            self._exchange.begin(self.state.success.copy().of, self._draws("choose", self.state.round + 1))
        watch.lap("collect")

        # Own and foreign completions are scored together; a claim that does not hold costs its sender.
        own, checked = self._score(generated, candidates, record)
        everything = [*own, *generated.dropped]
        rewards_by_task = _rewards_by_task(everything)
        record.rewards(rewards_by_task, [scores for _, scores in everything])
        watch.lap("score")

        learnt = self._learn(own, checked, record)
        self._exchange.measured(_of_others(learnt.objective.divergence_by_peer()))
        watch.lap("learn")

        self._share(everything, record)
        groups = [(rollout.prompt.ref.task, scores.rewards) for rollout, scores in everything]
        self.state.advance(record, rewards_by_task, groups, self.config.allocation.forgetting)
        averaged = self._replica is not None and self._replica.after_round(self.state)
        if averaged or (learnt.step is not None and learnt.step.taken):
            self.state.policy_version += 1
            self._schedule.publish(self.state.policy_version, self.policy.trainable())
        watch.lap("publish")

        self._slow_phases = {phase for phase, seconds in watch.seconds.items() if seconds > SLOW_PHASE_SECONDS}
        done = round_done(self._clock(), watch, record, learnt, self.state, self._optimizer.steps_skipped)
        foreign_groups = record.foreign.event(self._clock(), self.state.round)
        if foreign_groups is not None:
            self._report(foreign_groups)
        self._report(done)
        self._exchange.beat(heartbeat(self.config, self.policy, self.state, "learning", done.tokens_per_second))
        self._tell_faults(learnt)
        if self._persistence is not None:
            self._persistence.after_round(self.state.round, self._snapshot_inputs)
        return done

    def _tell_phase(self, round_number: int, phase: str) -> None:
        if phase in self._slow_phases:
            self._report(PhaseBegan(time_seconds=self._clock(), round=round_number, phase=phase))

    def _draws(self, purpose: str, round_number: int) -> random.Random:
        """A round's random numbers for one purpose."""
        return random.Random(f"starling/{purpose}/{self._seed}/{round_number}")

    def _plan(self, round_number: int) -> Plan:
        """What a round, this or a later one, may generate. Prompts beyond the first lot are for ``resample``."""
        section = self.config.learner
        launched = launched_for(section.own_groups, section.overprovision)
        first = self._allocate(round_number, self._seed, launched)
        # An allocator may spread the completions over more or fewer prompts than it was asked for.
        groups = max(1, round(section.own_groups * len(first) / launched))
        for lot in range(1, section.resample):
            first += self._allocate(round_number, f"{self._seed}/lot {lot}", section.own_groups)
        return Plan(groups, tuple(first), self._draws("sample", round_number).getrandbits(63))

    def _allocate(self, round_number: int, seed: str, groups: int) -> list[Allocation]:
        return allocate(
            round_number,
            seed,
            list(self.tasks),
            groups=groups,
            completions=self.config.learner.completions,
            section=self.config.allocation,
            known=Known(self.state.evidence, self._peer_success),
        )

    def _regenerate(self, incoming: Incoming, record: RoundRecord) -> list[_Candidate]:
        candidates: list[_Candidate] = []
        for foreign in incoming.groups:
            try:
                prompt = regenerated_prompt(foreign.group, self.tasks, self.policy.tokens)
            except ProtocolError as error:
                self._refuse(foreign, ForeignRefusal(Judgement.MALFORMED, error.reason, str(error)), record)
                continue
            candidates.append(_Candidate(foreign, prompt))
        return candidates

    def _score(
        self, generated: Generated, candidates: Sequence[_Candidate], record: RoundRecord
    ) -> tuple[list[Scored], list[tuple[_Candidate, Scores]]]:
        """Our own groups to learn from, and those foreign groups whose claims hold, each with its scores."""
        own = generated.rollouts if generated.scores is None else ()
        items = [scoring_item(rollout.prompt.ref, rollout.texts) for rollout in own]
        items += [scoring_item(c.prompt.ref, [x.text for x in c.foreign.group.completions]) for c in candidates]
        scores = self._scorer.score(items)
        checked: list[tuple[_Candidate, Scores]] = []
        for candidate, recomputed in zip(candidates, scores[len(own) :], strict=True):
            claimed = [completion.reward for completion in candidate.foreign.group.completions]
            refusal = check_rewards(claimed, recomputed)
            if refusal is None:
                checked.append((candidate, recomputed))
            else:
                self._refuse(candidate.foreign, refusal, record)
        own_scores = scores[: len(own)] if generated.scores is None else generated.scores
        return list(zip(generated.rollouts, own_scores, strict=True)), checked

    def _refuse(self, foreign: ForeignGroup, refusal: ForeignRefusal, record: RoundRecord) -> None:
        record.foreign_rejected[refusal.reason] += 1
        record.foreign.note(Decided.of_group(refusal.reason, foreign.peer, foreign.group, refusal.detail))
        self._exchange.refuse(foreign, refusal.judgement, refusal.detail)
        log.warning("group of %s not used: %s (%s)", foreign.peer, refusal.reason, refusal.detail)

    def _learn(
        self,
        own: Sequence[Scored],
        checked: Sequence[tuple[_Candidate, Scores]],
        record: RoundRecord,
    ) -> BatchReport:
        """One optimizer step on I own and J foreign groups; tells the swarm which of the latter were of use."""
        objective = self.config.objective
        alike = [s.rewards for _, s in checked] if objective.research.foreign_advantage == "group" else []
        rule = AdvantageRule.of(objective.research.advantage, [*(s.rewards for _, s in own), *alike])
        own_batch = [own_training_group(r, s.rewards, objective, rule) for r, s in own]
        foreign_batch = [self._training_group(candidate, scores, rule) for candidate, scores in checked]
        for (candidate, _), group in zip(checked, foreign_batch, strict=True):
            self._account(candidate.foreign, used=group.informative, record=record)
        record.own_groups_informative = sum(1 for group in own_batch if group.informative)
        learnt = optimizer_steps(
            self._network,
            self._optimizer,
            own_batch + foreign_batch,
            self.config.learner,
            objective,
            self._others,
            temperature=self.config.engine.temperature,
            max_new_tokens=max(task.max_new_tokens for task in self.tasks.values()),
        )
        record.foreign_completions = learnt.foreign_completions
        return learnt

    def _account(self, foreign: ForeignGroup, *, used: bool, record: RoundRecord) -> None:
        """Counts a foreign group whose claims held; its sender hears of it once, however often it is replayed."""
        outcome = "without_gradient"
        if used:
            outcome = "used" if foreign.new else "replayed"
            record.foreign_groups_used += foreign.new
            record.foreign_groups_replayed += not foreign.new
        else:
            record.foreign_rejected[outcome] += 1
        record.foreign.note(Decided.of_group(outcome, foreign.peer, foreign.group))
        if foreign.new:
            verdict = Judgement.USED if used else Judgement.UNUSED
            self._exchange.judge(foreign.peer, foreign.blob, verdict)

    def _training_group(self, candidate: _Candidate, scores: Scores, rule: AdvantageRule) -> TrainingGroup:
        return foreign_training_group(
            candidate.foreign.group,
            tuple(self.policy.tokens.prompt_ids(candidate.prompt.text)),
            scores.rewards,
            peer=candidate.foreign.peer,
            tokens=self.policy.tokens,
            section=self.config.objective,
            rule=rule,
            success=self.state.success.of(candidate.prompt.ref.task),
            context=self._network.context,
        )

    def _share(self, own: Sequence[Scored], record: RoundRecord) -> None:
        if not self._exchange.may_share():
            return
        rewards = [scores.rewards for _, scores in own]
        chosen = worth_sharing(rewards, [r.prompt.ref.task for r, _ in own], self.config.learner.share_groups)
        if chosen:
            groups = [group_of(own[i][0], rewards[i], self.policy.tokens, family=self.policy.family) for i in chosen]
            self._exchange.share(groups)
            record.groups_shared = len(groups)

    def _tell_faults(self, learnt: BatchReport) -> None:
        """Tells each fault once, and again only after it was gone for a round."""
        faults = Counter({(error.reason, str(error)): 1 for error in self._exchange.faults()})
        if learnt.step is not None and not learnt.step.taken:
            faults["gradient", f"the gradient's norm is {learnt.step.gradient_norm}: the step was skipped"] = 1
        for kind, detail in faults:
            if kind not in self._told:
                self._report(
                    Fault(time_seconds=self._clock(), kind=kind, detail=detail, round=self.state.round, fatal=False)
                )
        self._told = {kind for kind, _ in faults}

    def _snapshot_inputs(self) -> tuple[LearnerState, dict[str, object]]:
        return self.state, self._exchange.position()


def _rewards_by_task(own: Sequence[Scored]) -> dict[str, list[float]]:
    by_task: dict[str, list[float]] = {}
    for rollout, scores in own:
        by_task.setdefault(rollout.prompt.ref.task, []).extend(scores.rewards)
    return by_task


def _of_others(by_peer: Mapping[str, float]) -> dict[str, float]:
    return {peer: value for peer, value in by_peer.items() if peer != SELF and math.isfinite(value)}
