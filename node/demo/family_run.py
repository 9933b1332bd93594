"""The whole demonstration of a family: nodes of one model learn together, averaging weights, then alone.

The distance of replicas is the mean of ‖θ_i − θ_j‖ / ‖θ_i‖ over all ordered pairs of newest checkpoints, without torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from node.checkpoints.checkpoint_files import TENSORS, rounds
from node.demo.family import FamilyReport, NodeResult, make_family_report, moments_of
from node.demo.member import DemoError
from node.demo.run import DemoSettings, Display, homes_of, learn_both_ways, run_in_temporary_directory, this_machine
from node.home import Home
from node.policy.safetensors_header import read_header
from node.version import VERSION
from protocol.weights.dense_weights import widened

EVERY_ROUNDS = 5  # between two outer steps: there are few rounds in a few minutes

Weights = Mapping[str, NDArray[np.floating[Any]]]

_PREFIX = "weights."
_READERS: Mapping[str, Callable[[NDArray[np.uint8]], NDArray[np.floating[Any]]]] = {
    "F32": lambda raw: raw.view("<f4"),
    "F16": lambda raw: raw.view("<f2"),
    "BF16": lambda raw: widened(raw.view("<u2")),
}


def demonstrate_family(settings: DemoSettings, display: Display) -> FamilyReport:
    """Runs the demonstration. ``settings.models`` names one model, once for each node. Raises ``DemoError`` where a
    node fails."""
    flags = ("--set", f"averaging.every_rounds={EVERY_ROUNDS}", *settings.flags)
    return run_in_temporary_directory(lambda root: _demonstrate(replace(settings, flags=flags), display, root))


async def _demonstrate(settings: DemoSettings, display: Display, root: Path) -> FamilyReport:
    ran = await learn_both_ways(settings, display, root)

    async def distance(stage: str) -> float:
        return await asyncio.to_thread(mean_distance, homes_of(root, stage, len(settings.models)))

    nodes = tuple(
        NodeResult(
            label=label,
            alone=ran.after_alone[index],
            together=ran.after_together[index],
            effort_alone=ran.alone[index].effort(),
            effort_together=ran.together[index].effort(),
            outer_steps=len(ran.together[index].averagings),
            weight_bytes=sum(event.received_bytes for event in ran.together[index].averagings),
        )
        for index, label in enumerate(settings.labels())
    )
    return make_family_report(
        ran.before[0],
        nodes,
        moments_of(ran.together),
        model=settings.models[0],
        distances=(await distance("alone"), await distance("together")),
        minutes=settings.minutes,
        seed=settings.seed,
        machine=this_machine(),
        version=VERSION,
    )


def mean_distance(homes: Sequence[Path]) -> float:
    """Returns the distance of the nodes in ``homes``. Raises ``DemoError`` where a node left no checkpoint."""
    replicas = [_newest_weights(home) for home in homes]
    return fmean(_distance(one, other) for one, other in permutations(replicas, 2))


def _distance(ours: Weights, theirs: Weights) -> float:
    apart = sum(float(np.square(ours[name] - theirs[name], dtype=np.float64).sum()) for name in ours)
    length = sum(float(np.square(values, dtype=np.float64).sum()) for values in ours.values())
    return float((apart / length) ** 0.5)


def _newest_weights(home: Path) -> Weights:
    checkpoints = rounds(Home(home).checkpoints)
    if not checkpoints:
        raise DemoError(f"the node in {home} left no checkpoint")
    path = checkpoints[-1] / TENSORS
    raw, wanted = np.fromfile(path, np.uint8), read_header(path).items()
    return {name: _READERS[at.dtype](raw[at.begin : at.end]) for name, at in wanted if name.startswith(_PREFIX)}
