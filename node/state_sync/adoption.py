"""Starts a policy from the weights of peers: look, choose, fetch from all that have them, verify, measure, keep.

Guarantees: the policy's weights are exactly those before or exactly the announced state, never anything between. An
announced state is kept only if its success, measured here, is no worse (``state_verdict.py``). A failure is reported,
and the same or another state is tried, until ``MAX_FAILED`` of them failed. ``adopt_best`` always returns, with the
reason reported. It waits at most ``patience_seconds`` while nothing usable is announced, and for a fetch as long as
bytes arrive. A partial fetch is resumed, also after a restart. A peer whose state does not lead to the announced
weights, or that claimed a success which they do not have, loses reputation.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Final, Protocol

from torch import Tensor

from node.events import Event, Stage, StateSyncing
from node.state_sync.publishing import HeldState, family_peers
from node.state_sync.rebuild import BadBlobError, copy_into, rebuild
from node.state_sync.state_choice import (
    AnnouncedState,
    Chain,
    StateRequirements,
    choose_state,
    next_search_move,
)
from node.state_sync.state_verdict import MeasuredSuccess, judge_state
from protocol.errors import StorageError, TransportError
from protocol.messages import CATCHING_UP, Heartbeat
from protocol.weights.tensor_layout import TensorLayout
from swarm.api import Fetched, Judgement, PeerStatus, SeenState, Wanted

LOOK_SECONDS: Final = 1.0
PROGRESS_SECONDS: Final = 2.0  # between two reports of progress
FETCH_SECONDS: Final = 3600.0  # of one attempt; the next one resumes
ATTEMPTS: Final = 3  # to fetch one state
MAX_FAILED: Final = 32  # states; each cost its bytes and a measurement
FETCHING: Final = "fetching weights"  # the heartbeat's phase during a fetch

FetchResult = list[Fetched]


class AdoptionSwarm(Protocol):
    """The part of ``swarm.client.SwarmClient`` that adopting a state uses."""

    def peers(self) -> Sequence[PeerStatus]: ...
    def states(self, family: bytes) -> Sequence[SeenState]: ...
    def fetch(self, wanted: Sequence[Wanted], *, deadline_seconds: float) -> FetchResult: ...
    def progress(self, blobs: Sequence[bytes]) -> Sequence[int]: ...
    def beat(self, heartbeat: Heartbeat) -> None: ...
    def judge(self, peer: str, blob: bytes, judgement: Judgement, detail: str = "") -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Timing:
    """Clocks and sleep, passed in so that tests need no real time."""

    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    poll_seconds: float = 0.5  # of real time, between two checks for a stop request during a fetch


class StateAdoption:
    """One attempt to start from peers. ``swarm`` answers at once; ``fetching`` is a separate client that waits."""

    def __init__(
        self,
        swarm: AdoptionSwarm,
        fetching: AdoptionSwarm,
        layout: TensorLayout,
        ours: StateRequirements,
        *,
        heartbeat: Callable[[str], Heartbeat],
        report: Callable[[Event], None],
        should_stop: Callable[[], str | None],
        measure: Callable[[], MeasuredSuccess],
        timing: Timing | None = None,
    ) -> None:
        """``heartbeat`` makes a heartbeat with the given phase; ``measure`` measures the policy's present weights."""
        self._swarm, self._fetching, self._layout, self._ours = swarm, fetching, layout, ours
        self._heartbeat, self._report, self._should_stop = heartbeat, report, should_stop
        self._measure, self._timing = measure, timing or Timing()
        self._measured_before: MeasuredSuccess | None = None  # of the weights that the node had; None: not measured yet
        self._family = heartbeat("").family
        self._attempts: Counter[Chain] = Counter()
        self._failed: set[Chain] = set()
        self._began = self._timing.clock()
        self._reported: tuple[str, str] | None = None

    def adopt_best(self, trained: Mapping[str, Tensor], *, patience_seconds: float) -> HeldState | None:
        """Returns the state that ``trained`` holds now; None, with nothing changed, if none could be adopted."""
        since, first_heard = self._began, None
        while True:
            because = self._should_stop()
            if because is not None:
                self._report_stage("given_up", f"the node is stopping: {because}")
                return None
            now = self._timing.clock()
            seen, family = self._look()
            if seen and first_heard is None:
                first_heard = now
            choice = choose_state(self._timing.wall_clock(), seen, self._ours, self._failed)
            heard_seconds = now - first_heard if first_heard is not None else None
            move = next_search_move(
                now - since, heard_seconds, choice, patience_seconds=patience_seconds, family_peers=family
            )
            if move.then == "stop":
                self._report_stage("given_up", move.because)
                return None
            if move.state is None:
                self._report_stage("looking", move.because)
                self._timing.sleep(LOOK_SECONDS)
                continue
            if len(self._failed) >= MAX_FAILED:
                self._report_stage("given_up", f"{len(self._failed)} announced states could not be kept")
                return None
            held = self._take(move.state, move.because, trained)
            if held is not None:
                return held
            self._timing.sleep(LOOK_SECONDS)
            since = self._timing.clock()

    def _look(self) -> tuple[Sequence[SeenState], int]:
        """Returns the announced states and the number of our family's peers; none while the swarm process is silent."""
        try:
            self._swarm.beat(self._heartbeat(CATCHING_UP))
            return self._swarm.states(self._family), family_peers(self._swarm.peers(), self._family)
        except TransportError as error:
            self._report_stage("looking", f"the swarm process does not answer yet: {error}")
            return (), 0

    def _take(self, state: AnnouncedState, because: str, trained: Mapping[str, Tensor]) -> HeldState | None:
        self._report_stage("fetching", because, state)
        failure, fetched = self._fetch(state)
        if failure is None:
            self._report_stage("verifying", f"{len(fetched)} blobs are here", state)
            failure, weights = self._rebuild(state, fetched)
            if weights is not None:
                failure = self._keep_if_good(state, trained, weights)
                if failure is None:
                    self._report_stage("done", because, state)
                    return HeldState(state.advert, weights)
        self._report_stage("failed", failure or "", state)
        self._attempts[state.advert.blobs] += 1
        if self._attempts[state.advert.blobs] == ATTEMPTS:
            self._failed.add(state.advert.blobs)
        return None

    def _rebuild(self, state: AnnouncedState, fetched: Sequence[Fetched]) -> tuple[str | None, list[Tensor] | None]:
        """Returns the reason for a failure, or the weights."""
        try:
            return None, rebuild(state.advert, fetched, self._layout)
        except StorageError as error:
            return str(error), None
        except BadBlobError as error:
            self._failed.add(state.advert.blobs)
            for peer in state.announcers:  # a peer that announces a chain is responsible for where it leads
                self._judge(peer, error.blob, Judgement.UNFIT_WEIGHTS, str(error))
            return str(error), None

    def _keep_if_good(
        self, state: AnnouncedState, trained: Mapping[str, Tensor], weights: Sequence[Tensor]
    ) -> str | None:
        """Puts ``weights`` in place, measures them and returns None; or puts back what was there and returns why."""
        self._report_stage("measuring", "the success of these weights on our own prompts", state)
        if self._measured_before is None:
            self._measured_before = self._measure()
        own = [trained[name].detach().to("cpu", copy=True) for name in self._layout.names]
        verdict = None
        try:
            copy_into(trained, self._layout, weights)
            verdict = judge_state(self._measured_before, self._measure(), state.claims)
        finally:
            if verdict is None or not verdict.keep:
                copy_into(trained, self._layout, own)
        for peer in verdict.false_claims:
            self._judge(peer, state.advert.anchor.blob, Judgement.FALSE_SUCCESS, verdict.because)
        if verdict.keep:
            return None
        self._failed.add(state.advert.blobs)
        return verdict.because

    def _judge(self, peer: str, blob: bytes, judgement: Judgement, detail: str) -> None:
        try:
            self._swarm.judge(peer, blob, judgement, detail)
        except TransportError as unsent:
            self._report_stage("failed", f"{peer} could not be judged: {unsent}")

    def _fetch(self, state: AnnouncedState) -> tuple[str | None, Sequence[Fetched]]:
        """Returns the reason for a failure, or the blobs in the order of use."""
        with ThreadPoolExecutor(1, thread_name_prefix="fetching") as thread:
            fetch = thread.submit(self._fetching.fetch, state.wanted, deadline_seconds=FETCH_SECONDS)
            stopped = self._watch(fetch, state)
            if stopped is not None:
                self._fetching.close()
                return f"the node is stopping: {stopped}; the bytes that are here are kept", []
            try:
                fetched = fetch.result()
            except (TransportError, StorageError) as error:
                return f"the swarm process could not fetch it: {error}", []
        missing = [each for each in fetched if not each.is_here]
        if missing:
            first = missing[0]
            return (
                f"{len(missing)} of {len(fetched)} blobs could not be fetched, {first.blob.hex()[:16]}: {first.reason}",
                [],
            )
        return None, fetched

    def _watch(self, fetch: Future[FetchResult], state: AnnouncedState) -> str | None:
        """Reports progress until the fetch ends and returns None; returns the reason early if the node is stopping."""
        blobs = [each.blob for each in state.wanted]
        reported_at = self._timing.clock()
        while True:
            try:
                fetch.exception(timeout=self._timing.poll_seconds)
                return None
            except FutureTimeoutError:
                pass
            because = self._should_stop()
            if because is not None:
                return because
            if self._timing.clock() - reported_at < PROGRESS_SECONDS:
                continue
            reported_at = self._timing.clock()
            try:
                here_bytes = sum(self._swarm.progress(blobs))
                self._swarm.beat(self._heartbeat(FETCHING))
            except TransportError:
                continue  # the fetch itself reports the swarm process's failure
            self._report_stage("fetching", f"{here_bytes} of {state.size_bytes} bytes", state, here_bytes)

    def _report_stage(
        self, stage: Stage, because: str, state: AnnouncedState | None = None, here_bytes: int = 0
    ) -> None:
        """Reports a stage and its reason, unless they were reported last."""
        if (stage, because) == self._reported:
            return
        self._reported = (stage, because)
        self._report(
            StateSyncing(
                time_seconds=self._timing.wall_clock(),
                stage=stage,
                because=because,
                seconds=self._timing.clock() - self._began,
                here_bytes=here_bytes,
                total_bytes=state.size_bytes if state is not None else 0,
                holders=len(state.holders) if state is not None else 0,
                weights=state.advert.target.hex() if state is not None else None,
                policy_version=state.advert.policy_version if state is not None else None,
            )
        )
