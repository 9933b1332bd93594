"""What is told of a round: to the supervisor in full, to the swarm in a heartbeat."""

from __future__ import annotations

import math
from importlib import metadata

from node.config import Config
from node.events import Phases, RoundDone
from node.learner.persistence import LearnerState
from node.learner.round_record import RoundRecord, Stopwatch
from node.learner.step import LearnReport
from node.policy import Policy
from protocol import limits
from protocol.messages import Heartbeat


def software() -> str:
    """Name and version of this program; without a version where it runs from a source tree that is not installed."""
    try:
        return f"starling {metadata.version('starling-swarm')}"
    except metadata.PackageNotFoundError:
        return "starling"


def round_done(
    now_seconds: float,
    watch: Stopwatch,
    record: RoundRecord,
    learnt: LearnReport,
    state: LearnerState,
    steps_skipped: int,
) -> RoundDone:
    objective, seconds = learnt.objective, watch.total()
    stepped = learnt.step is not None
    divergence = objective.divergence_by_peer()
    return RoundDone(
        time_seconds=now_seconds,
        round=state.round,
        policy_version=state.policy_version,
        seconds=seconds,
        phases=Phases(**watch.seconds),
        reward=record.reward,
        reward_by_task=record.reward_by_task,
        success_by_task={name: each.success for name, each in sorted(state.success.classes.items())},
        own_groups=record.own_groups,
        own_groups_informative=record.own_groups_informative,
        foreign_groups_used=record.foreign_groups_used,
        foreign_groups_replayed=record.foreign_groups_replayed,
        foreign_rejected={reason: n for reason, n in sorted(record.foreign_rejected.items()) if n},
        groups_shared=record.groups_shared,
        groups_shared_total=state.groups_shared,
        foreign_groups_used_total=state.foreign_groups_used,
        tokens_generated=record.tokens_generated,
        tokens_generated_total=state.tokens_generated,
        tokens_trained=objective.tokens,
        tokens_per_second=record.tokens_generated / seconds if seconds > 0 else 0.0,
        bytes_fetched=record.bytes_fetched,
        scoring_failures=record.scoring_failures,
        loss=_finite(objective.loss) if stepped else None,
        gradient_norm=_finite(learnt.step.gradient_norm) if learnt.step is not None else None,
        steps_skipped_total=steps_skipped,
        effective_sample_share=objective.effective_sample_share(),
        clip_share=objective.share_of_spans(objective.capped_spans),
        floor_share=objective.share_of_spans(objective.floored_spans),
        filter_share=objective.filter_share(),
        multi_token_span_share=learnt.multi_token_span_share(),
        entropy=objective.mean_entropy(),
        divergence_by_peer={peer: value for peer, value in divergence.items() if math.isfinite(value)},
        alone_because=record.alone_because,
    )


def heartbeat(config: Config, policy: Policy, state: LearnerState, phase: str, tokens_per_second: float) -> Heartbeat:
    return Heartbeat(
        name=config.name[: limits.NAME_BYTES],
        software=software(),
        model=policy.label,
        family=policy.family,
        tokenizer=policy.tokens.fingerprint,
        round=state.round,
        policy_version=state.policy_version,
        phase=phase,
        tokens_per_second=tokens_per_second,
        groups_shared=state.groups_shared,
        groups_used=state.foreign_groups_used,
        tasks=state.success.announced(),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
