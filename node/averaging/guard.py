"""What a learner remembers of its partners in averaging, and the step that is on trial. Part of checkpoints.

A step is on trial from the round after it: the weights from before it are kept, in main memory, and own groups of newer
versions are compared with those from before (``trial``). It ends with the first round that shows harm, after
``TRIAL_ROUNDS`` rounds, or with the next step.

A partner that did harm is not averaged with for ``PAUSE_ROUNDS``, so that it spoils a fiftieth of our rounds at most.
Chance looks like harm in up to one honest step of a hundred, so the pause counts rounds and begins short: a node that
averages twice a minute takes some ten honest steps a day for harm (``python -m scripts.attacks.false_alarms``). The
pause doubles with each harm, up to ``DOUBLINGS`` times; ``REDEEMING`` steps without harm make up for one with it.

Bounded: ``PARTNERS`` peers; the one that averaged longest ago goes first, and those that did harm go last;
``trial.REMEMBERED`` numbers for each of our own tasks; one copy of the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
from torch import Tensor

from node.averaging import trial
from node.averaging.noloco import Weights
from node.averaging.trial import SuccessChange
from swarm import api
from swarm.averaging.norm_history import FamilyPast

PAUSE_ROUNDS: Final = 50 * trial.TRIAL_ROUNDS
DOUBLINGS: Final = 8
REDEEMING: Final = 20  # steps
PARTNERS: Final = 256
_BEFORE: Final = "averaging_trial/"


@dataclass(frozen=True, slots=True)
class OwnGroup:
    """One group of own completions, scored."""

    task: str
    version: int  # of the policy that sampled the oldest of its tokens
    rewards: Sequence[float]


@dataclass(frozen=True, slots=True)
class PartnerRecord:
    steps: int = 0  # taken with its weights
    score_sum: float = 0.0  # S of ``trial``
    harms: int = 0  # that are not made up for
    harmless: int = 0  # steps since the last of these, or since one was made up for
    avoided_until: int = 0  # version of our own policy, which rises by one in a round that moves it

    def after_harm(self, version: int) -> PartnerRecord:
        pause = PAUSE_ROUNDS << min(self.harms, DOUBLINGS)
        return PartnerRecord(self.steps, harms=self.harms + 1, avoided_until=version + pause)

    def after_step(self, score_sum: float) -> PartnerRecord:
        harms, harmless = self.harms, self.harmless + 1
        if harmless >= REDEEMING:
            harms, harmless = max(0, harms - 1), 0
        return replace(self, steps=self.steps + 1, score_sum=score_sum, harms=harms, harmless=harmless)


@dataclass(frozen=True, slots=True, eq=False)
class StepTrial:
    """A step whose effect is not known yet, and what is needed to take it back."""

    partner: str
    blob: bytes  # of the partner's weights
    round: int  # after which it was taken
    version: int  # the first with it
    before: Weights  # θ before it, float32, in main memory
    past: FamilyPast  # of distances, without this one
    rounds: int = 0  # in which groups were compared
    since: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class AveragingGuard:
    """Changed by the learner's thread alone."""

    history: dict[str, tuple[float, ...]] = field(default_factory=dict)  # mean rewards of own groups, by task
    partners: dict[str, PartnerRecord] = field(default_factory=dict)  # the latest last
    past: FamilyPast = field(default_factory=FamilyPast)  # distances of partners' weights from ours
    learnt: float = 0.0  # the length of what we learnt between outer steps, added up
    trial: StepTrial | None = None
    spoilt: tuple[int, int] = (0, 0)  # versions, the second excluded, of the last step that was taken back

    def began(self, step: StepTrial) -> None:
        """Puts a step on trial. An earlier step that is still on trial passes."""
        self.passed()
        self.trial = step

    def observe(self, groups: Iterable[OwnGroup]) -> SuccessChange | None:
        """Takes a round's own groups; returns the comparison if they show that the step on trial did harm."""
        older: dict[str, list[float]] = {}
        newer: dict[str, list[float]] = {}
        for group in groups:
            if not group.rewards or self.spoilt[0] <= group.version < self.spoilt[1]:
                continue
            on_trial = self.trial is not None and group.version >= self.trial.version
            means = newer if on_trial else older
            means.setdefault(group.task, []).append(sum(group.rewards) / len(group.rewards))
        self.history = trial.with_groups(self.history, older)
        if self.trial is None or not newer:
            return None
        since = trial.with_groups(self.trial.since, newer, most=None)
        self.trial = replace(self.trial, since=since, rounds=self.trial.rounds + 1)
        found = trial.compared(self.history, since, self.trial.rounds)
        sum_so_far = trial.sum_after(self._of(self.trial.partner).score_sum, found.score)
        if found.is_harm or (self.trial.rounds >= trial.TRIAL_ROUNDS and sum_so_far < -trial.MAX_SUM):
            return found
        if self.trial.rounds >= trial.TRIAL_ROUNDS:
            self.passed()
        return None

    def passed(self) -> None:
        """Ends a trial without harm; its groups become part of the history."""
        if self.trial is None:
            return
        known = self._of(self.trial.partner)
        score = trial.compared(self.history, self.trial.since, self.trial.rounds).score
        score_sum = trial.sum_after(known.score_sum, score)
        self._note(self.trial.partner, known.after_step(score_sum))
        self.history = trial.with_groups(self.history, self.trial.since)
        self.trial = None

    def failed(self, version: int) -> StepTrial:
        """Ends a trial with harm and returns it; ``version`` is the first without the step again."""
        ended = self.trial
        assert ended is not None
        self._note(ended.partner, self._of(ended.partner).after_harm(version))
        self.past, self.trial, self.spoilt = ended.past, None, (ended.version, version)
        return ended

    def known(self, version: int) -> api.KnownPartners:
        """Returns what the swarm process needs to choose and to weigh partners; ``version`` is our policy's."""
        avoided = tuple(peer for peer, record in self.partners.items() if version < record.avoided_until)
        return api.KnownPartners(self.past, self.learnt, avoided)

    def _of(self, peer: str) -> PartnerRecord:
        return self.partners.get(peer, PartnerRecord())

    def _note(self, peer: str, record: PartnerRecord) -> None:
        self.partners.pop(peer, None)
        self.partners[peer] = record
        while len(self.partners) > PARTNERS:
            harmless = (each for each, of in self.partners.items() if not of.harms)
            del self.partners[next(harmless, next(iter(self.partners)))]

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors for a checkpoint; they share memory with this."""
        return {_BEFORE + name: tensor for name, tensor in self.trial.before.items()} if self.trial is not None else {}

    def snapshot(self) -> dict[str, Any]:
        """Returns the rest for a checkpoint."""
        on_trial = self.trial and replace(self.trial, before={})
        snapshot: dict[str, Any] = msgspec.to_builtins(replace(self, trial=on_trial))
        return snapshot

    @classmethod
    def restored(cls, snapshot: Mapping[str, Any], tensors: Weights, weights: Weights) -> AveragingGuard:
        """Returns the guard of a checkpoint; ``weights`` are the policy's.

        A trial whose weights are not all there is over: the step stays.
        """
        guard = msgspec.convert(snapshot, cls)
        before = {name: tensors[_BEFORE + name].float().clone() for name in weights if _BEFORE + name in tensors}
        guard.trial = guard.trial and (replace(guard.trial, before=before) if before.keys() == weights.keys() else None)
        return guard
