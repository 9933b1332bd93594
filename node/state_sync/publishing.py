"""Publishes our weights for peers of our family that join or return: an anchor rarely, lossless diffs often.

A state is published every ``every_rounds`` rounds while a peer of our family is there, and at the end of the first
round in which one is; without such a peer nothing is copied, written or kept. A state is an anchor and the diffs since.
If a diff would make the chain longer than ``CHAIN_SHARE`` of the anchor or than ``limits.STATE_DIFFS``, the state is
published as a new anchor, so that state sync never costs more than 1 + ``CHAIN_SHARE`` times the weights.

Guarantees: what is announced is what the policy held, rounded to bf16, at the end of a round; the weights are copied
then, and everything else happens on a separate thread. The base of the next diff advances only after a state was
announced. A failure is reported, and publishing is tried again later.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol

from torch import Tensor

from node.events import Event, Fault, StatePublished
from node.kernels.weight_diff_kernels import encode_diff_fast, patterns_of, weights_hash_fast
from node.policy.device_faults import detail_of, is_out_of_memory
from node.policy.weight_layout import layout_of
from node.state_sync.rebuild import bf16_copy
from protocol import limits
from protocol.errors import ProtocolError, StorageError, TransportError
from protocol.messages import StateAdvert, StateBlob, TaskSuccess
from protocol.weights.dense_weights import check_values, dense_bytes, dense_parts
from protocol.weights.tensor_layout import TensorLayout
from swarm.api import PeerStatus

CHAIN_SHARE: Final = 0.5
ROOM_SHARE: Final = 0.5  # of the content store; the most that our own state may take
LOOK_SECONDS: Final = 5.0  # between two looks for peers of the family
ABSENT_SECONDS: Final = 150.0  # a peer silent for this long counts as absent; heartbeats come every minute at least

Content = bytes | Sequence[bytes | memoryview]


class PublishingSwarm(Protocol):
    """The part of ``swarm.client.SwarmClient`` that publishing uses."""

    def peers(self) -> Sequence[PeerStatus]: ...
    def put(self, content: Content) -> bytes: ...
    def share_state(self, advert: StateAdvert) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class HeldState:
    """A published or adopted state, the base of the next diff."""

    advert: StateAdvert
    weights: Sequence[Tensor]  # bf16, never written to


@dataclass(frozen=True, slots=True)
class LearnerProgress:
    """The learner's counters and success, as a state announces them."""

    round: int
    policy_version: int
    outer_step: int
    tasks: tuple[TaskSuccess, ...]


def is_due(round_number: int, published_round: int | None, *, every_rounds: int, has_audience: bool) -> bool:
    """Returns whether the state after ``round_number`` rounds is to be published."""
    if not every_rounds or not has_audience:
        return False
    return published_round is None or round_number - published_round >= every_rounds


def family_peers(peers: Sequence[PeerStatus], family: bytes) -> int:
    """Returns how many peers of ``family`` sent a heartbeat in the last ``ABSENT_SECONDS``."""
    return sum(
        1
        for peer in peers
        if peer.heartbeat is not None
        and peer.heartbeat.family == family
        and peer.heartbeat_age_seconds is not None
        and peer.heartbeat_age_seconds <= ABSENT_SECONDS
    )


def fits_chain(advert: StateAdvert, diff_bytes: int) -> bool:
    """Returns whether a diff of this size may extend the chain; otherwise an anchor is due."""
    chain_bytes = sum(each.size for each in advert.diffs) + diff_bytes
    return len(advert.diffs) < limits.STATE_DIFFS and chain_bytes <= CHAIN_SHARE * advert.anchor.size


