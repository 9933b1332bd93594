"""Own and foreign completions of a round, scored together: rewards, which claims of peers hold, and which own groups
others get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from node.events import TurnsUsed
from node.learner.foreign.candidates import ForeignCandidate, ForeignCandidates, VerifiedGroup
from node.learner.foreign.conversation_checks import Replays
from node.learner.generation.generation import Generated
from node.learner.generation.hint import Hint
from node.learner.generation.own_rollouts import (
    RewardScorer,
    Rollout,
    can_be_shared,
    group_of,
    scoring_item,
    worth_sharing,
)
from node.learner.round.record import RoundRecord
from node.learner.steps.early_learning import EarlyLearning
from node.policy.policy import Policy
from node.tasks.answers import RIGHT
from node.tasks.scorer import Scores

ScoredRollout = tuple[Rollout, Scores]


@dataclass(frozen=True, slots=True, eq=False)
class ScoredRound:
    """A round's groups with their rewards."""

    own: tuple[ScoredRollout, ...]  # to learn from
    everything: tuple[ScoredRollout, ...]  # own groups, those that were dropped from the batch included
    verified: tuple[VerifiedGroup, ...]  # those of peers whose every claim holds
    hinted: tuple[tuple[Rollout, Scores, Hint], ...] = ()  # to learn from; they say nothing of own success

    def rewards_by_task(self) -> dict[str, list[float]]:
        """Returns the rewards of all own completions."""
        by_task: dict[str, list[float]] = {}
        for rollout, scores in self.everything:
            by_task.setdefault(rollout.prompt.ref.task, []).extend(scores.rewards)
        return by_task

    def turns_by_task(self) -> dict[str, tuple[TurnsUsed, ...]]:
        """Returns how many turns own conversations took, and how many of each number were won."""
        won: dict[str, dict[int, list[bool]]] = {}
        for rollout, scores in self.everything:
            for reward, played in zip(scores.rewards, scores.played, strict=False):
                if played is not None:
                    of_task = won.setdefault(rollout.prompt.ref.task, {})
                    of_task.setdefault(len(played.observations), []).append(reward >= RIGHT)
        return {
            task: tuple(TurnsUsed(turns, len(each), sum(each)) for turns, each in sorted(of_task.items()))
            for task, of_task in sorted(won.items())
        }

    def without_own(self) -> ScoredRound:
        """Returns the round where what the weights sampled teaches nothing, since they are taken back."""
        return replace(self, own=(), everything=(), hinted=())


class RoundScoring:
    """Scores the rounds of one learner. Only the learner's thread may call it."""

    def __init__(
        self,
        scorer: RewardScorer,
        foreign: ForeignCandidates,
        early: EarlyLearning,
        replays: Replays,
        success: Callable[[str], float],
    ) -> None:
        """``success`` is V_θ of a task."""
        self._scorer, self._foreign, self._early, self._replays = scorer, foreign, early, replays
        self._success = success

    def score(self, generated: Generated, candidates: Sequence[ForeignCandidate], record: RoundRecord) -> ScoredRound:
        """Scores what is not scored yet, and replays conversations of peers. A claim of a peer that does not hold costs
        it reputation."""
        own = self._early.ordered(generated.rollouts)
        known = dict(self._early.scores)
        if generated.scores is not None:
            known |= zip(generated.rollouts, generated.scores, strict=True)
        known |= {rollout: rollout.conversed for rollout in own if rollout.conversed is not None}
        missing = [rollout for rollout in own if rollout not in known]
        hinted = [rollout for rollout, _ in generated.hinted]
        items = [scoring_item(rollout.prompt.ref, rollout.texts) for rollout in (*missing, *hinted)]
        conversations = [candidate for candidate in candidates if candidate.group.converses]
        answers = [candidate for candidate in candidates if not candidate.group.converses]
        scores = self._scorer.score([*items, *(candidate.scoring_item() for candidate in answers)])
        replayed = self._replays.scores(conversations, self._success)
        theirs = [*answers, *conversations]
        verified = self._foreign.verified(theirs, [*scores[len(items) :], *replayed], record.foreign)
        record.environments_at_fault = tuple(self._foreign.agreement.own_faults())
        known |= zip(missing, scores[: len(missing)], strict=True)
        scored = tuple((rollout, known[rollout]) for rollout in own)
        of_hinted = scores[len(missing) : len(items)]
        with_hints = tuple((r, of, hint) for (r, hint), of in zip(generated.hinted, of_hinted, strict=True))
        found = ScoredRound(scored, (*scored, *generated.dropped), tuple(verified), with_hints)
        record.rewards(found.rewards_by_task(), [scores for _, scores in found.everything])
        record.turns_by_task = found.turns_by_task()
        return found


def share(scored: ScoredRound, foreign: ForeignCandidates, policy: Policy, most: int) -> int:
    """Announces at most ``most`` groups that may help others; returns how many."""
    if not foreign.intake.calls.may_share():
        return 0
    own = [
        (rollout, scores.rewards)
        for rollout, scores in scored.everything
        if foreign.may_share(rollout.prompt.ref.task) and can_be_shared(rollout, policy.tokens)
    ]
    chosen = worth_sharing([rewards for _, rewards in own], [rollout.prompt.ref.task for rollout, _ in own], most)
    if chosen:
        foreign.intake.share([group_of(*own[i], policy.tokens, family=policy.family) for i in chosen])
    return len(chosen)
