"""Two unlike learners that train alone and then meet: real learners at a node's defaults, and what each guard saw."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec
import torch

from node.configuration import LearnerSection
from node.learner.influence.guard import Guard, Harm
from node.learner.influence.watch import Groups
from node.learner.steps.undo import Undo
from scripts import REPOSITORY
from scripts.attacks.poisoning.learning import TASKS, Board, learner_on
from scripts.experiments.harness.nodes_run import ROUND_SECONDS, WAIT_SECONDS

RECORDINGS: Final = REPOSITORY / ".experiments" / "joinings"
TOGETHER: Final = 30  # rounds: a newcomer is proven after some eight, and a fall shows within the 16 of a window
APART: Final = 12  # rounds between two meetings
MEETINGS: Final = 2  # the second under another name: a newcomer for one that has met others before


class Meeting(msgspec.Struct, frozen=True):
    models: tuple[str, str]
    seed: int
    alone: int  # rounds before they meet

    @property
    def joins(self) -> list[int]:
        """Returns the first round of each meeting, counted from 1."""
        return [self.alone + 1 + number * (TOGETHER + APART) for number in range(MEETINGS)]

    @property
    def path(self) -> Path:
        return RECORDINGS / f"{'-'.join(self.models)}-{self.alone}-{self.seed}.msgpack"


class Seen(msgspec.Struct):
    """What the guard of one learner saw in each round."""

    model: str
    groups: list[dict[str, list[float]]]  # by task: the mean reward of each own group
    shares: list[dict[str, float]]  # by peer: the mass that was learnt
    scores: list[float]
    harms: list[tuple[int, str]]  # round, and what the guard said


class Met(msgspec.Struct):
    plan: Meeting
    sides: tuple[Seen, Seen]


def recording(seen: Seen) -> type[Guard]:
    class RecordingGuard(Guard):
        def after_round(
            self, round_number: int, groups: Groups, copied: Callable[[Undo | None], Undo | None]
        ) -> Harm | None:
            means: dict[str, list[float]] = {}
            for task, rewards in groups:
                means.setdefault(task, []).append(sum(rewards) / len(rewards))
            seen.groups.append(means)
            seen.shares.append(dict(self.state.shares.get(round_number, {})))
            harm = super().after_round(round_number, groups, copied)
            seen.scores.append(self.state.watch.score)
            if harm is not None:
                seen.harms.append((round_number, repr(harm)))
            return harm

    return RecordingGuard


def met(plan: Meeting) -> Met:
    """Returns what both guards saw; from a file where the meeting was recorded."""
    if plan.path.is_file():
        return msgspec.msgpack.decode(plan.path.read_bytes(), type=Met)
    torch.set_num_threads(1)
    torch.manual_seed(plan.seed)
    groups = LearnerSection().own_groups
    sides = (Seen(plan.models[0], [], [], [], []), Seen(plan.models[1], [], [], [], []))
    with ExitStack() as stack:
        boards, learners = [], []
        for index, seen in enumerate(sides):
            board = Board(Path(stack.enter_context(tempfile.TemporaryDirectory())))
            made = learner_on(board, seen.model, TASKS, 2 * plan.seed + index, groups=groups, guard=recording(seen))
            learner, intake, _ = stack.enter_context(made)
            boards.append(board)
            learners.append((learner, intake))
        for number in range(1, plan.joins[-1] + TOGETHER):
            meeting = sum(first <= number for first in plan.joins)
            meets = meeting > 0 and number < plan.joins[meeting - 1] + TOGETHER
            for learner, intake in learners:
                learner.round()
                intake.settle(WAIT_SECONDS)
            for board, other, seen in zip(boards, reversed(boards), reversed(sides), strict=True):
                board.now_seconds += ROUND_SECONDS
                for group in other.take_shared():
                    if meets:
                        board.announce(f"{seen.model}-{meeting}", group)
    found = Met(plan, sides)
    plan.path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = plan.path.with_suffix(".part")
    unfinished.write_bytes(msgspec.msgpack.encode(found))
    unfinished.rename(plan.path)
    return found
