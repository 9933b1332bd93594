"""What happened when, for the charts: peers that came and went, checkpoints, averagings, starts, pauses, losses.

Each kind keeps at most ``MAX_OF_A_KIND`` marks. Where one more comes, the two neighbours that are closest in time
become one, which says how many it stands for. Not for concurrent use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from node.api.gains_words import fell, lost_task
from node.api.types import Loss, Mark
from node.events import (
    Averaged,
    AveragingTakenBack,
    CheckpointSaved,
    Evaluated,
    FoundRate,
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

KINDS: Final[Mapping[str, tuple[str, str]]] = {  # kind: what one mark says, and many
    "start": ("the run began", "{count} beginnings"),
    "restart": ("the learner started again", "the learner started again {count} times"),
    "paused": ("paused", "paused {count} times"),
    "stopped": ("the node stopped", "the node stopped {count} times"),
    "came": ("{names} came", "{count} peers came: {names}"),
    "left": ("{names} left", "{count} peers left: {names}"),
    "checkpoint": ("checkpoint of round {round}", "{count} checkpoints, the last of round {round}"),
    "adopted": ("weights of peers taken over", "weights of peers taken over {count} times"),
    "averaged": ("weights averaged with {names}", "weights averaged {count} times"),
    "taken_back": ("an averaging with {names} was taken back", "{count} averagings were taken back"),
    "best": ("best checkpoint: round {round}, {names} on held-out prompts", ""),
    "withdrawn": ("learns less from {names} for a while", "learns less from {names} for a while, {count} times"),
    "loss": ("lost: {names}", "{count} losses: {names}"),
    "rate": ("learning rate {names}", "the learning rate changed {count} times"),
}
MAX_OF_A_KIND: Final = 40
MAX_MARKS: Final = MAX_OF_A_KIND * len(KINDS)
MAX_NAMES: Final = 3  # in one mark


@dataclass(frozen=True, slots=True)
class _Happened:
    time_seconds: float
    until_seconds: float
    round: int
    count: int
    names: tuple[str, ...] = ()

    def joined(self, later: _Happened) -> _Happened:
        names = tuple(dict.fromkeys((*self.names, *later.names)))[:MAX_NAMES]
        count = self.count + later.count
        return _Happened(self.time_seconds, later.until_seconds, max(self.round, later.round), count, names)


class Marks:
    """Collects what happens and answers with marks."""

    def __init__(self) -> None:
        self._kinds: dict[str, list[_Happened]] = {kind: [] for kind in KINDS}

    def add(self, event: TimedEvent, name_of: Callable[[str], str]) -> None:
        """Takes one event; ``name_of`` says what a peer calls itself, escaped."""
        at = event.time_seconds
        match event:
            case LearnerReady():
                self._add("restart" if self._kinds["start"] else "start", at, event.round)
            case PeersChanged():
                self._add("came", at, event.round, _names(event.came), event.came_total)
                self._add("left", at, event.round, _names(event.left), event.left_total)
            case RoundDone(found_rate=FoundRate(since_round=since) as found) if since == event.round:
                self._add("rate", at, since, (f"{found.before:.2g} → {found.to:.2g}",))
            case CheckpointSaved():
                self._add("checkpoint", at, event.round)
            case StateSyncing(stage="done"):
                self._add("adopted", at, 0)
            case Averaged(partner=str(partner)):
                self._add("averaged", at, event.round, (name_of(partner),))
            case Evaluated() if event.round == event.best_round > 0:
                self._kinds["best"].clear()  # the former best one is none
                self._add("best", at, event.round, (f"{event.reward:.2f}",))
            case Stopped():
                self._add("paused" if event.because == "paused" else "stopped", at, event.round)
            case AveragingTakenBack():
                self._add("taken_back", at, event.round, (name_of(event.partner),))
            case InfluenceWithdrawn():
                self._add("withdrawn", at, event.round, tuple(map(name_of, event.peers[:MAX_NAMES])))
            case _:
                pass

    def add_loss(self, loss: Loss, *, time_seconds: float, round_number: int) -> None:
        self._add("loss", time_seconds, round_number, (fell(lost_task(loss), loss.best, loss.now),))

    def answer(self, *, since_seconds: float = float("-inf")) -> tuple[Mark, ...]:
        """Returns the marks that ended at that time or later, oldest first; at most ``MAX_MARKS``."""
        marks = [
            Mark(each.time_seconds, each.until_seconds, each.round, kind, _text(kind, each), each.count)
            for kind, happened in self._kinds.items()
            for each in happened
            if each.until_seconds >= since_seconds
        ]
        return tuple(sorted(marks, key=lambda mark: mark.time_seconds))

    def _add(
        self, kind: str, time_seconds: float, round_number: int, names: tuple[str, ...] = (), count: int = 1
    ) -> None:
        if not count:
            return
        happened = self._kinds[kind]
        happened.append(_Happened(time_seconds, time_seconds, round_number, count, names))
        if len(happened) > MAX_OF_A_KIND:
            gaps = [later.time_seconds - earlier.until_seconds for earlier, later in pairwise(happened)]
            at = min(range(len(gaps)), key=gaps.__getitem__)
            happened[at : at + 2] = [happened[at].joined(happened[at + 1])]


def _names(peers: Sequence[NamedPeer]) -> tuple[str, ...]:
    return tuple(printable(peer.name, NAME_BYTES) for peer in peers[:MAX_NAMES])


def _text(kind: str, happened: _Happened) -> str:
    one, many = KINDS[kind]
    names = ", ".join(happened.names)
    if happened.names and happened.count > len(happened.names):
        names += ", …"
    text = one if happened.count == 1 else many
    return text.format(names=names, count=f"{happened.count:,}", round=happened.round)
