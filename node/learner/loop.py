"""The round, top to bottom. Each node counts its own; nobody waits for anybody.

    allocate → generate → (foreign groups have meanwhile been chosen and fetched) → score own and foreign together
    → share what may help others → one optimizer step on own and foreign groups → new weights to the engine
    → checkpoint in the background → report

``Learner.round`` is that, in this order; what each step does is in the module that it calls. With no peers nothing
foreign arrives, and the round trains alone and says why. A round is a pure function of the state before it, the
configuration and what arrives: every random draw is seeded by (node, round), so one repeated after a restart is the
same round.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from node.config import Config
from node.engines.engine import Engine, Sampling
from node.events import Event, Fault, RoundDone, Stopped
from node.learner.allocator import Allocation, allocate
from node.learner.exchange import Exchange, ForeignGroup, Incoming
from node.learner.forward import Network
from node.learner.optimizer import MasterAdamW
from node.learner.persistence import LearnerState, Persistence
from node.learner.rollouts import Rollout, generate, group_of, scoring_item, worth_sharing
from node.learner.round_record import RoundRecord, Stopwatch
from node.learner.round_report import heartbeat, round_done
from node.learner.step import LearnReport, learn
from node.learner.training_batch import TrainingGroup, foreign_training_group, own_training_group
from node.learner.verification import Refusal, check_rewards, regenerated_prompt
from node.policy import Policy
from node.tasks.scorer import Scores
from node.tasks.task import Prompt, Task
from protocol.errors import ProtocolError
from protocol.messages import PromptRef
from swarm.api import Judgement

LEAST_PATIENCE_SECONDS = 0.25

_log = logging.getLogger(__name__)


class RewardScorer(Protocol):
    """What is used of ``node.tasks.scorer.Scorer``."""

    def score(self, items: Sequence[tuple[PromptRef, Sequence[str]]]) -> list[Scores]: ...


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
        exchange: Exchange,
        optimizer: MasterAdamW,
        state: LearnerState,
        *,
        report: Callable[[Event], None],
        clock: Callable[[], float],
        persistence: Persistence | None = None,
    ) -> None:
        """``clock`` gives Unix time. ``state`` may come from a checkpoint whose tensors are loaded already."""
        self.config, self.policy, self.tasks, self.state = config, policy, tasks, state
        self._engine, self._scorer, self._exchange, self._optimizer = engine, scorer, exchange, optimizer
        self._report, self._clock, self._persistence = report, clock, persistence
        self._network = Network.of(policy.model)
        self._seed = f"{config.seed}/{config.name}"  # the name sets nodes apart that share a configuration
        self._told: set[str] = set()  # faults told already and not gone since
        engine.load_weights(state.policy_version, policy.trainable())

    def run(self, should_stop: Callable[[], str | None]) -> Stopped:
        """Rounds until the configuration's limit, counted from here, is reached or ``should_stop`` gives a reason."""
        first_round, first_token = self.state.round, self.state.tokens_generated
        self._exchange.beat(heartbeat(self.config, self.policy, self.state, "starting", 0.0))
        while True:
            because = should_stop()
            if self.config.rounds and self.state.round - first_round >= self.config.rounds:
                because = "rounds"
            elif self.config.tokens and self.state.tokens_generated - first_token >= self.config.tokens:
                because = "tokens"
            if because is not None:
                break
            self.round()
        path = self._persistence.save_last(self._snapshot_inputs()) if self._persistence else None
        return Stopped(
            time_seconds=self._clock(),
            round=self.state.round,
            because=because,
            tokens_generated_total=self.state.tokens_generated,
            checkpoint=path,
        )

    def round(self) -> RoundDone:
        """One round; returns what it also reports."""
        watch, record = Stopwatch(), RoundRecord()

        # Which prompts. The swarm is asked for groups of others meanwhile.
        self._exchange.begin(self.state.success.copy().of, self._draws("choose"))
        allocations = self._allocate()
        watch.lap("allocate")

        own = self._generate(allocations)
        record.own_groups, record.tokens_generated = len(own), sum(rollout.tokens for rollout in own)
        generate_seconds = watch.lap("generate")

        # Foreign groups that have arrived; one waits for them no longer than generating took.
        incoming = self._exchange.collect(max(LEAST_PATIENCE_SECONDS, generate_seconds))
        record.incoming(incoming)
        candidates = self._regenerate(incoming, record)
        watch.lap("collect")

        # Own and foreign completions are scored together; a claim that does not hold costs its sender.
        own_scores, checked = self._score(own, candidates, record)
        rewards_by_task = _rewards_by_task(own, own_scores)
        record.rewards(rewards_by_task, own_scores)
        watch.lap("score")

        learnt = self._learn(own, own_scores, checked, record)
        watch.lap("learn")

        self._share(own, own_scores, record)
        self.state.advance(record, rewards_by_task)
        if learnt.step is not None and learnt.step.taken:
            self.state.policy_version += 1
            self._engine.load_weights(self.state.policy_version, self.policy.trainable())
        watch.lap("publish")

        done = round_done(self._clock(), watch, record, learnt, self.state, self._optimizer.steps_skipped)
        self._report(done)
        self._exchange.beat(heartbeat(self.config, self.policy, self.state, "learning", done.tokens_per_second))
        self._tell_faults(learnt)
        if self._persistence is not None:
            self._persistence.after_round(self.state.round, self._snapshot_inputs)
        return done

    def _draws(self, purpose: str) -> random.Random:
        """This round's random numbers for one purpose."""
        return random.Random(f"starling/{purpose}/{self._seed}/{self.state.round}")

    def _allocate(self) -> list[Allocation]:
        section = self.config.learner
        tasks = list(self.tasks)
        return allocate(self.state.round, self._seed, tasks, groups=section.own_groups, completions=section.completions)

    def _generate(self, allocations: Sequence[Allocation]) -> list[Rollout]:
        sampling = Sampling(self.config.engine.temperature, self._draws("sample").getrandbits(63))
        context = self._network.context
        return generate(allocations, self.tasks, self.policy.tokens, self._engine, sampling, context=context)

    def _regenerate(self, incoming: Incoming, record: RoundRecord) -> list[_Candidate]:
        candidates: list[_Candidate] = []
        for foreign in incoming.groups:
            try:
                prompt = regenerated_prompt(foreign.group, self.tasks, self.policy.tokens)
            except ProtocolError as error:
                self._refuse(foreign, Refusal(Judgement.MALFORMED, error.reason, str(error)), record)
                continue
            candidates.append(_Candidate(foreign, prompt))
        return candidates

    def _score(
        self, own: Sequence[Rollout], candidates: Sequence[_Candidate], record: RoundRecord
    ) -> tuple[list[Scores], list[tuple[_Candidate, Scores]]]:
        """Scores of our own groups, and those foreign groups whose claims hold, with theirs."""
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
        return scores[: len(own)], checked

    def _refuse(self, foreign: ForeignGroup, refusal: Refusal, record: RoundRecord) -> None:
        record.foreign_rejected[refusal.reason] += 1
        self._exchange.refuse(foreign, refusal.judgement, refusal.detail)
        _log.warning("group of %s not used: %s (%s)", foreign.peer, refusal.reason, refusal.detail)

    def _learn(
        self,
        own: Sequence[Rollout],
        own_scores: Sequence[Scores],
        checked: Sequence[tuple[_Candidate, Scores]],
        record: RoundRecord,
    ) -> LearnReport:
        """One optimizer step on I own and J foreign groups; tells the swarm which of the latter were of use."""
        own_batch = [own_training_group(r, s.rewards) for r, s in zip(own, own_scores, strict=True)]
        foreign_batch = [self._training_group(candidate, scores) for candidate, scores in checked]
        for (candidate, _), group in zip(checked, foreign_batch, strict=True):
            self._account(candidate.foreign, used=bool(group.completions), record=record)
        record.own_groups_informative = sum(1 for group in own_batch if group.completions)
        temperature = self.config.engine.temperature
        batch = own_batch + foreign_batch
        return learn(self._network, self._optimizer, batch, self.config.learner, temperature=temperature)

    def _account(self, foreign: ForeignGroup, *, used: bool, record: RoundRecord) -> None:
        """Counts a foreign group whose claims held; its sender hears of it once, however often it is replayed."""
        if used and foreign.new:
            record.foreign_groups_used += 1
        elif used:
            record.foreign_groups_replayed += 1
        else:
            record.foreign_rejected["without_gradient"] += 1
        if foreign.new:
            verdict = Judgement.USED if used else Judgement.UNUSED
            self._exchange.judge(foreign.peer, foreign.blob, verdict)

    def _training_group(self, candidate: _Candidate, scores: Scores) -> TrainingGroup:
        return foreign_training_group(
            candidate.foreign.group,
            tuple(self.policy.tokens.prompt_ids(candidate.prompt.text)),
            scores.rewards,
            peer=candidate.foreign.peer,
            tokens=self.policy.tokens,
            advantage=self.config.learner.foreign_advantage,
            success=self.state.success.of(candidate.prompt.ref.task),
            context=self._network.context,
        )

    def _share(self, own: Sequence[Rollout], scores: Sequence[Scores], record: RoundRecord) -> None:
        if not self._exchange.may_share():
            return
        rewards = [each.rewards for each in scores]
        chosen = worth_sharing(rewards, [r.prompt.ref.task for r in own], self.config.learner.share_groups)
        if chosen:
            family, version = self.policy.family, self._engine.version
            groups = [
                group_of(own[i], rewards[i], self.policy.tokens, family=family, policy_version=version) for i in chosen
            ]
            self._exchange.share(groups)
            record.groups_shared = len(groups)

    def _tell_faults(self, learnt: LearnReport) -> None:
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


def _rewards_by_task(own: Sequence[Rollout], scores: Sequence[Scores]) -> dict[str, list[float]]:
    by_task: dict[str, list[float]] = {}
    for rollout, each in zip(own, scores, strict=True):
        by_task.setdefault(rollout.prompt.ref.task, []).extend(each.rewards)
    return by_task
