"""Hands on what happens in a node: to its user, ``metrics.jsonl``, the record of the run, trackers, and the readers of
the API's events.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from node.api.event_feed import EventFeed
from node.api.record import RunRecord, recorded_line
from node.api.types import NodeStatus, Note, PeersAnswer, SamplesNews
from node.events import Event, PeersChanged, Samples, Usage, encode_event, kind_of
from node.home import Home
from node.supervision.children import ChildSpec
from node.supervision.rolling_log import RollingLog
from node.trackers.sink import TrackerSink

METRICS_BYTES: Final = 256 << 20
NOTES_KEPT: Final = 20


class Observer(Protocol):
    """Shows a node to the user who started it. Must not block or raise."""

    def on_event(self, line: bytes, event: Event) -> None:
        """Called for each event of the learner; ``line`` is its JSON."""

    def on_note(self, text: str) -> None:
        """Called for each message of the supervisor: one or more lines that are safe to print."""

    def on_tick(self, status: NodeStatus, peers: PeersAnswer) -> None:
        """Called about once a second."""


class Reporting:
    """Nothing here waits for a reader or raises, a full disk included: it is told in a note."""

    def __init__(self, home: Home, record: RunRecord, observer: Observer, trackers: Sequence[ChildSpec]) -> None:
        self._record, self._observer = record, observer
        self._metrics = RollingLog(home.metrics, max_bytes=METRICS_BYTES)
        self.trackers = TrackerSink(home, trackers, self.note)  # started and closed by the supervisor
        self.feed = EventFeed()
        self.notes: tuple[str, ...] = ()  # newest last; at most ``NOTES_KEPT``

    def note(self, text: str) -> None:
        """Tells the user."""
        self.notes = (*self.notes, text)[-NOTES_KEPT:]
        self._observer.on_note(text)
        self.feed.publish("note", msgspec.json.encode(Note(time.time(), text)))

    def tick(self, status: NodeStatus, peers: PeersAnswer) -> None:
        """Shows the present state."""
        self._observer.on_tick(status, peers)
        if self.feed.readers:
            self.feed.publish("status", msgspec.json.encode(status))

    def learner_event(self, line: bytes, event: Event) -> None:
        """``line`` is the event as the learner wrote it; ``event`` is escaped."""
        for sentence in self._record.add(event):
            self.note(sentence)
        self._write_metrics(recorded_line(line, event))
        self.trackers.add(event)
        self._observer.on_event(line, event)
        self.feed.publish(kind_of(event), encode_event(event))

    def samples(self, samples: Samples) -> None:
        """Shows them; they are never recorded."""
        self._record.add(samples)
        self.feed.publish("samples", msgspec.json.encode(SamplesNews(samples.time_seconds, samples.round)))

    def own_event(self, event: Usage | PeersChanged) -> None:
        """Records what the supervisor saw itself, among the learner's events."""
        line = msgspec.json.encode(event)
        self._record.add(event)
        self._write_metrics(line)
        self.feed.publish(kind_of(event), line)

    def _write_metrics(self, line: bytes) -> None:
        failed_before = self._metrics.failure
        self._metrics.append(line + b"\n")
        if self._metrics.failure and self._metrics.failure != failed_before:
            self.note(self._metrics.failure)
