"""This node's replica among those of its family: offers its weights now and then, and averages them with a partner's.

    end of a round     θ_offered ← θ, a copy; a thread of its own looks for a partner j, and j's blob comes
    rounds go on       θ learns; φ', … ← the rule's outer step (``rules``) on θ_offered and the blob, on that thread
    end of a round     θ ← φ' + (θ − θ_offered)

so that learning never waits for an exchange, and nothing that was learnt during one is lost.

Guarantees: the weights and the state of averaging (φ, and momentum or residual) change together, at the end of a round
and once all of the step has been computed, or not at all; an exchange that fails, or that the process does not live to
see, leaves no trace in them. What a partner sent is decoded again here, whatever was checked before. The moments of the
optimizer stay as they are.

When to offer. A random number of rounds after the weights of the last outer step were offered, H = ``every_rounds`` on
average. Where no partner is found although the family is there, newer weights are offered at once: whoever is due waits
for the next one to be, however long their rounds are. Were the interval the same every time, two who met once would be
due together from then on, and a family would fall apart into fixed pairs. Where nobody of the family is connected, or
something failed, after such an interval again.

From where to step. Before the first outer step, and after more than ``Constants.stretch`` periods without one, afresh
from θ as offered, with no momentum and no residual: the step is then towards the partner alone. NoLoCo begins with
φ = θ at the start instead; a node that had trained for long before it met its like would lose 1 − η of all that it had
learnt, or with the compressed rule what an update has no room for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

import numpy as np
import torch

from node.averaging import noloco
from node.averaging.noloco import Weights
from node.averaging.rules import RELEASED, Rule, State
from node.configuration import AveragingSection
from node.events import Averaged, Event, Fault
from node.learner.optimizer import MasterAdamW
from node.learner.persistence import LearnerState
from protocol.errors import ProtocolError, StorageError, TransportError
from protocol.weights.tensor_layout import TensorLayout
from swarm import api

NOBODY: Final = "no peer of the family is connected"

log = logging.getLogger(__name__)


class AveragingSwarm(Protocol):
    """What is used of ``swarm.client.SwarmClient``."""

    def peers(self) -> Sequence[api.PeerStatus]: ...
    def average(
        self,
        blob: bytes | Sequence[bytes | memoryview],
        family: bytes,
        layout: TensorLayout,
        encoding: str,
        step: int,
        *,
        deadline_seconds: float,
    ) -> api.AverageReply: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Offered:
    """Our weights as they were when the search began, in main memory."""

    round: int
    weights: Weights  # float32
    before: State | None  # after the last outer step
    afresh: bool  # that was too long ago
    random: Random


@dataclass(frozen=True, slots=True, eq=False)
class Came:
    """What came of an offer; with ``after`` an outer step is to be applied."""

    offered: Offered
    because: str
    again_at_once: bool = False
    partner: str | None = None
    after: State | None = None
    weight: float | None = None
    distance: float | None = None
    sent_bytes: int = 0
    received_bytes: int = 0
    fault: tuple[str, str] | None = None  # kind, detail


class WeightAverager:
    """One thread and what it does; all methods are called from the learner's thread, and none but ``settle`` waits."""

    def __init__(
        self,
        swarm: AveragingSwarm,
        optimizer: MasterAdamW,
        family: bytes,
        section: AveragingSection,
        rule: Rule,
        *,
        report: Callable[[Event], None],
        clock: Callable[[], float],
        random: Random,
    ) -> None:
        """``swarm`` is used by the thread alone; ``section.every_rounds`` is above 0; ``clock`` gives Unix time;
        ``random`` is no other node's."""
        self._swarm, self._optimizer, self._family, self._section = swarm, optimizer, family, section
        self._rule, self._report, self._clock, self._random = rule, report, clock, random
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="averaging")
        self._coming: Future[Came] | None = None
        self._offered_at_seconds = 0.0
        self._due_round: int | None = None
        self._sent_bytes = self._received_bytes = 0  # since this process began

    def after_round(self, state: LearnerState) -> bool:
        """Applies the outer step that an exchange brought, offers weights if it is time; whether weights changed."""
        changed = False
        if self._coming is not None and self._coming.done():
            came, self._coming = self._coming.result(), None
            changed = self._conclude(came, state)
        if self._due_round is None:
            self._due_round = state.outer_round + interval(self._section.every_rounds, self._random)
        if self._coming is None and state.round >= self._due_round:
            self._offer(state)
        return changed

    def settle(self, limit_seconds: float) -> None:
        """Waits until the exchange under way is over, for at most ``limit_seconds``."""
        if self._coming is not None:
            wait([self._coming], timeout=limit_seconds)

    def close(self) -> None:
        """Abandons an exchange under way and ends the thread, without waiting for it."""
        self._swarm.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _offer(self, state: LearnerState) -> None:
        weights = {name: w.to("cpu", torch.float32, copy=True) for name, w in self._optimizer.masters().items()}
        afresh = state.round - state.outer_round > RELEASED.stretch * self._section.every_rounds
        offered = Offered(state.round, weights, state.outer, afresh, Random(self._random.getrandbits(64)))
        self._offered_at_seconds = self._clock()
        self._coming = self._thread.submit(self._exchange, offered)

    def _conclude(self, came: Came, state: LearnerState) -> bool:
        """The only place where an exchange changes anything."""
        rounds = interval(self._section.every_rounds, self._random)
        if came.after is not None:
            moved = noloco.overlapped(self._optimizer.masters(), came.offered.weights, came.after.outer)
            self._optimizer.put(moved)
            state.outer, state.outer_round = came.after, came.offered.round
            self._due_round = came.offered.round + rounds
        else:
            self._due_round = state.round if came.again_at_once else state.round + rounds
        self._sent_bytes += came.sent_bytes
        self._received_bytes += came.received_bytes
        self._tell(came, state)
        return came.after is not None

    def _tell(self, came: Came, state: LearnerState) -> None:
        now_seconds = self._clock()
        if came.fault is not None:
            kind, detail = came.fault
            self._report(Fault(time_seconds=now_seconds, kind=kind, detail=detail, round=state.round, fatal=False))
        self._report(
            Averaged(
                time_seconds=now_seconds,
                round=state.round,
                partner=came.partner,
                because=came.because,
                encoding=self._rule.encoding,
                seconds=now_seconds - self._offered_at_seconds,
                rounds_between=state.round - came.offered.round,
                sent_bytes=came.sent_bytes,
                received_bytes=came.received_bytes,
                weight=came.weight,
                distance=came.distance,
                outer_steps=state.outer.steps if state.outer is not None else 0,
                sent_bytes_total=self._sent_bytes,
                received_bytes_total=self._received_bytes,
            )
        )

    # On the thread

    def _exchange(self, offered: Offered) -> Came:
        try:
            if not self._family_is_here():
                return Came(offered, NOBODY)
            return self._with_partner(offered)
        except TransportError as error:  # the swarm process is gone; the round's own exchange tells it as a fault
            return Came(offered, str(error))
        except (ProtocolError, StorageError) as error:
            log.warning("averaging came to nothing: %s", error)
            return Came(offered, str(error), fault=(error.reason, f"averaging: {error}"))

    def _family_is_here(self) -> bool:
        beats = [peer.heartbeat for peer in self._swarm.peers() if peer.connected]
        return any(beat is not None and beat.family == self._family for beat in beats)

    def _with_partner(self, offered: Offered) -> Came:
        offering = self._rule.offer(offered.weights, offered.before, afresh=offered.afresh, random=offered.random)
        found = self._swarm.average(
            offering.content,
            self._family,
            TensorLayout.of({name: tensor.shape for name, tensor in offered.weights.items()}),
            self._rule.encoding,
            offered.before.steps if offered.before is not None else 0,
            deadline_seconds=self._section.partner_seconds,
        )
        if found.path is None or found.theirs is None:
            return Came(offered, found.because, again_at_once=True)
        averaged = offering.averaged(_content(found.path), found.weight)
        return Came(
            offered,
            found.because,
            partner=found.partner,
            after=averaged.state,
            weight=found.weight,
            distance=averaged.distance,
            sent_bytes=offering.size_bytes,
            received_bytes=found.theirs.size,
        )


def interval(every_rounds: int, random: Random) -> int:
    """Rounds from one offer to the next: at least one, from a half to one and a half times ``every_rounds``."""
    half = every_rounds // 2
    return random.randint(every_rounds - half, every_rounds + half)


def _content(path: str) -> memoryview:
    try:
        return np.memmap(path, np.uint8, mode="r").data
    except (OSError, ValueError) as error:  # ValueError: it is empty
        raise StorageError(f"the partner's weights are not in the store any more: {error}") from error
