"""The swarm as its heartbeats report it: which node trains which model, how well, with which software. A pure function
of the node's status and its peers.

    success of a model, or of a task = Σ n·s / Σ n      over its claims (s of n samples), n ≤ MAX_SAMPLES

A claim is not checked, so none counts for more than ``MAX_SAMPLES`` samples; a claim is a running mean over about ten
rounds in any case. Heartbeats older than ``STALE_SECONDS`` and banned peers are left out. No list is longer than its
bound, whatever names strangers choose; entries that are left out are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence

from node.api.links import STALE_SECONDS
from node.api.types import HeartbeatView, ModelView, NodeStatus, PeersAnswer, SwarmAnswer, TaskView
from node.version import SOFTWARE

MAX_SAMPLES = 1000  # of one claim
MAX_MODELS = 64
MAX_TASKS = 256
MAX_NAMES = 8  # of the nodes of one model
MAX_SOFTWARE = 32
MAX_PHASES = 32
MAX_FAMILIES = 64
OTHERS = "others"


def swarm_answer(status: NodeStatus, peers: PeersAnswer) -> SwarmAnswer:
    """Returns the summary of this node and of the peers with a fresh heartbeat."""
    present = [peer.heartbeat for peer in peers.peers if peer.heartbeat is not None and peer.is_heard(STALE_SECONDS)]
    own = _own_heartbeat(status)
    beats = [own, *present] if own is not None else present
    models, models_left_out = _models([beat for beat in beats if not beat.is_relay], own)
    tasks, tasks_left_out = _tasks(beats, own.success_by_task if own is not None else ())
    banned = sum(peer.banned_because is not None for peer in peers.peers)
    return SwarmAnswer(
        nodes=len(beats),
        silent=len(peers.peers) - banned - len(present),
        banned=banned,
        connected=sum(peer.connected for peer in peers.peers),
        tokens_per_second=sum(beat.tokens_per_second for beat in beats),
        groups_offered=sum(beat.groups_offered for beat in beats),
        groups_used=sum(beat.groups_used for beat in beats),
        families=_counted((beat.family for beat in beats if not beat.is_relay), MAX_FAMILIES),
        models=tuple(models),
        models_left_out=models_left_out,
        tasks=tuple(tasks),
        tasks_left_out=tasks_left_out,
        software=_counted((beat.software for beat in beats), MAX_SOFTWARE),
        phases=_counted((beat.phase for beat in beats), MAX_PHASES),
    )


def _own_heartbeat(status: NodeStatus) -> HeartbeatView | None:
    """Returns this node's own heartbeat; None before its learner has loaded."""
    ready, done = status.ready, status.round
    if ready is None:
        return None
    return HeartbeatView(
        name=status.name,
        software=SOFTWARE,
        model=status.model,
        family=ready.family,
        tokenizer=ready.tokenizer,
        round=done.round if done else ready.round,
        policy_version=done.policy_version if done else 0,
        phase=str(status.state),
        tokens_per_second=done.tokens_per_second if done else 0.0,
        groups_offered=done.groups_offered_total if done else 0,
        groups_used=done.foreign_groups_used_total if done else 0,
        success_by_task=done.success_by_task if done else {},
        samples_by_task=done.samples_by_task if done else {},
    )


def _models(beats: Sequence[HeartbeatView], own: HeartbeatView | None) -> tuple[list[ModelView], int]:
    """Returns our model first, so that strangers cannot crowd it out, then those of most nodes; and how many models
    are left out."""
    by_model: dict[tuple[str, str], list[HeartbeatView]] = {}
    for beat in beats:
        by_model.setdefault((beat.model, beat.family), []).append(beat)
    ours = (own.model, own.family) if own is not None else None
    ranked = sorted(by_model, key=lambda model: (model != ours, -len(by_model[model]), model))
    shown = [_model(*model, by_model[model], ours=model == ours) for model in ranked[:MAX_MODELS]]
    return shown, len(ranked) - len(shown)


def _model(model: str, family: str, beats: Sequence[HeartbeatView], *, ours: bool) -> ModelView:
    by_task: dict[str, list[tuple[float, int]]] = {}
    for beat in beats:
        for task, success in beat.success_by_task.items():
            by_task.setdefault(task, []).append((success, _samples(beat, task)))
    return ModelView(
        model=model,
        family=family,
        tokenizers=len({beat.tokenizer for beat in beats}),
        nodes=len(beats),
        names=tuple(beat.name for beat in beats[:MAX_NAMES]),
        tokens_per_second=sum(beat.tokens_per_second for beat in beats),
        round_most=max(beat.round for beat in beats),
        success=_weighted(claim for claims in by_task.values() for claim in claims),
        success_by_task={
            task: mean
            for task, claims in sorted(by_task.items())[:MAX_TASKS]
            if (mean := _weighted(claims)) is not None
        },
        ours=ours,
    )


def _tasks(beats: Sequence[HeartbeatView], ours: Container[str]) -> tuple[list[TaskView], int]:
    """Returns our tasks first, so that strangers cannot crowd them out, then those that most nodes report; and how many
    tasks are left out."""
    by_task: dict[str, list[HeartbeatView]] = {}
    for beat in beats:
        for task, samples in beat.samples_by_task.items():
            if samples:
                by_task.setdefault(task, []).append(beat)
    ranked = sorted(by_task, key=lambda task: (task not in ours, -len(by_task[task]), task))
    shown = [_task(task, by_task[task]) for task in ranked[:MAX_TASKS]]
    return shown, len(ranked) - len(shown)


def _task(task: str, beats: Sequence[HeartbeatView]) -> TaskView:
    claims = [(beat.success_by_task[task], _samples(beat, task)) for beat in beats]
    best = max(beats, key=lambda beat: beat.success_by_task[task])
    return TaskView(
        task=task,
        nodes=len(beats),
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


def _counted(names: Iterable[str], max_names: int) -> dict[str, int]:
    """Returns the ``max_names`` most frequent names with their counts, and all other names together under
    ``OTHERS``."""
    counts = Counter(names)
    kept = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:max_names])
    left = counts.total() - sum(kept.values())
    if left:
        kept[OTHERS] = kept.get(OTHERS, 0) + left
    return kept
