"""The swarm as far as heartbeats tell: who trains what, how well, with what. A pure function of status and peers.

    success of a model, or of a task = Σ n·s / Σ n      over its claims (s of n samples), n ≤ MAX_SAMPLES

A claim is not checked, so none counts for more than ``MAX_SAMPLES`` samples; what a node claims is its running mean
over some ten rounds in any case. Heartbeats older than ``STALE_SECONDS`` and banned peers are left out. Whatever
strangers call themselves, no list is longer than its bound; what is left out is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from node.api.types import HeartbeatView, ModelView, NodeStatus, PeersAnswer, PeerView, SwarmAnswer, TaskView
from node.learner.allocation.peer_success import STALE_SECONDS

MAX_SAMPLES = 1000  # of one claim
MODELS = 64
TASKS = 256
NAMES = 8  # of the nodes of one model
KINDS = 32  # of software and phases, each
FAMILIES = 64
OTHERS = "others"


@dataclass(frozen=True, slots=True)
class _Member:
    """One node that tells of itself."""

    beat: HeartbeatView
    ours: bool


def swarm_answer(status: NodeStatus, peers: PeersAnswer) -> SwarmAnswer:
    """As of the last look at the peers."""
    present = [peer.heartbeat for peer in peers.peers if peer.heartbeat is not None and _is_fresh(peer)]
    own = _own_heartbeat(status)
    members = [_Member(own, True)] if own is not None else []
    members += [_Member(beat, False) for beat in present]
    beats = [member.beat for member in members]
    models, models_left_out = _models(members)
    tasks, tasks_left_out = _tasks(beats, own.success_by_task if own is not None else ())
    banned = sum(peer.banned_because is not None for peer in peers.peers)
    return SwarmAnswer(
        nodes=len(members),
        silent=len(peers.peers) - banned - len(present),
        banned=banned,
        connected=sum(peer.connected for peer in peers.peers),
        tokens_per_second=sum(beat.tokens_per_second for beat in beats),
        groups_shared=sum(beat.groups_shared for beat in beats),
        groups_used=sum(beat.groups_used for beat in beats),
        families=_counted((beat.family for beat in beats), FAMILIES),
        models=tuple(models),
        models_left_out=models_left_out,
        tasks=tuple(tasks),
        tasks_left_out=tasks_left_out,
        software=_counted((beat.software for beat in beats), KINDS),
        phases=_counted((beat.phase for beat in beats), KINDS),
    )


def _is_fresh(peer: PeerView) -> bool:
    age_seconds = peer.heartbeat_age_seconds
    return peer.banned_because is None and age_seconds is not None and age_seconds <= STALE_SECONDS


def _own_heartbeat(status: NodeStatus) -> HeartbeatView | None:
    """What this node says of itself; None before its learner has loaded."""
    ready, done = status.ready, status.round
    if ready is None:
        return None
    return HeartbeatView(
        name=status.name,
        software=f"starling {status.version}",
        model=ready.model,
        family=ready.family,
        tokenizer=ready.tokenizer,
        round=done.round if done else ready.round,
        policy_version=done.policy_version if done else 0,
        phase=str(status.state),
        tokens_per_second=done.tokens_per_second if done else 0.0,
        groups_shared=done.groups_shared_total if done else 0,
        groups_used=done.foreign_groups_used_total if done else 0,
        success_by_task=done.success_by_task if done else {},
        samples_by_task=done.samples_by_task if done else {},
    )


def _models(members: Sequence[_Member]) -> tuple[list[ModelView], int]:
    """Ours first, so that strangers cannot crowd it out, then those of most nodes; and how many are left out."""
    by_model: dict[tuple[str, str], list[_Member]] = {}
    for member in members:
        by_model.setdefault((member.beat.model, member.beat.family), []).append(member)
    # Members begin with ours, if it is there.
    ranked = sorted(by_model, key=lambda model: (not by_model[model][0].ours, -len(by_model[model]), model))
    return [_model(*model, by_model[model]) for model in ranked[:MODELS]], max(0, len(ranked) - MODELS)


def _model(model: str, family: str, alike: Sequence[_Member]) -> ModelView:
    beats = [member.beat for member in alike]
    by_task: dict[str, list[tuple[float, int]]] = {}
    for beat in beats:
        for task, success in beat.success_by_task.items():
            by_task.setdefault(task, []).append((success, _samples(beat, task)))
    return ModelView(
        model=model,
        family=family,
        tokenizers=len({beat.tokenizer for beat in beats}),
        nodes=len(beats),
        names=tuple(beat.name for beat in beats[:NAMES]),
        tokens_per_second=sum(beat.tokens_per_second for beat in beats),
        round_most=max(beat.round for beat in beats),
        success=_weighted(claim for claims in by_task.values() for claim in claims),
        success_by_task={
            task: mean for task, claims in sorted(by_task.items())[:TASKS] if (mean := _weighted(claims)) is not None
        },
        ours=any(member.ours for member in alike),
    )


def _tasks(beats: Sequence[HeartbeatView], ours: Container[str]) -> tuple[list[TaskView], int]:
    """Ours first, so that strangers cannot crowd them out, then those of which most nodes tell; and how many are left
    out."""
    by_task: dict[str, list[HeartbeatView]] = {}
    for beat in beats:
        for task, samples in beat.samples_by_task.items():
            if samples:
                by_task.setdefault(task, []).append(beat)
    ranked = sorted(by_task, key=lambda task: (task not in ours, -len(by_task[task]), task))
    return [_task(task, by_task[task]) for task in ranked[:TASKS]], max(0, len(ranked) - TASKS)


def _task(task: str, telling: Sequence[HeartbeatView]) -> TaskView:
    claims = [(beat.success_by_task[task], _samples(beat, task)) for beat in telling]
    best = max(telling, key=lambda beat: beat.success_by_task[task])
    return TaskView(
        task=task,
        nodes=len(telling),
        samples=sum(samples for _, samples in claims),
        success=_weighted(claims) or 0.0,
        success_least=min(success for success, _ in claims),
        success_most=max(success for success, _ in claims),
        best_model=best.model,
        best_name=best.name,
    )


def _samples(beat: HeartbeatView, task: str) -> int:
    return min(beat.samples_by_task.get(task, 0), MAX_SAMPLES)


def _weighted(claims: Iterable[tuple[float, int]]) -> float | None:
    total = weight = 0.0
    for success, samples in claims:
        total, weight = total + success * samples, weight + samples
    return total / weight if weight else None


def _counted(names: Iterable[str], most: int) -> dict[str, int]:
    """The ``most`` most frequent names with their counts, all further ones together under ``OTHERS``."""
    counts = Counter(names)
    kept = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most])
    left = counts.total() - sum(kept.values())
    if left:
        kept[OTHERS] = kept.get(OTHERS, 0) + left
    return kept
