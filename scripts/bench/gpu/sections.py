"""The sections, in the order in which they run, with the seconds that each may take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

from scripts.bench.gpu.adapter import adapter
from scripts.bench.gpu.bench import Bench
from scripts.bench.gpu.beside import beside
from scripts.bench.gpu.decoding import decoding
from scripts.bench.gpu.drawing import drawing
from scripts.bench.gpu.engine import engine
from scripts.bench.gpu.gate import gate
from scripts.bench.gpu.head import head
from scripts.bench.gpu.learner import LEARNERS, learner_round
from scripts.bench.gpu.lengths import lengths
from scripts.bench.gpu.limits import limits
from scripts.bench.gpu.turns import turns
from scripts.bench.gpu.weights import sparse_updates, weight_diffs
from scripts.bench.gpu.whole_node import whole_node

TOTAL_SECONDS: Final = 530.0
"""Under nine minutes: a machine that is lent runs one command for ten."""
FIRST_SECONDS: Final = 120.0
"""Of the first part: every section at tiny sizes, which answers whether each path runs and agrees."""
FIRST_BUDGET: Final = 60.0  # of one section in it; several run at a time


@dataclass(frozen=True)
class Section:
    run: Callable[[Bench], None]
    seconds: float  # its budget, the start of its process included


SECTIONS: Final[Mapping[str, Section]] = MappingProxyType(
    {
        "limits": Section(limits, 40),
        "sparse": Section(sparse_updates, 50),
        "diffs": Section(weight_diffs, 40),
        "decoding": Section(decoding, 45),
        "lengths": Section(lengths, 40),
        "gate": Section(gate, 30),
        "drawing": Section(drawing, 40),
        "head": Section(head, 50),
        "adapter": Section(adapter, 30),
        "engine": Section(engine, 60),
        "turns": Section(turns, 60),
        "beside": Section(beside, 40),
    }
    | {name: Section(partial(learner_round, name=name), 80) for name in LEARNERS}
    | {"node": Section(whole_node, 110)}
)
