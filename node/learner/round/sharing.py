"""Which own groups of a round others get."""

from __future__ import annotations

from node.learner.foreign.intake import RolloutIntake
from node.learner.generation.own_rollouts import can_be_shared, group_of, worth_sharing
from node.learner.round.scoring import ScoredRound
from node.policy.policy import Policy


def share(scored: ScoredRound, intake: RolloutIntake, policy: Policy, most: int) -> int:
    """Announces at most ``most`` groups that may help others; returns how many."""
    if not intake.calls.may_share():
        return 0
    own = [(rollout, scores.rewards) for rollout, scores in scored.everything if can_be_shared(rollout, policy.tokens)]
    chosen = worth_sharing([rewards for _, rewards in own], [rollout.prompt.ref.task for rollout, _ in own], most)
    if chosen:
        intake.share([group_of(*own[i], policy.tokens, family=policy.family) for i in chosen])
    return len(chosen)