class StatePublisher:
    """Publishes one policy's states. All methods but ``close`` return at once; call them from one thread."""

    def __init__(
        self,
        swarm: PublishingSwarm,
        trained: Mapping[str, Tensor],
        *,
        family: bytes,
        every_rounds: int,
        store_bytes: int,
        report: Callable[[Event], None],
        clock: Callable[[], float],
        held: HeldState | None = None,
    ) -> None:
        """``held`` is the state that the policy was started from; it is announced again for later peers."""
        self._swarm, self._trained, self._family = swarm, trained, family
        self._layout: TensorLayout = layout_of(trained)
        self._every_rounds, self._room_bytes = every_rounds, ROOM_SHARE * store_bytes
        self._report, self._clock = report, clock
        self._held = held
        self._published_round: int | None = None
        self._version: int | None = held.advert.policy_version if held is not None else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="publishing")
        self._working: Future[None] | None = None
        self._looked_at_seconds = -math.inf
        self._has_audience = False
        self._reported: str | None = None

    def after_round(self, round_number: int, progressed: Callable[[], LearnerProgress]) -> None:
        """Publishes the present weights if that is due, unless the thread is still busy."""
        if not self._every_rounds or (self._working is not None and not self._working.done()):
            return
        if self._working is not None:
            self._working.result()  # raises what is a bug of ours
            self._working = None
        due = is_due(
            round_number, self._published_round, every_rounds=self._every_rounds, has_audience=self._has_audience
        )
        now = progressed() if due else None
        if now is not None and now.policy_version != self._version:
            copied = bf16_copy(self._layout, self._trained)
            self._working = self._thread.submit(self._guarded, lambda: self._publish(copied, now), round_number)
        elif not 0 <= self._clock() - self._looked_at_seconds < LOOK_SECONDS:
            self._looked_at_seconds = self._clock()
            self._working = self._thread.submit(self._guarded, self._look, round_number)

    def settle(self, limit_seconds: float) -> None:
        """Waits for the work under way."""
        if self._working is not None:
            self._working.result(limit_seconds)

    def close(self) -> None:
        """Ends the thread after its present work, without waiting for it."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _guarded(self, work: Callable[[], None], round_number: int) -> None:
        try:
            work()
            self._reported = None
        except (TransportError, StorageError, ProtocolError) as error:
            self._not_published(error.reason, str(error), round_number)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._not_published("memory", f"memory ran out: {detail_of(error)}", round_number)

    def _not_published(self, kind: str, because: str, round_number: int) -> None:
        if self._reported != kind:  # once, and again only after a success
            self._reported = kind
            detail = f"the weights were not published: {because}"
            self._report(Fault(time_seconds=self._clock(), kind=kind, detail=detail, round=round_number, fatal=False))

    def _look(self) -> None:
        self._has_audience = family_peers(self._swarm.peers(), self._family) > 0
        if self._held is not None and self._has_audience:
            # A swarm process that was restarted has forgotten it; otherwise this changes nothing.
            self._swarm.share_state(self._held.advert)

    def _publish(self, weights: list[Tensor], progressed: LearnerProgress) -> None:
        began = time.monotonic()
        arrays = patterns_of(weights)
        check_values(self._layout, arrays)
        target = weights_hash_fast(self._layout, weights)
        extended = self._extended(weights, target)
        if extended is None:
            size = dense_bytes(self._layout)
            if size > self._room_bytes:
                raise StorageError(
                    f"an anchor of {size} bytes is over half of swarm.store_bytes: raise that, or set "
                    "checkpoint.publish_every_rounds to 0"
                )
            extended = StateBlob(self._swarm.put(dense_parts(self._layout, arrays)), size, target), ()
        anchor, diffs = extended
        advert = StateAdvert(
            self._family,
            self._layout.digest,
            progressed.policy_version,
            progressed.outer_step,
            progressed.tasks,
            anchor,
            diffs,
        )
        self._swarm.share_state(advert)
        self._held, self._published_round, self._version = (
            HeldState(advert, weights),
            progressed.round,
            progressed.policy_version,
        )
        self._report(
            StatePublished(
                time_seconds=self._clock(),
                round=progressed.round,
                policy_version=progressed.policy_version,
                weights=target.hex(),
                kind="diff" if diffs else "anchor",
                size_bytes=advert.blobs[-1].size,
                diffs=len(diffs),
                seconds=time.monotonic() - began,
            )
        )

    def _extended(self, weights: list[Tensor], target: bytes) -> tuple[StateBlob, tuple[StateBlob, ...]] | None:
        """Returns the chain with one more diff, its blob in the store; None if an anchor is due."""
        held = self._held
        if held is None:
            return None
        if target == held.advert.target:
            return held.advert.anchor, held.advert.diffs
        diff = encode_diff_fast(self._layout, held.weights, weights, base_hash=held.advert.target, target_hash=target)
        if not fits_chain(held.advert, len(diff)):
            return None
        return held.advert.anchor, (*held.advert.diffs, StateBlob(self._swarm.put(diff), len(diff), target))
