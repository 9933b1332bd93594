"""The swarm as fresh heartbeats describe it."""

from __future__ import annotations

from msgspec import Struct


class ModelView(Struct, frozen=True):
    """The nodes that train one model of one family."""

    model: str
    family: str  # hex
    tokenizers: int  # how many different tokenizers the nodes have
    nodes: int
    names: tuple[str, ...]  # of some of the nodes
    tokens_per_second: float  # sum over the nodes
    round_most: int
    success: float | None  # over all tasks, weighted by samples
    success_by_task: dict[str, float]  # weighted by samples
    ours: bool


class TaskView(Struct, frozen=True):
    """One task over all nodes that report it."""

    task: str
    nodes: int
    samples: int  # a claim counts for at most ``swarm_summary.MAX_SAMPLES``
    success: float  # weighted by samples
    success_least: float
    success_most: float
    best_model: str  # of the node with the greatest success
    best_name: str


class SwarmAnswer(Struct, frozen=True):
    """Answer of GET /api/v1/swarm: what fresh heartbeats report, this node's included. These are unchecked claims."""

    nodes: int  # with a fresh heartbeat, this node included
    silent: int  # known peers whose heartbeat is old or never came
    banned: int  # peers left out because they are banned
    connected: int  # to this node
    tokens_per_second: float  # sum over the nodes
    groups_shared: int
    groups_used: int
    families: dict[str, int]  # nodes by family, in hex
    models: tuple[ModelView, ...]  # ours, then those of most nodes
    models_left_out: int  # beyond the bound of the list
    tasks: tuple[TaskView, ...]  # ours, then those that most nodes report
    tasks_left_out: int
    software: dict[str, int]  # nodes by name and version; those beyond the bound under "others"
    phases: dict[str, int]
