"""Walk to a goal on a grid whose walls are seen only from the cell beside them.

Rows and columns count from 0, the first row is the northern one. The goal can always be reached. The reward is 1 at the
goal by a shortest way, otherwise the length of a shortest way as a part of the steps taken; 0 elsewhere.
"""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from node.environments.environment import MOST_TURNS, Turn
from node.tasks.task import check_ref, config_hash_of
from protocol.messages import PromptRef

SEEDS: Final = 1 << 32
STEPS: Final = {"north": (-1, 0), "south": (1, 0), "west": (0, -1), "east": (0, 1)}
_WORD: Final = re.compile(r"\b(?:north|south|west|east|[nswe])\b")
Cell = tuple[int, int]


@dataclass(frozen=True)
class Grid:
    """``size`` × ``size`` cells, of which each is a wall with a chance of ``walls``."""

    name: str
    size: int
    walls: float
    max_new_tokens: int = 8
    brief: bool = False  # for models of characters: letters instead of words

    version: ClassVar[int] = 1
    max_observation_bytes: ClassVar[int] = 300

    @property
    def max_turns(self) -> int:
        return min(MOST_TURNS, 4 * self.size)

    @property
    def config_hash(self) -> bytes:
        shape = {"environment": "grid", "version": self.version, "size": self.size, "walls": self.walls}
        return config_hash_of(shape | {"tokens": self.max_new_tokens, "brief": self.brief})

    def ref(self, seed: int) -> PromptRef:
        return PromptRef(self.name, self.version, self.config_hash, seed % SEEDS)

    def begin(self, ref: PromptRef) -> Walk:
        check_ref(self, ref, SEEDS)
        draws = random.Random(ref.seed)
        cells = [(row, column) for row in range(self.size) for column in range(self.size)]
        while True:
            free = {cell for cell in cells if draws.random() >= self.walls}
            if len(free) < 2:
                continue
            start, goal = draws.sample(sorted(free), 2)
            way = shortest_way(free, start, goal)
            if way is not None and len(way) <= self.max_turns:
                return Walk(self, frozenset(free), start, goal, len(way))

    def example(self, ref: PromptRef) -> Sequence[str]:
        walk = self.begin(ref)
        way = shortest_way(walk.free, walk.at, walk.goal)
        assert way is not None
        return [step[0] for step in way] if self.brief else way

    def is_canonical(self, action: str) -> bool:
        return action in ({step[0] for step in STEPS} if self.brief else STEPS)


def shortest_way(free: frozenset[Cell] | set[Cell], start: Cell, goal: Cell) -> list[str] | None:
    """Returns the steps of a shortest way, or None where there is none."""
    ways: dict[Cell, list[str]] = {start: []}
    ahead = deque([start])
    while ahead:
        at = ahead.popleft()
        if at == goal:
            return ways[at]
        for step, (down, right) in STEPS.items():
            beside = (at[0] + down, at[1] + right)
            if beside in free and beside not in ways:
                ways[beside] = [*ways[at], step]
                ahead.append(beside)
    return None


class Walk:
    def __init__(self, grid: Grid, free: frozenset[Cell], start: Cell, goal: Cell, shortest: int) -> None:
        self.grid, self.free, self.at, self.goal = grid, free, start, goal
        self._shortest, self._steps = shortest, 0

    def observation(self) -> str:
        (row, column), last = self.goal, self.grid.size - 1
        if self.grid.brief:
            return f"{row}{column} {self._seen()}"
        return (
            f"You walk on a grid, rows and columns 0 to {last}; row 0 is the northern one. The goal is row {row}, "
            f"column {column}. Answer with one step: north, south, west or east. {self._seen()}"
        )

    def act(self, text: str) -> Turn:
        self._steps += 1
        words = _WORD.findall(text.lower())
        if not words:
            return Turn(f"? {self._seen()}" if self.grid.brief else f"That is no step. {self._seen()}")
        down, right = next(moved for step, moved in STEPS.items() if step[0] == words[-1][0])
        beside = (self.at[0] + down, self.at[1] + right)
        if beside in self.free:
            self.at = beside
        elif not self.grid.brief:
            return Turn(f"There is a wall. {self._seen()}")
        return Turn(self._seen(), done=self.at == self.goal)

    def reward(self) -> float:
        return self._shortest / max(self._shortest, self._steps) if self.at == self.goal else 0.0

    def _seen(self) -> str:
        row, column = self.at
        open_ = [step for step, (down, right) in STEPS.items() if (row + down, column + right) in self.free]
        if self.grid.brief:
            return f"{row}{column} {''.join(step[0] for step in open_)}"
        return f"You are at row {row}, column {column}. Open: {', '.join(open_)}."
