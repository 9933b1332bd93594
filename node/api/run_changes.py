"""How a run changed the node, from its events: gains, losses, and marks for the charts.

The API fills it with events as they arrive, after those that earlier starts recorded; a report fills it from the record
alone. Both get the same answers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from node.api.gains import Attribution
from node.api.losses import LossWatch
from node.api.marks import Marks
from node.api.types import GainsAnswer, Loss
from node.events import (
    Averaged,
    AveragingTakenBack,
    CheckpointSaved,
    Evaluated,
    ForeignGroups,
    LearnerReady,
    NamedPeer,
    PeersChanged,
    RoundDone,
)

MAX_NAMES: Final = 1024  # of peers, the newest ones


class GroupsByPeer(Struct, frozen=True, kw_only=True, tag_field="event", tag="foreign_groups"):
    """The part of ``ForeignGroups`` that is read back: its groups one by one are many and long."""

    time_seconds: float
    round: int
    by_peer: dict[str, dict[str, int]]


Change = (
    RoundDone
    | GroupsByPeer
    | ForeignGroups
    | Evaluated
    | PeersChanged
    | CheckpointSaved
    | Averaged
    | AveragingTakenBack
    | LearnerReady
)


class RunChanges:
    """Bounded in memory for a run of any length. Not for concurrent use."""

    def __init__(self) -> None:
        self.marks = Marks()
        self._gains = Attribution()
        self._watch = LossWatch()
        self._names: OrderedDict[str, NamedPeer] = OrderedDict()
        self.losses: tuple[Loss, ...] = ()

    def add(self, event: Change) -> tuple[Loss, ...]:
        """Takes one event and returns the losses that it showed for the first time."""
        match event:
            case RoundDone():
                self._gains.add_round(event)
                self._watch.add_round(event)
                return self._new_losses(event.time_seconds, event.round)
            case GroupsByPeer() | ForeignGroups():
                self._gains.add_groups(event.by_peer)
            case Evaluated():
                self._watch.add_evaluation(event)
                return self._new_losses(event.time_seconds, event.round)
            case PeersChanged():
                self.name_peers([*event.came, *event.left])
                self._watch.add_peers(event)
                self.marks.add_peers(event)
            case CheckpointSaved():
                self.marks.add_checkpoint(event)
            case Averaged(partner=str(partner)):
                self._watch.add_averaging(event)
                self.marks.add_averaging(event, self.name_of(partner))
            case AveragingTakenBack():
                self.marks.add_taken_back(event, self.name_of(event.partner))
            case LearnerReady():
                self._watch.add_start(event)
                self.marks.add_start(event)
            case _:
                pass
        return ()

    def name_peers(self, peers: Sequence[NamedPeer]) -> None:
        """Takes what peers call themselves; one that has left keeps its name."""
        for peer in peers:
            self._names[peer.peer] = peer
            self._names.move_to_end(peer.peer)
        while len(self._names) > MAX_NAMES:
            self._names.popitem(last=False)

    def known(self, peer: str) -> NamedPeer | None:
        return self._names.get(peer)

    def name_of(self, peer: str) -> str:
        known = self._names.get(peer)
        return known.name if known is not None else f"…{peer[-5:]}"

    def gains(self) -> GainsAnswer:
        return self._gains.answer(self.losses, self._names)

    def gained(self) -> str:
        """Returns the sentence of ``gains``."""
        return self.gains().sentence

    def _new_losses(self, time_seconds: float, round_number: int) -> tuple[Loss, ...]:
        before = {loss.task for loss in self.losses}
        self.losses = self._watch.answer()
        new = tuple(loss for loss in self.losses if loss.task not in before)
        for loss in new:
            self.marks.add_loss(loss, time_seconds=time_seconds, round_number=round_number)
        return new
