"""One donor while it is connected: a thread that gives it the newest weights and the jobs that it samples."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from node.engines.donors.donor_weights import DonorWeights
from node.engines.process.channel import Channel
from node.engines.process.remote_engine import ModelExpected, Patience, RemoteEngine
from node.engines.resumption import Reached
from node.engines.turns import RunningConversations
from protocol.errors import EngineLostError, StarlingError
from protocol.streams.engine_batches import Sampled, SamplingBatch

log = logging.getLogger(__name__)

DONOR_PATIENCE: Final = Patience(
    start=1800.0,  # a model may come from the hub first
    answer=20.0,
    poll_asked=0.5,  # a look costs both machines and the swarm processes between them
    load_bytes_a_second=50e3,  # what the link and its buffers still hold when the last part was handed over
)


@dataclass(eq=False, slots=True)
class Job:
    """What a donor is to sample, from the weights of ``version``, and its results, which the donor's thread writes."""

    batch: SamplingBatch
    version: int
    # begins its conversations; None where it has none, or each action is a completion
    conversations: Callable[[], RunningConversations] | None = None
    stop: threading.Event = field(default_factory=threading.Event)  # ends it after the next poll
    done: threading.Event = field(default_factory=threading.Event)
    complete: int = 0  # groups
    sampled: list[Sampled] | None = None  # None also where the donor is lost
    reached: Reached = field(default_factory=dict)  # by conversations, before ``sampled``
    setup_seconds: float = 0.0  # until it had the newest weights
    seconds: float = 0.0  # of sampling


class Donor:
    """``connect`` takes the donor's stream; it is called on the donor's own thread, as is everything that waits."""

    def __init__(
        self,
        peer: str,
        name: str,
        connect: Callable[[], Channel],
        expected: ModelExpected,
        weights: DonorWeights,
        *,
        patience: Patience = DONOR_PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.peer, self.name = peer, name
        self._connect, self._expected, self._weights = connect, expected, weights
        self._patience, self._clock = patience, clock
        self._changed = threading.Condition()
        self._job: Job | None = None
        self._closed = False
        self._channel: Channel | None = None
        self._held: bytes | None = None  # hash of its weights
        self._held_version: int | None = None  # once it was loaded in this session
        self._fewer_rows = 1
        self.converses = False  # known once it is ready
        self.lost_because: str | None = None
        self._thread = threading.Thread(target=self._run, name=f"donor {peer[-5:]}", daemon=True)
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        """Whether it can be given a job: it is connected, idle, and at most a few diffs behind."""
        with self._changed:
            return self._held_version is not None and self._job is None and self.lost_because is None

    @property
    def is_lost(self) -> bool:
        return self.lost_because is not None

    def weights_changed(self) -> None:
        """Lets it fetch the newest weights, if it is idle."""
        with self._changed:
            self._changed.notify_all()

    def begin(self, job: Job) -> None:
        """Hands it a job. If the donor can no longer do it, the job is done at once, without samples."""
        with self._changed:
            if self.lost_because is not None:
                job.done.set()
                return
            self._job = job
            self._changed.notify_all()

    def close(self, because: str = "closed") -> None:
        """Ends its session; a job under way ends without samples. Returns at once."""
        with self._changed:
            self._closed = True
            self.lost_because = self.lost_because or because
            channel = self._channel
            self._changed.notify_all()
        if channel is not None:
            channel.close()

    def _run(self) -> None:
        try:
            remote = self._greeted()
            self.converses = remote.converses
            while True:
                job = self._next()
                if self._closed:
                    return
                began = self._clock()
                self._bring_up_to_date(remote)
                if job is not None:
                    job.setup_seconds = self._clock() - began
                    self._sample(remote, job)
        except (StarlingError, OSError, ValueError, MemoryError) as error:
            self.close(str(error))
            log.warning("donor %s is lost: %s", self.peer, error)
        finally:
            self.close()
            with self._changed:
                if self._job is not None:
                    self._job.done.set()

    def _greeted(self) -> RemoteEngine:
        channel = self._connect()
        with self._changed:
            self._channel = channel
            if self._closed:
                channel.close()
        remote = RemoteEngine(channel, self._expected, self._patience, files=None, clock=self._clock)
        self._held = remote.health(measure=True).weights
        return remote

    def _next(self) -> Job | None:
        """Waits for something to do; returns None where that is new weights alone, or the end."""
        with self._changed:
            while not self._closed and self._job is None and self._is_up_to_date():
                self._changed.wait()
            return self._job

    def _is_up_to_date(self) -> bool:
        newest = self._weights.version
        return newest is None or newest == self._held_version

    def _bring_up_to_date(self, remote: RemoteEngine) -> None:
        if self._is_up_to_date():
            return
        for update in self._weights.updates_from(self._held, is_loaded=self._held_version is not None):
            remote.load(update.version, update.weights)
            self._held = update.weights.target
            with self._changed:
                self._held_version = update.version

    def _sample(self, remote: RemoteEngine, job: Job) -> None:
        began = self._clock()

        def enough(complete: int) -> bool:
            job.complete = max(job.complete, complete)
            return job.stop.is_set()

        while True:
            rows = max(1, job.batch.rows // self._fewer_rows)
            conversations = None if job.conversations is None else job.conversations()
            try:
                sampled = remote.sample(replace(job.batch, rows=rows), enough, conversations=conversations)
                break
            except MemoryError:
                if rows == 1:
                    raise EngineLostError("its memory does not suffice for one sequence", "memory") from None
                self._fewer_rows *= 2
        if conversations is not None:
            job.reached = conversations.reached
        job.seconds = self._clock() - began
        job.sampled = sampled
        with self._changed:
            self._job = None
        job.done.set()
