"""Starts a policy from the weights of peers: look, choose, fetch from all who have them, verify, adopt.

Guarantees: the policy's weights are exactly what they were, or exactly the announced state, never anything between;
what fails is told and tried again, or another state is; whatever happens, ``join`` ends, with the reason. It waits for
at most ``patience_seconds`` while nothing usable is announced, and as long as bytes come for a fetch. What was fetched
in part is resumed, after a restart too. A peer whose state does not lead where it says loses reputation for it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from torch import Tensor

from node.events import Event, Stage, StateSyncing
from node.state_sync.publishing import Held, family_peers
from node.state_sync.rebuild import BadBlobError, adopt, rebuild
from node.state_sync.state_choice import AnnouncedState, Chain, Ours, StopLooking, Take, Wait, choose, next_move
from protocol.errors import StorageError, TransportError
from protocol.messages import CATCHING_UP, Heartbeat
from protocol.weights.tensor_layout import TensorLayout
from swarm.api import Fetched, Judgement, PeerStatus, SeenState, Wanted

LOOK_SECONDS: Final = 1.0
TELL_SECONDS: Final = 2.0  # between two words about progress
FETCH_SECONDS: Final = 3600.0  # of one attempt; the next one resumes
ATTEMPTS: Final = 3  # to fetch one state
FETCHING: Final = "fetching weights"  # phase of the heartbeat meanwhile

FetchResult = list[Fetched]


class JoiningSwarm(Protocol):
    """What is used of ``swarm.client.SwarmClient``."""

    def peers(self) -> Sequence[PeerStatus]: ...
    def states(self, family: bytes) -> Sequence[SeenState]: ...
    def fetch(self, wanted: Sequence[Wanted], *, deadline_seconds: float) -> FetchResult: ...
    def progress(self, blobs: Sequence[bytes]) -> Sequence[int]: ...
    def beat(self, heartbeat: Heartbeat) -> None: ...
    def judge(self, peer: str, blob: bytes, judgement: Judgement, detail: str = "") -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Waiting:
    """How time passes: passed in, so that tests need none."""

    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    poll_seconds: float = 0.5  # of real time, in which a request to end is noticed during a fetch


class Joining:
    """One attempt to start from peers. ``swarm`` answers at once; ``fetching`` is a client of its own that waits."""

    def __init__(
        self,
        swarm: JoiningSwarm,
        fetching: JoiningSwarm,
        layout: TensorLayout,
        ours: Ours,
        *,
        heartbeat: Callable[[str], Heartbeat],
        report: Callable[[Event], None],
        should_stop: Callable[[], str | None],
        waiting: Waiting | None = None,
    ) -> None:
        """``heartbeat`` makes one of a phase."""
        self._swarm, self._fetching, self._layout, self._ours = swarm, fetching, layout, ours
        self._heartbeat, self._report, self._should_stop = heartbeat, report, should_stop
        self._waiting = waiting or Waiting()
        self._family = heartbeat("").family
        self._attempts: Counter[Chain] = Counter()
        self._failed: set[Chain] = set()
        self._began = self._waiting.clock()
        self._told: tuple[str, str] | None = None

    def join(self, trained: Mapping[str, Tensor], *, patience_seconds: float) -> Held | None:
        """The state that ``trained`` holds now; None, and nothing changed, if there was none to be had."""
        since, first_heard = self._began, None
        while True:
            because = self._should_stop()
            if because is not None:
                self._tell("given_up", f"the node is to end: {because}")
                return None
            now = self._waiting.clock()
            seen, family = self._look()
            if seen and first_heard is None:
                first_heard = now
            choice = choose(self._waiting.wall_clock(), seen, self._ours, self._failed)
            heard_seconds = now - first_heard if first_heard is not None else None
            move = next_move(now - since, heard_seconds, choice, patience_seconds=patience_seconds, family_peers=family)
            match move:
                case StopLooking(because):
                    self._tell("given_up", because)
                    return None
                case Wait(because):
                    self._tell("looking", because)
                    self._waiting.sleep(LOOK_SECONDS)
                case Take(state, because):
                    held = self._take(state, because, trained)
                    if held is not None:
                        return held
                    self._waiting.sleep(LOOK_SECONDS)
                    since = self._waiting.clock()

    def _look(self) -> tuple[Sequence[SeenState], int]:
        """States announced, and how many peers of our family are there; nothing while the swarm process is silent."""
        try:
            self._swarm.beat(self._heartbeat(CATCHING_UP))
            return self._swarm.states(self._family), family_peers(self._swarm.peers(), self._family)
        except TransportError as error:
            self._tell("looking", f"the swarm process does not answer yet: {error}")
            return (), 0

    def _take(self, state: AnnouncedState, because: str, trained: Mapping[str, Tensor]) -> Held | None:
        self._tell("fetching", because, state)
        failure, paths = self._fetch(state)
        if failure is None:
            self._tell("verifying", f"{len(paths)} blobs are here", state)
            failure, weights = self._rebuild(state, paths)
            if weights is not None:
                adopt(self._layout, weights, trained)
                self._tell("done", because, state)
                return Held(state.advert, weights)
        self._tell("failed", failure or "", state)
        self._attempts[state.advert.blobs] += 1
        if self._attempts[state.advert.blobs] == ATTEMPTS:
            self._failed.add(state.advert.blobs)
        return None

    def _rebuild(self, state: AnnouncedState, paths: Sequence[Path]) -> tuple[str | None, list[Tensor] | None]:
        """Why not, or the weights."""
        try:
            return None, rebuild(state.advert, paths, self._layout)
        except StorageError as error:
            return str(error), None
        except BadBlobError as error:
            self._failed.add(state.advert.blobs)
            for peer in state.announcers:  # whoever announces a chain vouches for where it leads
                self._judge(peer, error)
            return str(error), None

    def _judge(self, peer: str, error: BadBlobError) -> None:
        try:
            self._swarm.judge(peer, error.blob, Judgement.UNFIT_WEIGHTS, str(error))
        except TransportError as unheard:
            self._tell("failed", f"{peer} could not be judged: {unheard}")

    def _fetch(self, state: AnnouncedState) -> tuple[str | None, list[Path]]:
        """Why not, or the files in the order of use."""
        with ThreadPoolExecutor(1, thread_name_prefix="fetching") as thread:
            fetch = thread.submit(self._fetching.fetch, state.wanted, deadline_seconds=FETCH_SECONDS)
            stopped = self._watch(fetch, state)
            if stopped is not None:
                self._fetching.close()
                return f"the node is to end: {stopped}; what is here is kept", []
            try:
                fetched = fetch.result()
            except (TransportError, StorageError) as error:
                return f"the swarm process did not bring it: {error}", []
        missing = [each for each in fetched if each.path is None]
        if missing:
            first = missing[0]
            return f"{len(missing)} of {len(fetched)} blobs not had, {first.blob.hex()[:16]}: {first.reason}", []
        return None, [Path(each.path) for each in fetched if each.path is not None]

    def _watch(self, fetch: Future[FetchResult], state: AnnouncedState) -> str | None:
        """Tells of progress until the fetch has ended; why it is not waited for, if the node is to end."""
        blobs = [each.blob for each in state.wanted]
        told_at = self._waiting.clock()
        while True:
            try:
                fetch.exception(timeout=self._waiting.poll_seconds)
                return None
            except FutureTimeoutError:
                pass
            because = self._should_stop()
            if because is not None:
                return because
            if self._waiting.clock() - told_at < TELL_SECONDS:
                continue
            told_at = self._waiting.clock()
            try:
                here_bytes = sum(self._swarm.progress(blobs))
                self._swarm.beat(self._heartbeat(FETCHING))
            except TransportError:
                continue  # the fetch itself tells what became of the swarm process
            self._tell("fetching", f"{here_bytes} of {state.size_bytes} bytes", state, here_bytes)

    def _tell(self, stage: Stage, because: str, state: AnnouncedState | None = None, here_bytes: int = 0) -> None:
        """Says what is new."""
        if (stage, because) == self._told:
            return
        self._told = (stage, because)
        self._report(
            StateSyncing(
                time_seconds=self._waiting.wall_clock(),
                stage=stage,
                because=because,
                seconds=self._waiting.clock() - self._began,
                here_bytes=here_bytes,
                total_bytes=state.size_bytes if state is not None else 0,
                holders=len(state.holders) if state is not None else 0,
                weights=state.advert.target.hex() if state is not None else None,
                policy_version=state.advert.policy_version if state is not None else None,
            )
        )
