"""The answer to ``status``, put together from what each part of the supervisor knows."""

from __future__ import annotations

import os
from collections.abc import Sequence

from node.api.answers import waiting_for
from node.api.join import join_of
from node.api.losses import MAX_LOSSES
from node.api.run_changes import RunChanges
from node.api.types import NodeState, NodeStatus, Paused
from node.configuration import Config
from node.events import (
    Averaged,
    CheckpointSaved,
    CheckpointsDamaged,
    DonorsShared,
    EngineChanged,
    Evaluated,
    Fault,
    LearnerReady,
    Loading,
    NotSaved,
    PhaseBegan,
    RoundDone,
    Usage,
)
from node.home import Home
from node.policy.model_name import model_name
from node.supervision.kept_child import KeptChild
from node.supervision.watching.learner_news import LearnerNews
from node.supervision.watching.swarm_watch import SwarmWatch
from node.version import VERSION


def node_state(learner: KeptChild, *, stopping: bool, paused: bool) -> NodeState:
    """Returns what the node does, by the state of its learner."""
    if stopping:
        return NodeState.STOPPING
    if paused:
        return NodeState.PAUSED
    if learner.ready:
        return NodeState.TRAINING
    return NodeState.RECOVERING if learner.ends else NodeState.STARTING


def node_status(
    home: Home,
    config: Config,
    peer: str,
    *,
    state: NodeState,
    learner: KeptChild,
    swarm: KeptChild,
    news: LearnerNews,
    watch: SwarmWatch,
    changes: RunChanges,
    usage: Usage | None,
    notes: Sequence[str],
    page: str | None,
    paused: Paused | None,
    pausing: str,
    uptime_seconds: float,
    now_seconds: float,
) -> NodeStatus:
    """``peer`` is this node's id. ``pausing`` says what a node that pauses does now, and is empty while it trains.
    ``now_seconds`` is Unix time."""
    loading, ready, done = news.newest(Loading), news.newest(LearnerReady), news.newest(RoundDone)
    return NodeStatus(
        version=VERSION,
        pid=os.getpid(),
        home=str(home.path),
        name=config.name,
        peer=peer,
        model=ready.model_name if ready is not None else model_name(config.policy.model),
        state=state,
        uptime_seconds=uptime_seconds,
        swarm_process=swarm.status(),
        learner_process=learner.status(),
        swarm=watch.status,
        loading=loading,
        ready=ready,
        round=done,
        checkpoint=news.newest(CheckpointSaved),
        evaluated=news.newest(Evaluated),
        not_saved=news.newest(NotSaved),
        damaged=news.newest(CheckpointsDamaged),
        clock=watch.clock,
        engine=news.newest(EngineChanged),
        donors=news.newest(DonorsShared),
        fault=news.newest(Fault),
        notes=tuple(notes),
        page=page,
        offered=news.newest(Averaged),
        averaged=news.averaged,
        usage=usage,
        gained=changes.gains().sentence,
        losses=changes.losses[:MAX_LOSSES],
        join=join_of(watch.status) if watch.status is not None else None,
        waiting_for=pausing or waiting_for(state, loading, done, news.newest(PhaseBegan), now_seconds=now_seconds),
        paused=paused,
    )
