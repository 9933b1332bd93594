"""Pairing ``/starling/averaging/1``: finds one peer to average weights with and exchanges with it, or with none.

    frame = u32 length ‖ MessagePack of a message of ``protocol.streams.averaging_messages``
    proposer: propose                         have | abandon
    partner:           accept | decline       have | abandon

Between accepting and ``have`` each side fetches the other's blob, with the ``fetch_weights`` passed in. The peers do
not have to agree on which of them are alive, and each waits only for the one peer with which it exchanges.

Guarantees, for partners that keep to the protocol:
- A ``PairingOutcome`` is a whole commit or none. A side that commits holds the partner's weights, verified and found
  fit, and the partner has confirmed over its authenticated stream that it holds ours. So if one side commits, the
  other is able to.
- Both commit or neither, as long as the side that committed first lives and the side left in doubt can reach it within
  ``resolve_seconds``. A lost message or connection never splits them: the side in doubt asks on a new stream.
- What no protocol can exclude: if the first side dies, is restarted, or cannot be reached for so long, it has
  committed and the other side keeps its old weights. Each is then exactly where its own formula puts it (averaged with
  the named blob, or not averaged at all). NoLoCo's replicas differ anyway, and only the mean over the two has moved, by
  at most what this one step added to the side that committed.
- A partner that lies about holding our weights harms no other peer: we average with what it gave.
- A decline, a fault or a death costs only time: at most ``answer_seconds`` four times for a proposal,
  ``exchange_seconds + resolve_seconds`` for an exchange, and a few ``answer_seconds`` for the last messages. A partner
  that could say ``have`` and does not costs ``have_seconds_for`` our blob, and, unless it is a stranger that proposed,
  a few ``answer_seconds`` for asking it again.
- Only peers that ``accepts`` is true of can propose. One that is on trial is accepted beside the search, ``TRIALS`` at
  once, and takes none of our time before it has fetched our weights and said ``have``. Where more are on trial, the
  oldest of the most crowded address is abandoned.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random

import anyio

from protocol.errors import DeadlineError, ProtocolError, TransportError
from protocol.limits import REASON_BYTES
from protocol.streams.averaging_messages import (
    AVERAGING_PROTOCOL,
    Abandon,
    Accept,
    Decline,
    DeclineReason,
    Have,
    Offer,
    Propose,
)
from swarm.address_groups import Groups, groups_of, most_crowded
from swarm.averaging import pairing_rules as rules
from swarm.averaging.pairing_rules import ExchangeEvent, ExchangePhase, NotPaired, Terms
from swarm.averaging.weight_exchange import Conversation, WeightExchange
from swarm.blobs.blob_server import ReportConduct
from swarm.blobs.fetch import Reach
from swarm.host import Host, PeerId, Stream
from swarm.peers.reputation import Conduct
from swarm.recent import Recent
from swarm.stream_reader import STREAM_END_SECONDS, drop

log = logging.getLogger(__name__)

STREAMS_PER_PEER = 4  # incoming ones at once
ASK_AGAIN_SECONDS = 1.0  # between two questions to a partner that left us in doubt
QUESTIONS_UNANSWERED = 2  # by a partner that we reached: then it is not asked how an exchange ended any more
DECISIONS_REMEMBERED = 256
TRIALS = 8  # of strangers at once
GIVEN_REMEMBERED = 256
PUSHED_OUT = "other strangers are on trial"
SEEKERS_REMEMBERED = 64
STOPPED = "stopped"  # why an exchange ended that was cancelled here
REASONS = frozenset(DeclineReason)

FetchWeights = Callable[[PeerId, Offer], Awaitable[str | None]]
"""(partner, its offer) -> None once the blob is here, verified and fit to average with; else why not, in words."""


@dataclass(frozen=True, slots=True)
class PairingOutcome:
    """``theirs`` of ``partner`` is to be averaged with our offer, exactly once; without a partner, nothing is."""

    partner: PeerId | None
    theirs: Offer | None
    because: str  # how every proposal and exchange ended, in words
    seconds: float


class Pairing:
    """``average`` runs once at a time. Proposals of peers are accepted while it runs, and only then."""

    def __init__(
        self,
        host: Host,
        terms: Terms,
        *,
        reach: Reach,
        fetch_weights: FetchWeights,
        report: ReportConduct,
        random: Random,
        on_ended: Callable[[WeightExchange], None] = lambda exchange: None,
        on_trial_failed: Callable[[WeightExchange], None] = lambda exchange: None,
    ) -> None:
        """``on_ended`` is called with every exchange once it is decided, ``on_trial_failed`` with that of a stranger
        which never said ``have``."""
        self.refused: Counter[str] = Counter()  # messages of peers that break the protocol, by reason
        self._host = host
        self._terms = terms
        self._reach = reach
        self._fetch_weights = fetch_weights
        self._report = report
        self._random = random
        self._on_ended, self._on_trial_failed = on_ended, on_trial_failed
        self._state = rules.PairingState(host.peer_id)
        self._seekers: Recent[PeerId, rules.Seeker] = Recent(SEEKERS_REMEMBERED)  # whose proposals we declined
        self._accepts: Callable[[PeerId], bool] = lambda peer: False
        self._is_known: Callable[[PeerId], bool] = lambda peer: True
        self._on_trial: Callable[[PeerId], bool] = lambda peer: False
        self._engaged: WeightExchange | None = None
        self._trials: dict[WeightExchange, Groups] = {}  # the oldest first
        self._given: Recent[tuple[PeerId, bytes], None] = Recent(GIVEN_REMEMBERED)  # our weights, whole
        self._proposal = anyio.CancelScope()
        self._accepted = anyio.Event()
        self._streams: Counter[PeerId] = Counter()
        self._committed: Recent[tuple[PeerId, bytes], bool] = Recent(DECISIONS_REMEMBERED)  # the latest exchanges
        host.handle(AVERAGING_PROTOCOL, self._on_stream)

    def on_given(self, peer: PeerId, blob: bytes) -> None:
        """To be called when the last chunk of a blob was sent to a peer."""
        offer = self._state.offer
        if offer is None or offer.blob != blob:
            return
        self._given[peer, blob] = None
        for exchange in (*self._trials, self._engaged):
            if exchange is not None and exchange.partner == peer:
                exchange.given.set()

    async def average(
        self,
        offer: Offer,
        candidates: Callable[[], Sequence[PeerId]],
        *,
        accepts: Callable[[PeerId], bool],
        deadline_seconds: float,
        is_known: Callable[[PeerId], bool] = lambda peer: True,
        on_trial: Callable[[PeerId], bool] = lambda peer: False,
    ) -> PairingOutcome:
        """Makes one exchange with one of ``candidates``, or with a proposer that ``accepts`` is true of.

        A proposer that ``is_known`` is not true of, because it never averaged with us, hears our ``have`` only after
        its own: silent, it leaves no doubt. ``on_trial`` says which of these are on trial first.
        Looks for a partner until the deadline; an exchange that runs then is finished. The weights behind ``offer``
        must not change meanwhile. Cancelled while undecided, it abandons the exchange, and answers so if it is asked.
        """
        if self._state.offer is not None:
            raise RuntimeError("an offer is open already: call average() once at a time")
        began_seconds = anyio.current_time()
        self._state, self._accepts = rules.PairingState(self._host.peer_id, offer), accepts
        self._is_known, self._on_trial = is_known, on_trial
        tally: Counter[str] = Counter()
        try:
            exchange = await self._search(candidates, began_seconds + deadline_seconds, tally)
        finally:
            if self._engaged is not None:  # cancelled after it was accepted and before it ran
                self._conclude(self._engaged)
            for trial in self._trials:
                trial.note(ExchangeEvent.EXPIRED, STOPPED)
            self._state = rules.PairingState(self._host.peer_id)
        seconds = anyio.current_time() - began_seconds
        because = ", ".join(f"{count} × {why}" for why, count in tally.items()) or "no peer of the family was there"
        if exchange is None:
            return PairingOutcome(None, None, because, seconds)
        return PairingOutcome(exchange.partner, exchange.theirs, because, seconds)

    async def _search(
        self, candidates: Callable[[], Sequence[PeerId]], until_seconds: float, tally: Counter[str]
    ) -> WeightExchange | None:
        search = rules.Search({})
        offer = self._state.offer
        assert offer is not None
        while self._engaged is not None or anyio.current_time() < until_seconds:
            if self._engaged is None:
                now_seconds = anyio.current_time()
                open_to = [p for p in candidates() if p != self._host.peer_id and p not in self._state.failed]
                seekers = rules.still_seeking(self._seekers, offer.family, now_seconds, self._terms)
                move = rules.next_proposal(
                    now_seconds, open_to, search, self._terms, self._random, seekers=seekers, accepts=self._runs_at_once
                )
                for peer in [p for p in self._seekers if p not in seekers or p == move.peer]:
                    del self._seekers[peer]
                if move.peer is None:
                    await self._wait_for_proposal(min(move.until_seconds, until_seconds) - now_seconds)
                elif (ended := await self._propose(move.peer)) is not None:
                    tally[ended.why] += 1
                    times = now_seconds, anyio.current_time()
                    search = rules.after_proposal(search, move.peer, ended, *times, open_to, self._terms, self._random)
            exchange = self._engaged
            if exchange is not None:
                await self._run(exchange)
                tally[exchange.because] += 1
                if exchange.progress.phase is ExchangePhase.COMMITTED:
                    return exchange
        return None

    async def _wait_for_proposal(self, seconds: float) -> None:
        """Waits until a peer's proposal is accepted, at most so long."""
        self._accepted = anyio.Event()
        with anyio.move_on_after(seconds):
            await self._accepted.wait()

    def _runs_at_once(self, peer: PeerId) -> bool:
        """Whether an exchange that this peer proposed would run at once."""
        if peer == self._host.peer_id or peer in self._state.failed:
            return False
        return self._accepts(peer) and not self._on_trial(peer)

    # Proposing

    async def _propose(self, peer: PeerId) -> NotPaired | None:
        """Returns None once ``_engaged`` with this peer."""
        offer = self._state.offer
        assert offer is not None
        self._state = replace(self._state, proposing_to=peer)
        try:
            with anyio.CancelScope() as self._proposal:
                return await self._ask_to_pair(peer, Propose(self._random.randbytes(16), offer))
        except ProtocolError as error:
            self._blame(peer, error)
            return NotPaired(error.reason)
        except TransportError as error:
            log.debug("proposal to %s: %s", peer, error)
            return NotPaired(error.reason)
        finally:
            self._state = replace(self._state, proposing_to=None)
        return NotPaired(DeclineReason.CROSSED)  # we accepted its own proposal meanwhile

    async def _ask_to_pair(self, peer: PeerId, proposal: Propose) -> NotPaired | None:
        seconds = self._terms.answer_seconds
        await self._reach(peer, seconds)
        conversation = Conversation(await self._host.open_stream(peer, AVERAGING_PROTOCOL, deadline_seconds=seconds))
        try:
            await conversation.send(proposal, seconds)
            reply = await conversation.receive(seconds, Accept, Decline)
            self._state = replace(self._state, proposing_to=None)  # there was no await since the reply was read
            if isinstance(reply, Decline):
                why = reply.reason if reply.reason in REASONS else "declined for a reason unknown to this version"
                ended = NotPaired(why, reply.seeking or None)
            else:
                unfit = rules.offer_mismatch(proposal.offer, reply.offer, self._terms)
                if unfit is None and self._engaged is None:
                    self._engage(WeightExchange(peer, proposal.exchange, reply.offer, conversation, proposed=True))
                    return None
                ended = NotPaired(unfit or DeclineReason.BUSY)
                self._report_unlike(peer, unfit)
                await conversation.send(Abandon(proposal.exchange, ended.why), seconds)
            await conversation.stream.finish(linger_seconds=STREAM_END_SECONDS)
        except BaseException:
            await drop(conversation.stream)
            raise
        return ended

    def _report_unlike(self, peer: PeerId, unfit: DeclineReason | None) -> None:
        if unfit in rules.UNLIKE:
            self._report(peer, Conduct.UNLIKE, f"offered weights that cannot be averaged with ours: {unfit}")

    def _engage(self, exchange: WeightExchange) -> None:
        self._engaged = exchange
        self._state = replace(self._state, engaged=True)

    # Answering

    async def _on_stream(self, stream: Stream) -> None:
        if self._streams[stream.peer] >= STREAMS_PER_PEER:
            await stream.reset()
            return
        self._streams[stream.peer] += 1
        try:
            conversation = Conversation(stream)
            message = await conversation.receive(self._terms.answer_seconds, Propose, Have)
            if isinstance(message, Propose):
                await self._on_proposal(conversation, message)
            else:
                await self._on_question(conversation, message)
        except ProtocolError as error:
            self._blame(stream.peer, error)
            raise
        finally:
            self._streams[stream.peer] -= 1
            if not self._streams[stream.peer]:
                del self._streams[stream.peer]

    async def _on_proposal(self, conversation: Conversation, proposal: Propose) -> None:
        peer = conversation.stream.peer
        is_candidate, on_trial = self._accepts(peer), self._on_trial(peer)
        state = self._state
        if on_trial and state.proposing_to != peer:  # a trial runs beside our proposals
            state = replace(state, proposing_to=None)
        declined = rules.reason_to_decline(state, peer, proposal.offer, self._terms, is_candidate=is_candidate)
        if declined is not None:
            self._report_unlike(peer, declined)
            named = self._note_seeker(peer, proposal.offer.family) if declined in rules.FOR_NOW else None
            await conversation.send(Decline(declined, named or ""), self._terms.answer_seconds)
            return
        exchange = WeightExchange(peer, proposal.exchange, proposal.offer, conversation, proposed=False)
        if on_trial and not await self._try(exchange):
            return
        if self._state.proposing_to is not None:
            self._proposal.cancel()  # to the same peer, whose own takes precedence; or to another that did not answer
        self._engage(exchange)
        self._accepted.set()
        await exchange.finished.wait()

    def _note_seeker(self, peer: PeerId, family: bytes) -> PeerId | None:
        """Notes that a peer seeks, and returns another one that does."""
        now_seconds = anyio.current_time()
        seeking = rules.still_seeking(self._seekers, family, now_seconds, self._terms)
        self._seekers[peer] = rules.Seeker(family, now_seconds)
        return rules.whom_to_name(peer, seeking, self._is_known)

    async def _try(self, exchange: WeightExchange) -> bool:
        """Lets a stranger fetch our weights and say so, beside whatever else runs. Returns whether it did and the
        exchange can run now; otherwise it is abandoned."""
        offer = self._state.offer
        assert offer is not None
        self._trials[exchange] = groups_of(self._host.remote_ip(exchange.partner))
        if len(self._trials) > TRIALS:
            crowded = most_crowded(self._trials, self._trials.values())
            crowded[0].note(ExchangeEvent.EXPIRED, PUSHED_OUT)
        try:
            await self._accept(exchange)
            with anyio.move_on_after(self._terms.seconds_for(offer.size)):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._listen, exchange)
                    await exchange.until(lambda progress: progress.have_received or progress.is_over)
                    tasks.cancel_scope.cancel()
        finally:
            del self._trials[exchange]
        has_fetched = exchange.progress.have_received and (exchange.partner, offer.blob) in self._given
        if has_fetched and self._state.offer is offer and self._engaged is None and not exchange.progress.is_over:
            exchange.was_tried = True
            return True
        if not has_fetched and self._state.offer is offer and exchange.because != PUSHED_OUT:
            if exchange.given.is_set() and not exchange.left_by_partner:
                self._report(exchange.partner, Conduct.STALLED, "fetched our weights and did not say so")
            self._on_trial_failed(exchange)
        await self._say(exchange, Abandon(exchange.number, DeclineReason.BUSY))
        return False

    async def _on_question(self, conversation: Conversation, question: Have) -> None:
        """Answers the partner of an exchange that lost its stream, holds our weights, and asks how it ended."""
        key = (conversation.stream.peer, question.exchange)
        exchange = self._engaged
        if exchange is not None and exchange.key == key:
            exchange.note(ExchangeEvent.HAVE_RECEIVED)
            # If we do not hold its weights yet, this abandons: the partner does not wait for long.
            exchange.note(ExchangeEvent.LOST, "the partner lost the stream")
            committed = exchange.progress.phase is ExchangePhase.COMMITTED
        else:
            committed = self._committed.get(key, False)
        reply = Have(question.exchange) if committed else Abandon(question.exchange, "it was abandoned here")
        await conversation.send(reply, self._terms.answer_seconds)

    # Exchanging

    async def _run(self, exchange: WeightExchange) -> None:
        """Runs an exchange until it is decided. No other place ends one."""
        offer = self._state.offer
        assert offer is not None
        most_seconds = self._terms.seconds_for(offer.size + exchange.theirs.size)
        try:
            if not exchange.proposed and not exchange.was_tried:
                await self._accept(exchange)
            with anyio.move_on_after(most_seconds):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._listen, exchange)
                    tasks.start_soon(self._fetch, exchange)
                    tasks.start_soon(self._expect_have, exchange)
                    await exchange.until(lambda progress: progress.phase is not ExchangePhase.OPEN)
                    tasks.cancel_scope.cancel()
            if exchange.progress.phase is ExchangePhase.OPEN:
                self._note_stall(exchange, f"not done after {most_seconds:g} s")
            await self._end_stream(exchange)
            if exchange.progress.phase is ExchangePhase.DOUBT:
                await self._resolve(exchange)
        except BaseException:
            await drop(exchange.conversation.stream)
            raise
        finally:
            self._conclude(exchange)

    async def _expect_have(self, exchange: WeightExchange) -> None:
        """Ends the exchange once the partner has had all that it needs to say ``have``, and time for it."""
        await exchange.until(lambda progress: progress.holding)
        await exchange.given.wait()
        assert self._state.offer is not None
        seconds = self._terms.have_seconds_for(self._state.offer.size)
        await anyio.sleep(seconds)
        self._note_stall(exchange, f"no word for {seconds:.3g} s after our last chunk")

    def _note_stall(self, exchange: WeightExchange, because: str) -> None:
        exchange.note(ExchangeEvent.LOST, because)
        if exchange.progress.holding:
            self._report(exchange.partner, Conduct.STALLED, because)

    def _conclude(self, exchange: WeightExchange) -> None:
        """Abandons the exchange if it is undecided. Later questions about it are answered from memory."""
        exchange.note(ExchangeEvent.EXPIRED, STOPPED)
        committed = exchange.progress.phase is ExchangePhase.COMMITTED
        self._committed[exchange.key] = committed
        failed = self._state.failed if committed else self._state.failed | {exchange.partner}
        self._state = replace(self._state, engaged=False, failed=failed)
        self._engaged = None
        exchange.finished.set()
        self._on_ended(exchange)

    async def _accept(self, exchange: WeightExchange) -> None:
        offer = self._state.offer
        assert offer is not None
        try:
            await exchange.conversation.send(Accept(offer), self._terms.answer_seconds)
        except TransportError as error:
            exchange.note(ExchangeEvent.LOST, str(error))

    async def _fetch(self, exchange: WeightExchange) -> None:
        unfit = await self._fetch_weights(exchange.partner, exchange.theirs)
        if unfit is not None:
            exchange.note(ExchangeEvent.REFUSED, unfit)
            return
        exchange.note(ExchangeEvent.HELD)
        if rules.says_have_last(proposed=exchange.proposed, is_known=self._is_known(exchange.partner)):
            return  # committed by the partner's ``have``, and said at the end
        if exchange.progress.phase is ExchangePhase.OPEN:
            exchange.note(ExchangeEvent.SENDING_HAVE)
            with anyio.CancelScope(shield=True):  # half a frame would be worse than no frame
                await self._say(exchange, Have(exchange.number))

    async def _listen(self, exchange: WeightExchange) -> None:
        """Waits for the partner's message; then, until we hold its weights too, notices the loss of the stream."""
        try:
            while True:
                message = await exchange.conversation.receive(self._terms.exchange_seconds, Have, Abandon)
                exchange.on_last_message(message)
        except ProtocolError as error:
            self._blame(exchange.partner, error)
            exchange.note(ExchangeEvent.REFUSED, error.reason)
        except TransportError as error:
            exchange.note(ExchangeEvent.LOST, str(error))

    async def _say(self, exchange: WeightExchange, message: Have | Abandon) -> None:
        try:
            await exchange.conversation.send(message, self._terms.answer_seconds)
        except TransportError as error:
            exchange.note(ExchangeEvent.LOST, str(error))  # if it still matters, the partner asks again

    async def _end_stream(self, exchange: WeightExchange) -> None:
        """Sends the last message, unless it was sent, and ends our stream. A partner's is closed by its handler."""
        match exchange.progress:
            case rules.ExchangeProgress(ExchangePhase.COMMITTED, have_sent=False):
                await self._say(exchange, Have(exchange.number))
            case rules.ExchangeProgress(ExchangePhase.ABANDONED, have_sent=False):
                await self._say(exchange, Abandon(exchange.number, exchange.because[:REASON_BYTES]))
            case rules.ExchangeProgress(ExchangePhase.DOUBT):
                await drop(exchange.conversation.stream)
                return
        if exchange.proposed:
            with suppress(TransportError):
                await exchange.conversation.stream.finish(linger_seconds=STREAM_END_SECONDS)

    async def _resolve(self, exchange: WeightExchange) -> None:
        """Asks the partner how the exchange ended, until one of the two learns it from the other."""
        with anyio.move_on_after(self._terms.resolve_seconds):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._ask_repeatedly, exchange)
                await exchange.until(lambda progress: progress.phase is not ExchangePhase.DOUBT)
                tasks.cancel_scope.cancel()
        because = f"{exchange.because}; not heard of again in {self._terms.resolve_seconds:g} s"
        exchange.note(ExchangeEvent.EXPIRED, because)

    async def _ask_repeatedly(self, exchange: WeightExchange) -> None:
        """Asks until there is an answer. An honest partner that is reached answers at once, whatever it is doing."""
        unanswered = 0
        while unanswered < QUESTIONS_UNANSWERED:
            try:
                unanswered += not await self._ask_how_it_ended(exchange)
            except ProtocolError as error:
                self._blame(exchange.partner, error)
            except TransportError as error:
                log.debug("asking %s how an exchange ended: %s", exchange.partner, error)
            await anyio.sleep(ASK_AGAIN_SECONDS)
        exchange.note(ExchangeEvent.EXPIRED, f"{exchange.because}; it answered no question")

    async def _ask_how_it_ended(self, exchange: WeightExchange) -> bool:
        """Returns whether the partner, once reached, answered in time."""
        seconds = self._terms.answer_seconds
        await self._reach(exchange.partner, seconds)
        stream = await self._host.open_stream(exchange.partner, AVERAGING_PROTOCOL, deadline_seconds=seconds)
        conversation = Conversation(stream)
        try:
            await conversation.send(Have(exchange.number), seconds)
            exchange.on_last_message(await conversation.receive(seconds, Have, Abandon))
        except DeadlineError:
            return False
        finally:
            await drop(conversation.stream)
        return True

    def _blame(self, peer: PeerId, error: ProtocolError) -> None:
        self.refused[error.reason] += 1
        self._report(peer, Conduct.HOSTILE_REQUEST, str(error))
