"""The distance of replicas: the mean of ‖θ_i − θ_j‖ / ‖θ_i‖ over all ordered pairs of newest checkpoints.

Reads safetensors without torch: the length of the header as u64, the header as JSON, the bytes of the tensors.
"""

from __future__ import annotations

import json
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
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(header_bytes))
    raw = np.fromfile(path, np.uint8, offset=8 + header_bytes)
    wanted = {name: entry for name, entry in header.items() if name.startswith(_PREFIX)}
    return {name: _READERS[entry["dtype"]](raw[slice(*entry["data_offsets"])]) for name, entry in wanted.items()}
