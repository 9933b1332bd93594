"""Own groups: which prompts a round uses, and the groups that were generated for it, in turn or ahead."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import torch

from node.configuration import LearnerSection
from node.learner.allocation.allocator import Allocation, allocate
from node.learner.generation.generation import EndedGroups, Generated, RoundPlan, launched_for
from node.learner.generation.schedule import GenerationSchedule
from node.learner.generation.unfinished import UnfinishedGroup


class OwnGroups:
    """The own groups of one learner. Only the learner's thread may call it."""

    def __init__(
        self,
        section: LearnerSection,
        tasks: Sequence[str],
        schedule: GenerationSchedule,
        listener: EndedGroups,
        seed: str,
    ) -> None:
        """``listener`` gets each group that ends while others are sampled. ``seed`` must differ between nodes."""
        self._section, self._tasks, self._schedule = section, list(tasks), schedule
        self._listener, self._seed = listener, seed

    def launch(self, round_number: int, unfinished: Sequence[UnfinishedGroup]) -> None:
        """Begins what comes after ``round_number`` rounds; ``unfinished`` is what the round before left over."""
        self._schedule.launch(round_number, unfinished, self._plan)

    def take(self) -> Generated:
        """Returns what was generated for the round launched."""
        return self._schedule.take(self._listener)

    def publish(self, version: int, weights: Mapping[str, torch.Tensor]) -> None:
        """Gives the engine new weights, which may be changed as soon as it returns."""
        self._schedule.publish(version, weights)

    def release(self) -> None:
        """Gives back the engine's keys and values, unless it generates now."""
        self._schedule.release()

    def close(self) -> None:
        """Ends generation that runs ahead, promptly."""
        self._schedule.close()

    def _plan(self, round_number: int) -> RoundPlan:
        """Plans what a round, this or a later one, may generate. Prompts after the first lot are for ``resample``."""
        groups = self._section.own_groups
        drawn = self._allocated(round_number, self._seed, launched_for(groups, self._section.overprovision))
        for lot in range(1, self._section.resample):
            drawn += self._allocated(round_number, f"{self._seed}/lot {lot}", groups)
        sampling = random.Random(f"starling/sample/{self._seed}/{round_number}")
        return RoundPlan(groups, tuple(drawn), sampling.getrandbits(63))

    def _allocated(self, round_number: int, seed: str, groups: int) -> list[Allocation]:
        return allocate(round_number, seed, self._tasks, groups=groups, completions=self._section.completions)
