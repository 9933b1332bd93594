"""What is reported of a round: all of it to the supervisor, a heartbeat to the swarm."""

from __future__ import annotations

import math

import torch

from node.configuration import Config
from node.events import Phases, RoundDone
from node.learner.persistence import LearnerState
from node.learner.round_record import RoundRecord, Stopwatch
from node.learner.step import BatchReport
from node.policy.policy import Policy
from node.version import SOFTWARE
from protocol import limits
from protocol.messages import Heartbeat


def round_done(
    now_seconds: float,
    watch: Stopwatch,
    record: RoundRecord,
    learnt: BatchReport,
    state: LearnerState,
    steps_skipped: int,
) -> RoundDone:
    """Returns the event of a round that is done; ``state`` counts it already."""
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
        completions_by_task=record.completions_by_task,
        success_by_task={name: each.measured for name, each in sorted(state.success.classes.items())},
        own_groups=record.own_groups,
        own_groups_informative=record.own_groups_informative,
        own_groups_dropped=record.own_groups_dropped,
        own_groups_resumed=record.own_groups_resumed,
        own_groups_unfinished=record.own_groups_unfinished,
        staleness_mean=record.staleness_mean,
        staleness_max=record.staleness_max,
        foreign_groups_used=record.foreign.used,
        foreign_groups_replayed=record.foreign.replayed,
        foreign_rejected=record.foreign.not_used(),
        groups_shared=record.groups_shared,
        groups_shared_total=state.groups_shared,
        foreign_groups_used_total=state.foreign_groups_used,
        tokens_generated=record.tokens_generated,
        tokens_generated_total=state.tokens_generated,
        tokens_trained=objective.tokens,
        tokens_per_second=record.tokens_generated / seconds if seconds > 0 else 0.0,
        bytes_fetched=record.bytes_fetched,
        bytes_fetched_total=state.bytes_fetched,
        foreign_completions=record.foreign_completions,
        foreign_completions_total=state.foreign_completions,
        bytes_per_foreign_completion=_ratio(state.bytes_fetched, state.foreign_completions),
        scoring_failures=record.scoring_failures,
        loss=_finite(objective.loss) if stepped else None,
        gradient_norm=_finite(learnt.step.gradient_norm) if learnt.step is not None else None,
        steps_skipped_total=steps_skipped,
        effective_sample_share=objective.effective_sample_share(),
        effective_sequence_share=objective.effective_sequence_share(),
        clip_share=objective.share_of_spans(objective.capped_spans),
        ratio_clip_share=objective.clipped_token_share(),
        floor_share=objective.share_of_spans(objective.floored_spans),
        filter_share=objective.filter_share(),
        text_share=objective.text_share(),
        foreign_unusable=learnt.foreign_unusable,
        kl=_finite(objective.mean_kl()),
        multi_token_span_share=learnt.multi_token_span_share(),
        entropy=objective.mean_entropy(),
        divergence_by_peer={peer: value for peer, value in divergence.items() if math.isfinite(value)},
        alone_because=record.alone_because,
        foreign_fetched=record.foreign_fetched,
        foreign_waiting=record.foreign_waiting,
        samples_by_task={name: each.samples for name, each in sorted(state.success.classes.items())},
        trained_tokens_per_second=objective.tokens / seconds if seconds > 0 else None,
        device_memory_bytes=_device_memory_bytes(),
        gradient_mass_by_task=record.gradient_mass_by_task,
    )


def heartbeat(config: Config, policy: Policy, state: LearnerState, phase: str, tokens_per_second: float) -> Heartbeat:
    """Returns what the node announces about itself."""
    return Heartbeat(
        name=config.name[: limits.NAME_BYTES],
        software=SOFTWARE,
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


def _device_memory_bytes() -> int | None:
    """Returns the most that torch has reserved on its CUDA device since the process started; None on a CPU."""
    return torch.cuda.max_memory_reserved() or None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
