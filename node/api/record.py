"""What the supervisor keeps of a run for the API: rollouts, history and changes, filled by events as they arrive.

At the start ``recorded_run`` reads what earlier starts recorded, in a thread; events that arrive meanwhile are added to
it afterwards, so that nothing is missing and nothing is counted twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import msgspec

from node.api.history import Charted, History
from node.api.rollout_history import RolloutHistory
from node.api.run_changes import Change, GroupsByPeer, RunChanges
from node.api.types import SampleAnswer, SampleGroup, SamplesAnswer
from node.events import Event, ForeignGroups, PeersChanged, RoundDone, SampledGroup, Samples, Usage
from node.tasks.answers import RIGHT

MAX_WAITING = 4096  # events of this start, kept until what was recorded before has been read

log = logging.getLogger(__name__)

E = TypeVar("E")
_decoder: msgspec.json.Decoder[Change | Usage] = msgspec.json.Decoder(Change | Usage)


class RunRecord:
    """Bounded in memory for a run of any length. For one thread."""

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        """``settings``: the resolved configuration that the run was started with, as JSON."""
        self.settings: Final = dict(settings or {})
        self.rollouts = RolloutHistory()
        self.history = History()
        self.changes = RunChanges()
        self.samples: Samples | None = None  # the newest with own answers
        self.learnt_from: Samples | None = None  # the newest with a peer's
        self._waiting: list[Change] | None = []

    def add(self, event: Event | Usage | PeersChanged) -> tuple[str, ...]:
        """Takes one event and returns what a person is to be told of it, a sentence each."""
        if isinstance(event, Samples):
            self.samples = event if event.ours is not None else self.samples
            self.learnt_from = event if event.learnt_from is not None else self.learnt_from
        if isinstance(event, RoundDone):
            self.rollouts.add_round(event)
        if isinstance(event, Charted):
            self.history.add(event)
        if isinstance(event, ForeignGroups):
            self.rollouts.add_groups(event)
            change: Change = GroupsByPeer.of(event)
        elif isinstance(event, Change):
            change = event
        else:
            return ()
        if self._waiting is not None and len(self._waiting) < MAX_WAITING:
            self._waiting.append(change)
        return self.changes.add(change)

    def samples_answer(self, *, model: str) -> SamplesAnswer:
        """Returns the newest sample, which the learner has escaped and bounded; ``model``: this node's."""
        own, peers, changes = self.samples, self.learnt_from, self.changes
        learnt_from = peers.learnt_from if peers is not None else None
        return SamplesAnswer(
            round=None if own is None else own.round,
            time_seconds=None if own is None else own.time_seconds,
            ours=None if own is None or own.ours is None else _sample_group(own.ours, changes, model),
            learnt_from=None if learnt_from is None else _sample_group(learnt_from, changes, model),
            learnt_round=None if peers is None else peers.round,
            learnt_seconds=None if peers is None else peers.time_seconds,
        )

    def restore(self, history: History, changes: RunChanges) -> None:
        """Puts what earlier starts recorded before the events of this one. Called once."""
        self.history = self.history.appended_to(history)
        for event in self._waiting or ():
            changes.add(event)
        self.changes, self._waiting = changes, None


def _sample_group(group: SampledGroup, changes: RunChanges, model: str) -> SampleGroup:
    """``model``: this node's."""
    known = None if group.peer is None else changes.known(group.peer)
    is_ours = group.peer is None
    return SampleGroup(
        whose="ours" if is_ours else "peer",
        peer=group.peer,
        name=known.name if known is not None else None,
        model=model if is_ours else known.model if known is not None else None,
        task=group.task,
        question=group.question,
        expected=group.expected,
        answers=tuple(
            SampleAnswer(answer.text, answer.cut, answer.reward, right=answer.reward >= RIGHT)
            for answer in group.answers
        ),
        completions=group.completions,
        reward_mean=group.reward_mean,
    )


def recorded_line(line: bytes, event: Event) -> bytes:
    """Returns what ``metrics.jsonl`` keeps of an event; ``line`` is its JSON. Of groups of others it keeps counts: one
    by one they would be half of all bytes, and nothing reads them again."""
    if isinstance(event, ForeignGroups):
        return msgspec.json.encode(GroupsByPeer.of(event))
    return line


def recorded_run(metrics: Path, *, before_seconds: float) -> tuple[History, RunChanges]:
    """Returns history and changes before that Unix time, read from ``metrics`` and its older half. Lines that do not
    decode, such as those of other versions, are skipped."""
    history, changes = History(), RunChanges()
    for path in halves(metrics):
        try:
            for event in events_in(path, _decoder):
                if event is None or event.time_seconds >= before_seconds:
                    continue  # those of this start are in the current record
                if isinstance(event, Charted):
                    history.add(event)
                if isinstance(event, Change):
                    changes.add(event)
        except FileNotFoundError:
            pass  # this is the first start, or there is no older half yet
        except OSError as error:
            log.warning("charts begin with this start: %s cannot be read (%s)", path, error.strerror)
    return history, changes


def halves(metrics: Path) -> tuple[Path, Path]:
    """Returns the files of a record: the older half, which may not be there, and the newer one."""
    return metrics.with_name(metrics.name + ".1"), metrics


def events_in(path: Path, decoder: msgspec.json.Decoder[E]) -> Iterator[E | None]:
    """Yields the events of the decoder's kinds, and None for a line of such a kind that does not decode: one written by
    another version, or cut short by a full disk."""
    kinds = get_args(decoder.type) or (decoder.type,)  # of a union, or the one
    tags = tuple(f'{{"event":"{kind.__struct_config__.tag}"'.encode() for kind in kinds)
    with path.open("rb") as file:
        for line in file:
            if line.startswith(tags):
                try:
                    yield decoder.decode(line)
                except msgspec.DecodeError:
                    yield None
