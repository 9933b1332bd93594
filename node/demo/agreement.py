"""The distance of replicas: the mean of ‖θ_i − θ_j‖ / ‖θ_i‖ over all ordered pairs of newest checkpoints, without
torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from node.checkpoints.checkpoint_files import TENSORS, rounds
from node.demo.member import DemoError
from node.home import Home
from node.policy.safetensors_header import read_header
from protocol.weights.dense_weights import widened

Weights = Mapping[str, NDArray[np.floating[Any]]]

_PREFIX = "weights."
_READERS: Mapping[str, Callable[[NDArray[np.uint8]], NDArray[np.floating[Any]]]] = {
    "F32": lambda raw: raw.view("<f4"),
    "F16": lambda raw: raw.view("<f2"),
    "BF16": lambda raw: widened(raw.view("<u2")),
}


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
