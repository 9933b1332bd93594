"""How a run changed the node, from its events: gains, losses, from whom it learns less, and marks for the charts.

The API fills it with events as they arrive, after those that earlier starts recorded; a report fills it from the record
alone. Both get the same answers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from node.api.gains import Attribution
from node.api.losses import LossWatch
from node.api.marks import Marks
from node.api.types import GainsAnswer, Loss, Withdrawal, end_of
from node.api.withdrawals import taken_back_sentence, withdrawal
from node.events import (
    Averaged,
    AveragingTakenBack,
    BaselineMeasured,
    CheckpointSaved,
    Evaluated,
    ForeignGroups,
    InfluenceWithdrawn,
    LearnerReady,
    NamedPeer,
    PeersChanged,
    RoundDone,
    StateSyncing,
    Stopped,
    TimedEvent,
)
from node.printable import printable
from protocol.limits import NAME_BYTES

MAX_NAMES: Final = 1024  # of peers, the newest ones
MAX_WITHDRAWALS: Final = 50  # the newest ones


class GroupsByPeer(TimedEvent, frozen=True, kw_only=True, tag="foreign_groups"):
    """The part of ``ForeignGroups`` that is recorded: its groups one by one are many and long."""

    round: int
    by_peer: dict[str, dict[str, int]]

    @classmethod
    def of(cls, event: ForeignGroups) -> GroupsByPeer:
        return cls(time_seconds=event.time_seconds, round=event.round, by_peer=event.by_peer)


Change = (
    RoundDone
    | GroupsByPeer
    | Evaluated
    | BaselineMeasured
    | PeersChanged
    | CheckpointSaved
    | Averaged
    | AveragingTakenBack
    | InfluenceWithdrawn
    | LearnerReady
    | StateSyncing
    | Stopped
)


class RunChanges:
    """Bounded in memory for a run of any length. Not for concurrent use."""

    def __init__(self) -> None:
        self.marks = Marks()
        self._gains = Attribution()
        self._watch = LossWatch()
        self._averagings = 0
        self._from_peers = False
        self._names: OrderedDict[str, NamedPeer] = OrderedDict()
        self.losses: tuple[Loss, ...] = ()
        self.withdrawals: tuple[Withdrawal, ...] = ()
        self.withdrawals_total = 0
        self._round = 0
        self._answer: GainsAnswer | None = None  # until something changes: it is asked for every second

    def add(self, event: Change) -> tuple[str, ...]:
        """Takes one event and returns what a person is to be told of it, a sentence each: losses that it showed for the
        first time, and precautions."""
        self._answer = None
        if isinstance(event, PeersChanged):
            self.name_peers([*event.came, *event.left])
        self.marks.add(event, self.name_of)
        match event:
            case RoundDone():
                self._round = event.round
                self._gains.add_round(event)
                self._watch.add_round(event)
                return self._new_losses(event.time_seconds, event.round)
            case GroupsByPeer():
                self._gains.add_groups(event.by_peer)
            case Evaluated():
                self._watch.add_evaluation(event)
                return self._new_losses(event.time_seconds, event.round)
            case BaselineMeasured():
                self._gains.add_baseline(event)
            case PeersChanged():
                self._watch.add_peers(event)
            case Averaged(partner=str()):
                self._averagings += 1
                self._watch.add_averaging(event)
            case AveragingTakenBack():
                return (taken_back_sentence(event, self.name_of(event.partner)),)
            case InfluenceWithdrawn():
                made = withdrawal(event, [self.name_of(peer) for peer in event.peers])
                self.withdrawals = (*self.withdrawals, made)[-MAX_WITHDRAWALS:]
                self.withdrawals_total += 1
                return (made.sentence,)
            case StateSyncing(stage="done"):
                self._from_peers = True
            case LearnerReady():
                self._watch.add_start(event)
            case _:
                pass
        return ()

    def name_peers(self, peers: Sequence[NamedPeer]) -> None:
        """Takes what peers call themselves; one that has left keeps its name."""
        self._answer = self._answer if not peers else None
        for peer in peers:
            shown = (printable(text, NAME_BYTES) for text in (peer.name, peer.model))
            self._names[peer.peer] = NamedPeer(peer.peer, *shown)
            self._names.move_to_end(peer.peer)
        while len(self._names) > MAX_NAMES:
            self._names.popitem(last=False)

    def known(self, peer: str) -> NamedPeer | None:
        return self._names.get(peer)

    def name_of(self, peer: str) -> str:
        """Returns what the peer calls itself, with the end of its id where another has that name too; that end alone
        where its name was never heard. Escaped."""
        known = self._names.get(peer)
        if known is None:
            return printable(end_of(peer), NAME_BYTES)
        alone = sum(each.name == known.name for each in self._names.values()) == 1
        return known.name if alone else f"{known.name} ({printable(end_of(peer), NAME_BYTES)})"

    @property
    def withdrawn(self) -> tuple[Withdrawal, ...]:
        """From which peers the node learns less in its present round."""
        return tuple(each for each in self.withdrawals if self._round < each.until_round)

    def gains(self) -> GainsAnswer:
        if self._answer is None:
            self._answer = self._gains.answer(
                self.losses, self._names, averagings=self._averagings, from_peers=self._from_peers
            )
        return self._answer

    def _new_losses(self, time_seconds: float, round_number: int) -> tuple[str, ...]:
        before = {loss.task for loss in self.losses}
        self.losses = self._watch.answer()
        new = tuple(loss for loss in self.losses if loss.task not in before)
        for loss in new:
            self.marks.add_loss(loss, time_seconds=time_seconds, round_number=round_number)
        return tuple(loss.sentence for loss in new)
