"""Averages this node's weights with those of a partner of its family, now and then, while learning continues.

    end of a round     θ_offered ← θ, a copy; a separate thread looks for a partner j and receives j's blob
    later rounds       θ learns; φ', … ← the rule's outer step (``rules``) on θ_offered and the blob, on that thread
    end of a round     θ ← φ' + (θ − θ_offered); compressed, also plus what no update has sent yet

so that learning never waits for an exchange, and nothing that was learnt during one is lost.

Guarantees: the weights and the state of averaging (φ, and momentum or residual) change together, at the end of a round
and after the whole step has been computed, or not at all; an exchange that fails, or that the process does not outlive,
leaves no trace in them. What a partner sent is decoded again here, whatever was checked before. The moments of the
optimizer do not change.

Whether it was good. A step is on trial for the next rounds (``guard``, ``trial``): where own success fell by more than
noise explains, the weights from before it are put back, to the bit, before the round learns anything; outer momentum
and residual begin afresh from there; and the partner is not averaged with for a while. Until the first round has been
compared, no weights are offered to others. In the first round after a step, moments have not moved either; later ones
keep what up to four rounds of gradients made of them.

When to offer. A random number of rounds after the weights of the last outer step were offered, H = ``every_rounds`` on
average. If the family is connected but no partner is found, newer weights are offered at once: a node that is due waits
for the next node to become due, however long the other's rounds are. The number is random so that a family does not
split into fixed pairs. If no peer of the family is connected, or something failed, the next offer comes after another
such interval.

Where to step from. Before the first outer step, and after more than ``NolocoConstants.stretch`` periods without one,
from the offered θ itself, without momentum and residual: the step is then towards the partner only. NoLoCo begins with
φ = θ at the start instead. The compressed rule undoes nothing that was learnt, and goes on from any φ.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from random import Random
from typing import Final, Protocol

import msgspec
import numpy as np

from node.averaging import noloco
from node.averaging.guard import OwnGroup, StepTrial
from node.averaging.noloco import Weights, copied
from node.averaging.rules import RELEASED, AveragingRule, State, moved
from node.configuration import AveragingSection
from node.events import Averaged, AveragingTakenBack, Event, Fault
from node.learner.state.learner_state import LearnerState
from node.learner.steps.optimizer import MasterAdamW
from node.policy.device_faults import detail_of, is_out_of_memory
from node.policy.weight_layout import layout_of
from protocol.errors import ProtocolError, StorageError, TransportError
from swarm import api
from swarm.averaging.norm_history import FamilyPast
from swarm.averaging.weights_offer import WeightsOffer

NO_PEER: Final = "no peer of the family is connected"
log = logging.getLogger(__name__)


class AveragingSwarm(Protocol):
    """The part of ``swarm.client.SwarmClient`` that averaging uses."""

    def peers(self) -> Sequence[api.PeerStatus]: ...
    def average(self, ours: WeightsOffer, *, deadline_seconds: float) -> api.AverageReply: ...
    def judge(self, peer: str, blob: bytes, judgement: api.Judgement, detail: str = "") -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class OfferedWeights:
    """Our weights when the search for a partner began, in main memory."""

    round: int
    weights: Weights  # float32
    before: State | None  # after the last outer step
    afresh: bool  # the last outer step was too long ago to continue from
    random: Random
    since: Weights  # of the last outer step, or of this process's start: what was learnt is measured from there
    known: api.KnownPartners


@dataclass(frozen=True, slots=True, eq=False)
class AveragingResult:
    """The result of an offer; if ``after`` is not None, an outer step is to be applied."""

    offered: OfferedWeights
    because: str
    again_at_once: bool = False
    partner: str | None = None
    blob: bytes = b""  # of the partner's weights
    after: State | None = None
    past: FamilyPast | None = None  # of distances, with this search
    learnt: float = 0.0  # since the last outer step
    weight: float | None = None
    distance: float | None = None
    sent_bytes: int = 0
    received_bytes: int = 0
    fault: tuple[str, str] | None = None  # kind, detail


class WeightAverager:
    """Runs exchanges on a thread of its own. Call all methods from the learner's thread; only ``settle`` waits."""

    def __init__(
        self,
        swarm: AveragingSwarm,
        optimizer: MasterAdamW,
        family: bytes,
        section: AveragingSection,
        rule: AveragingRule,
        *,
        report: Callable[[Event], None],
        clock: Callable[[], float],
        random: Random,
    ) -> None:
        """Only the thread uses ``swarm``; ``section.every_rounds`` is above 0; ``clock`` returns Unix time; ``random``
        must differ from other nodes'."""
        self._swarm, self._optimizer, self._family, self._section = swarm, optimizer, family, section
        self._rule, self._report, self._clock, self._random = rule, report, clock, random
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="averaging")
        self._pending: Future[AveragingResult] | None = None
        self._void: Future[AveragingResult] | None = None  # the exchange of weights that were taken back meanwhile
        # What is learnt before the first outer step is measured from here.
        self._began: Weights | None = copied(optimizer.masters())
        self._offered_at_seconds = 0.0
        self._due_round: int | None = None
        self._sent_bytes = self._received_bytes = 0  # since this process began

    def after_round(self, state: LearnerState) -> bool:
        """Applies the outer step of a finished exchange, and offers weights if due. Returns whether weights changed.

        A call that runs out of memory may be repeated, now or after a later round: what is not done yet is done then.
        """
        changed = False
        if self._pending is not None and self._pending.done():
            result = self._pending.result()
            if self._pending is self._void:
                result = replace(result, partner=None, after=None, because="the weights offered were taken back")
            changed = self._conclude(result, state)
            self._pending = None
        if self._due_round is None:
            self._due_round = state.outer_round + interval(self._section.every_rounds, self._random)
        on_trial = state.averaging.trial
        unseen = on_trial is not None and on_trial.rounds == 0
        if self._pending is None and state.round >= self._due_round and not unseen:
            self._offer(state)
        return changed

    def take_back_if_harmful(self, state: LearnerState, groups: Sequence[OwnGroup]) -> bool:
        """Takes a round's own groups, scored; puts the weights from before the last outer step back if they show that
        it did harm, and returns whether that was so. To be called before the round learns."""
        harm = state.averaging.observe(groups)
        if harm is None:
            return False
        assert state.averaging.trial is not None
        steps = state.outer.steps if state.outer is not None else 0
        outer = noloco.begin(state.averaging.trial.before, steps=steps)  # from here on nothing is allocated
        ended = state.averaging.failed(state.policy_version + 1)
        self._optimizer.put(ended.before)
        state.outer, state.outer_round = outer, state.round
        self._void = self._pending
        because = harm.in_words()
        self._thread.submit(self._report_harm, ended, because)
        self._report(
            AveragingTakenBack(
                time_seconds=self._clock(),
                round=state.round + 1,
                partner=ended.partner,
                because=because,
                averaged_round=ended.round,
                success_before=harm.before,
                success_change=harm.change,
                groups=harm.groups,
            )
        )
        return True

    def settle(self, limit_seconds: float) -> None:
        """Waits until the exchange under way has ended, at most ``limit_seconds``."""
        if self._pending is not None:
            wait([self._pending], timeout=limit_seconds)

    def close(self) -> None:
        """Abandons an exchange under way and ends the thread without waiting for it."""
        self._swarm.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _offer(self, state: LearnerState) -> None:
        weights = copied(self._optimizer.masters())
        afresh = state.round - state.outer_round > RELEASED.stretch * self._section.every_rounds
        if state.outer is not None:
            self._began = None
        since = state.outer.outer if state.outer is not None else self._began or weights
        known = state.averaging.known(state.policy_version)
        random = Random(self._random.getrandbits(64))
        offered = OfferedWeights(state.round, weights, state.outer, afresh, random, since, known)
        self._offered_at_seconds = self._clock()
        self._pending = self._thread.submit(self._exchange, offered)

    def _conclude(self, result: AveragingResult, state: LearnerState) -> bool:
        """Applies a result; nowhere else does an exchange change anything."""
        weights = on_trial = None
        if result.after is not None and result.partner is not None:
            masters = self._optimizer.masters()
            weights = moved(masters, result.offered.weights, result.after)
            on_trial = StepTrial(
                partner=result.partner,
                blob=result.blob,
                round=state.round,
                version=state.policy_version + 1,
                before=copied(masters),
                past=state.averaging.past,
            )
        rounds = interval(self._section.every_rounds, self._random)  # drawn once: from here on nothing is allocated
        if result.past is not None:
            state.averaging.past = result.past
        if result.after is not None and weights is not None and on_trial is not None:
            self._optimizer.put(weights)
            state.averaging.began(on_trial)
            state.averaging.learnt += result.learnt
            state.outer, state.outer_round = result.after, result.offered.round
            self._due_round = result.offered.round + rounds
        else:
            self._due_round = state.round if result.again_at_once else state.round + rounds
        self._sent_bytes += result.sent_bytes
        self._received_bytes += result.received_bytes
        self._report_result(result, state)
        return on_trial is not None

    def _report_result(self, result: AveragingResult, state: LearnerState) -> None:
        now_seconds = self._clock()
        if result.fault is not None:
            kind, detail = result.fault
            self._report(Fault(time_seconds=now_seconds, kind=kind, detail=detail, round=state.round, fatal=False))
        self._report(
            Averaged(
                time_seconds=now_seconds,
                round=state.round,
                partner=result.partner,
                because=result.because,
                encoding=self._rule.encoding,
                seconds=now_seconds - self._offered_at_seconds,
                rounds_between=state.round - result.offered.round,
                sent_bytes=result.sent_bytes,
                received_bytes=result.received_bytes,
                weight=result.weight,
                distance=result.distance,
                outer_steps=state.outer.steps if state.outer is not None else 0,
                sent_bytes_total=self._sent_bytes,
                received_bytes_total=self._received_bytes,
            )
        )

    # On the thread

    def _report_harm(self, ended: StepTrial, because: str) -> None:
        try:
            self._swarm.judge(ended.partner, ended.blob, api.Judgement.HARMFUL_WEIGHTS, because)
        except (TransportError, ProtocolError) as error:
            log.warning("cannot report that weights of %s did harm: %s", ended.partner, error)

    def _exchange(self, offered: OfferedWeights) -> AveragingResult:
        try:
            if not self._family_is_here():
                return AveragingResult(offered, NO_PEER)
            return self._with_partner(offered)
        except TransportError as error:  # the swarm process is gone; the round's own exchange reports the fault
            return AveragingResult(offered, str(error))
        except (ProtocolError, StorageError) as error:
            log.warning("averaging failed: %s", error)
            return AveragingResult(offered, str(error), fault=(error.reason, f"averaging: {error}"))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            because = f"memory ran out: {detail_of(error)}"
            return AveragingResult(offered, because, fault=("memory", f"averaging: {because}"))

    def _family_is_here(self) -> bool:
        beats = [peer.heartbeat for peer in self._swarm.peers() if peer.connected]
        return any(beat is not None and beat.family == self._family for beat in beats)

    def _with_partner(self, offered: OfferedWeights) -> AveragingResult:
        offering = self._rule.offer(offered.weights, offered.before, afresh=offered.afresh, random=offered.random)
        learnt = offering.learnt(offered.since)
        known = msgspec.structs.replace(offered.known, learnt=offered.known.learnt + learnt)
        steps = offered.before.steps if offered.before is not None else 0
        layout = layout_of(offered.weights)
        ours = WeightsOffer(offering.content, self._family, layout, self._rule.encoding, steps, known)
        found = self._swarm.average(ours, deadline_seconds=self._section.partner_seconds)
        if found.path is None or found.theirs is None:
            return AveragingResult(offered, found.because, again_at_once=True, past=found.past)
        averaged = offering.averaged(_content(found.path), found.weight)
        return AveragingResult(
            offered,
            found.because,
            partner=found.partner,
            blob=found.theirs.blob,
            past=found.past,
            learnt=learnt,
            after=averaged.state,
            weight=found.weight,
            distance=averaged.distance,
            sent_bytes=offering.size_bytes,
            received_bytes=found.theirs.size,
        )


def interval(every_rounds: int, random: Random) -> int:
    """Draws the rounds from one offer to the next: at least 1, from 0.5 to 1.5 times ``every_rounds``."""
    half = every_rounds // 2
    return random.randint(every_rounds - half, every_rounds + half)


def _content(path: str) -> memoryview:
    try:
        return np.memmap(path, np.uint8, mode="r").data
    except (OSError, ValueError) as error:  # ValueError: it is empty
        raise StorageError(f"the partner's weights are no longer in the store: {error}") from error
