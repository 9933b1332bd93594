"""The plan of one run, its result, and the file that keeps the result.

A run is a pure function of its ``RunPlan``. Its ``key`` hashes that together with each node's resolved configuration,
so that a changed setting or default makes another run and never continues an old one; ``HARNESS_VERSION`` is to be
raised when the code of a run changes what it measures. A result is written whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, TypeVar

import msgspec
from msgspec import Struct

from node.configuration import Config

HARNESS_VERSION: Final = 1
COMPRESSED_VERSION: Final = 2  # the same, for runs with averaging in few bytes alone

# Sections of the configuration that shape a run; a new key in another section leaves earlier results valid.
SHAPING: Final = {"tasks", "engine", "learner", "objective"}


class ExperimentResult(Protocol):
    """What ``runs.py`` and the reports need of the result of any run."""

    @property
    def seed(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def cpu_seconds(self) -> float: ...


R = TypeVar("R", bound=ExperimentResult)
R_co = TypeVar("R_co", bound=ExperimentResult, covariant=True)


class ExperimentPlan(Protocol[R_co]):
    """What ``runs.py`` needs of a run; an experiment with another kind of run has its own plan class."""

    harness: ClassVar[str]  # the module whose ``execute(plan, models, is_orphaned)`` runs it

    @property
    def condition(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def key(self) -> str: ...
    @property
    def result_type(self) -> type[R_co]: ...


class NodePlan(Struct, frozen=True):
    """One node: its model, and the settings that differ from the defaults."""

    name: str
    model: str  # "builtin:…", or the key of a model made by ``models.py``
    settings: dict[str, Any]  # {"learner": {"own_groups": 8}, …}; weights are averaged only with a section "averaging"

    def config(self, seed: int) -> Config:
        return Config.model_validate({"name": self.name, "seed": seed, **self.settings})


class RunPlan(Struct, frozen=True, omit_defaults=True):  # so that a field added with a default changes no key
    """One condition with one seed."""

    experiment: str
    condition: str
    seed: int
    rounds: int
    nodes: tuple[NodePlan, ...]
    tasks: tuple[str, ...]
    measure_at: tuple[int, ...]  # after so many rounds; 0 is before the first
    measure_prompts: int  # held-out prompts a task
    measure_samples: int  # completions of each at temperature 1; 0 measures greedily alone
    parted_after: int | None = None  # rounds, from which on the nodes hear nothing of each other; None: never
    ablations: tuple[str, ...] = ()  # parts of the learner that are replaced: ``learner_ablations``
    strangers: bool = False  # nodes have to earn their influence on each other, as at a node's defaults
    measure_trained: int = 0  # training prompts a task, besides

    harness: ClassVar[str] = "scripts.experiments.harness.nodes_run"

    @property
    def result_type(self) -> type[RunResult]:
        return RunResult

    @property
    def key(self) -> str:
        shape = {"version": HARNESS_VERSION, "plan": msgspec.to_builtins(self)}
        shape["configs"] = [
            node.config(self.seed).model_dump(mode="json", include=SHAPING | ({"averaging"} & node.settings.keys()))
            for node in self.nodes
        ]
        if any(node.settings.get("averaging", {}).get("encoding") == "sparse-2bit" for node in self.nodes):
            shape["compressed"] = COMPRESSED_VERSION
        canonical = json.dumps(shape, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


class Measurement(Struct, frozen=True):
    """Success by task on held-out prompts after ``round`` rounds."""

    round: int
    greedy: dict[str, float]
    sampled: dict[str, float]  # empty where it was not requested
    trained: dict[str, float] = {}  # sampled, on prompts whose questions are trained on; empty likewise


class NodeHistory(Struct, frozen=True):
    """One node's results; lists have one entry per round."""

    name: str
    model: str
    reward: list[float]  # mean over own completions, sampled
    tokens: list[int]  # generated
    effective_sample_share: list[float | None]
    entropy: list[float | None]
    foreign_groups_used: int  # for the first time
    foreign_groups_replayed: int
    foreign_completions_trained: int
    bytes_fetched: int
    bytes_announced: int  # blobs of groups that others announced
    rejected: dict[str, int]  # foreign groups not used, by reason
    measurements: list[Measurement]
    outer_steps: int = 0
    distances: list[float] = []  # from the partner at each outer step, ‖θ_i - θ_j‖ / ‖θ_i‖
    averaging_bytes: int = 0  # received
    taken_back: int = 0  # outer steps after which own success fell

    def measured(self, round_number: int) -> Measurement:
        return next(each for each in self.measurements if each.round == round_number)


class RunResult(Struct, frozen=True):
    key: str
    condition: str
    seed: int
    seconds: float
    cpu_seconds: float  # of the run's process alone, whatever else the machine did
    nodes: list[NodeHistory]
    plan: RunPlan
    apart: list[float] = []  # at each measurement, between nodes of one family; empty where there are not two
    cpu_at: list[float] = []  # processor seconds of the rounds until each measurement, measuring left out


def result_path(folder: Path, plan: ExperimentPlan[ExperimentResult]) -> Path:
    """Returns the file of a run's result: a readable name with the plan's key."""
    return folder / "runs" / f"{plan.condition.replace('/', '-').replace(' ', '_')}.seed{plan.seed}.{plan.key}.json"


def load_result(folder: Path, plan: ExperimentPlan[R]) -> R | None:
    """Returns the result of ``plan`` if there is one, else None. Raises ``msgspec.DecodeError`` for an invalid file."""
    try:
        content = result_path(folder, plan).read_bytes()
    except FileNotFoundError:
        return None
    return msgspec.json.decode(content, type=plan.result_type)


def save_result(folder: Path, plan: ExperimentPlan[R], result: R) -> None:
    path = result_path(folder, plan)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}.part")
    unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=0))
    unfinished.rename(path)
