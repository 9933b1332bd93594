"""Averaging weights, the swarm's half: answers the learner's ``api.Average`` with one exchange with one peer, or none.

``swarm.averaging.pairing`` finds the partner and decides when an exchange is committed; this module names the peers to
ask, fetches the partner's weights, and judges them before the node confirms that it holds them.

Guarantees: only connected peers that are not banned and whose latest heartbeat names our family are asked, and only
proposals of such peers accepted; of these, none that failed a moment ago. Of those that never averaged with us, once
one has failed, few are asked, rather such as have stayed, and proposals are accepted on trial
(``swarm.averaging.partner_memory``). The weights that we average with have our layout, are finite and bounded, and are
no outlier (``swarm.averaging.norm_history``); all others are refused with the reason before anything is committed, and
cost their sender reputation. Both blobs stay in the store
during the exchange and for the store's grace period, a minute, after the answer. There is one search at a time;
cancelled, it abandons. Only the exchange itself waits for a blob to be decoded.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Final

import anyio
import anyio.to_thread

from protocol.errors import MalformedError, ProtocolError, StorageError
from protocol.streams.averaging_messages import Offer
from protocol.weights.tensor_layout import TensorLayout
from swarm import api
from swarm.averaging.norm_history import FamilyPast
from swarm.averaging.pairing import STOPPED, Pairing
from swarm.averaging.pairing_rules import EXCHANGE_SECONDS, ExchangePhase, Terms
from swarm.averaging.partner_memory import PartnerMemory
from swarm.averaging.weight_exchange import WeightExchange
from swarm.averaging.weights_difference import ENCODINGS, Difference, measure_difference
from swarm.blobs.blob_server import ReportConduct
from swarm.blobs.fetch import Fetcher
from swarm.blobs.store import ContentStore
from swarm.host import Host, PeerId
from swarm.peers.peer_table import PeerTable
from swarm.peers.reputation import Conduct

log = logging.getLogger(__name__)

ANY_STEPS: Final = 2**63  # machines differ in their numbers of outer steps; how far weights lie apart decides
STORE_SHARE: Final = 4  # room for ours, theirs, and both of the exchange before, which are still in their grace period

Measure = Callable[[str, Path, Path, TensorLayout], Awaitable[Difference]]  # (encoding, theirs, ours, layout)


class ExchangeOutcome(StrEnum):
    """How exchanges ended, as they are counted: committed, or why they were abandoned."""

    COMMITTED = "committed"
    OUTLIER = "outlier"  # the partner's weights lie too far from ours
    UNFIT = "unfit"  # the partner's weights are not of our layout, not finite, or out of bounds
    NOT_FETCHED = "not_fetched"  # the partner's weights did not arrive, or there was no room for them
    BY_PARTNER = "by_the_partner"  # the partner abandoned it
    LOST = "lost"  # the connection broke, or the time was over


async def measure_in_thread(encoding: str, theirs: Path, ours: Path, layout: TensorLayout) -> Difference:
    """Runs ``measure_difference`` in a thread. If cancelled, the thread still reads both files, which never change."""
    return await anyio.to_thread.run_sync(measure_difference, encoding, theirs, ours, layout, abandon_on_cancel=True)


@dataclass(slots=True)
class _Search:
    """The request that is being answered."""

    offer: Offer
    layout: TensorLayout
    known: api.KnownPartners
    past: FamilyPast  # of ``known``, with this search
    pinned: list[bytes]
    lot: float  # draws the stranger that it may end with, where only one may
    refused_as: ExchangeOutcome | None = None  # why we refused the weights of the exchange that runs
    difference: Difference | None = None  # of the partner's weights from ours, once these were found fit
    weight: float = 1.0


class WeightAveraging:
    """Call ``average`` once at a time."""

    def __init__(
        self,
        host: Host,
        store: ContentStore,
        fetcher: Fetcher,
        table: PeerTable,
        *,
        report: ReportConduct,
        candidates: Callable[[bytes], Sequence[PeerId]],
        is_dialled: Callable[[PeerId], bool],
        connected_seconds: Callable[[PeerId], float],
        store_bytes: int,
        wall_clock: Callable[[], float],
        random: Random,
        measure: Measure = measure_in_thread,
    ) -> None:
        """``candidates`` returns the peers of a family that may be asked, ``is_dialled`` says whether we dialled one,
        ``connected_seconds`` for how long one has been connected of late."""
        self._store = store
        self._fetcher = fetcher
        self._table = table
        self._report = report
        self._candidates, self._is_dialled = candidates, is_dialled
        self._connected_seconds = connected_seconds
        self._wall_clock = wall_clock
        self._random = random
        self._measure = measure
        self._partners = PartnerMemory()
        self._search: _Search | None = None
        self._exchanges: Counter[str] = Counter()
        self._last: api.ExchangeStatus | None = None
        self._max_bytes = store_bytes // STORE_SHARE
        terms = Terms(max_bytes=self._max_bytes, max_steps_apart=ANY_STEPS)
        self._pairing = Pairing(
            host,
            terms,
            reach=fetcher.reach,
            fetch_weights=self._fetch_weights,
            report=report,
            on_ended=self._on_exchange_ended,
            on_trial_failed=self._on_trial_failed,
            random=random,
        )

    async def average(self, request: api.Average) -> api.AverageReply | api.RequestRefused:
        """Raises ``MalformedError`` or ``StorageError`` if our own offer must not be shown to a peer."""
        if self._search is not None:
            return api.RequestRefused(
                "busy", "an exchange of weights runs already: wait for its answer, or close its client"
            )
        offer = request.offer
        search = self._search = _Search(
            offer, _layout_of(request), request.known, request.known.past, [offer.blob], self._random.random()
        )
        self._store.pin(offer.blob)
        try:
            await self._check_ours(search)
            outcome = await self._pairing.average(
                offer,
                lambda: self._partners_for(search),
                accepts=lambda peer: self._may_propose(peer, search),
                deadline_seconds=request.deadline_seconds,
                is_known=lambda peer: not self._is_stranger(peer),
                on_trial=lambda peer: self._partners.is_wary and self._is_stranger(peer),
            )
        finally:
            for blob in search.pinned:
                self._store.touch(blob)
                self._store.unpin(blob)
            self._search = None
        if outcome.theirs is None:
            return api.AverageReply(None, None, None, 1.0, outcome.because, outcome.seconds, search.past)
        path = str(self._store.path(outcome.theirs.blob))
        return api.AverageReply(
            outcome.partner, outcome.theirs, path, search.weight, outcome.because, outcome.seconds, search.past
        )

    def on_given(self, peer: PeerId, blob: bytes) -> None:
        """To be called when the last chunk of a blob was sent to a peer."""
        self._pairing.on_given(peer, blob)

    def _partners_for(self, search: _Search) -> list[PeerId]:
        """Returns the peers of the family that this search may end with."""
        return self._partners.partners(
            self._of_family(search),
            anyio.current_time(),
            is_stranger=self._is_stranger,
            is_dialled=self._is_dialled,
            connected_seconds=self._connected_seconds,
            lot=search.lot,
        )

    def _of_family(self, search: _Search) -> list[PeerId]:
        return [peer for peer in self._candidates(search.offer.family) if peer not in search.known.avoided]

    def _may_propose(self, peer: PeerId, search: _Search) -> bool:
        return peer in self._of_family(search) and self._partners.may_propose(
            peer, anyio.current_time(), is_stranger=self._is_stranger(peer)
        )

    def _is_stranger(self, peer: PeerId) -> bool:
        notes = self._table.known(peer)
        return notes.exchanges_committed == 0 and notes.groups_used == 0

    def status(self) -> api.AveragingStatus:
        return api.AveragingStatus(self._search is not None, dict(self._exchanges), self._last)

    async def _check_ours(self, search: _Search) -> None:
        """Raises for weights that peers would refuse at our cost, and against which no partner could be measured."""
        if search.offer.size > self._max_bytes:
            raise StorageError(
                f"weights of {search.offer.size} bytes; at most {self._max_bytes} are exchanged, a quarter of the "
                "content store: raise swarm.store_bytes"
            )
        if not self._store.take_over(search.offer.blob):
            raise StorageError(f"blob {search.offer.blob.hex()} is not in the store: put it there first")
        ours = self._store.path(search.offer.blob)
        try:
            await self._measure(search.offer.encoding, ours, ours, search.layout)
        except ProtocolError as error:
            raise MalformedError(f"our own weights are not offered: {error}") from error

    async def _fetch_weights(self, partner: PeerId, theirs: Offer) -> str | None:
        """Returns None once the partner's weights are here and fit; otherwise why not, in words."""
        search = self._search
        assert search is not None
        encoding = ENCODINGS[theirs.encoding]  # ours; otherwise there would be no exchange
        max_bytes = encoding.max_bytes(search.layout, search.offer.size)
        if theirs.size > max_bytes:
            too_large = f"a blob of {theirs.size} bytes for a layout of {max_bytes}"
            return self._refuse(partner, ExchangeOutcome.UNFIT, too_large)
        search.pinned.append(theirs.blob)
        self._store.pin(theirs.blob)
        try:
            wanted = api.Wanted(theirs.blob, theirs.size, (partner,))
            (fetched,) = await self._fetcher.fetch([wanted], deadline_seconds=EXCHANGE_SECONDS, asks_others=False)
            if fetched.reason is not None:
                return self._refuse(partner, ExchangeOutcome.NOT_FETCHED, fetched.reason)
            paths = self._store.path(theirs.blob), self._store.path(search.offer.blob)
            difference = await self._measure(theirs.encoding, *paths, search.layout)
        except StorageError as error:
            return self._refuse(partner, ExchangeOutcome.NOT_FETCHED, str(error))
        except ProtocolError as error:
            return self._refuse(partner, ExchangeOutcome.UNFIT, str(error))
        past = search.past
        because = past.outlier_because(difference.norm, difference.own_norm)
        if because is not None:
            search.past = past.after_refusal()
            return self._refuse(partner, ExchangeOutcome.OUTLIER, because)
        search.difference, search.weight = difference, past.weight(difference.norm, search.known.learnt)
        return None

    def _refuse(self, partner: PeerId, outcome: ExchangeOutcome, because: str) -> str:
        assert self._search is not None
        self._search.refused_as = outcome
        if outcome is ExchangeOutcome.UNFIT:
            self._report(partner, Conduct.UNFIT_WEIGHTS, because)
        elif outcome is ExchangeOutcome.OUTLIER:
            self._report(partner, Conduct.OUTLIER, because)
        # Of a failed fetch, the fetcher has reported the partner's fault.
        return f"{outcome}: {because}"

    def _on_exchange_ended(self, exchange: WeightExchange) -> None:
        """Counts an exchange that was decided."""
        search, theirs = self._search, exchange.theirs
        assert search is not None
        committed = exchange.progress.phase is ExchangePhase.COMMITTED
        if committed:
            assert search.difference is not None
            search.past = search.past.after_averaging(exchange.partner, search.difference.norm)
            self._report(exchange.partner, Conduct.AVERAGED, "")
            outcome = ExchangeOutcome.COMMITTED
        elif search.refused_as is not None:
            outcome = search.refused_as
        else:
            outcome = ExchangeOutcome.BY_PARTNER if exchange.left_by_partner else ExchangeOutcome.LOST
        self._exchanges[outcome.value] += 1
        self._remember(exchange)
        notes = self._table.of(exchange.partner)
        notes.exchanges_committed += committed
        notes.exchanges_abandoned += not committed
        self._last = notes.last_exchange = api.ExchangeStatus(
            partner=exchange.partner,
            at_seconds=self._wall_clock(),
            seconds=anyio.current_time() - exchange.began_seconds,
            committed=committed,
            because=exchange.because,
            sent_bytes=search.offer.size if exchange.progress.have_received else 0,
            received_bytes=theirs.size if self._store.has(theirs.blob) else 0,
            encoding=theirs.encoding,
        )
        search.refused_as = None  # nothing of the next exchange was refused yet
        log.info("exchange of weights with %s: %s", exchange.partner, exchange.because)

    def _on_trial_failed(self, exchange: WeightExchange) -> None:
        """A stranger took a place among those on trial, and none of our time."""
        now_seconds = anyio.current_time()
        took_seconds = now_seconds - exchange.began_seconds
        self._partners = self._partners.after_failure(exchange.partner, now_seconds, took_seconds, is_stranger=False)

    def _remember(self, exchange: WeightExchange) -> None:
        """Remembers the partner of an exchange, unless it ended because we were asked to stop."""
        peer, stranger = exchange.partner, self._is_stranger(exchange.partner)
        if exchange.progress.phase is ExchangePhase.COMMITTED:
            self._partners = self._partners.after_commit(peer, anyio.current_time(), is_stranger=stranger)
        elif exchange.because != STOPPED:
            now_seconds = anyio.current_time()
            took_seconds = now_seconds - exchange.began_seconds
            self._partners = self._partners.after_failure(
                peer, now_seconds, took_seconds, is_stranger=stranger, was_tried=exchange.was_tried
            )


def _layout_of(request: api.Average) -> TensorLayout:
    offer = request.offer
    try:
        layout = TensorLayout(request.layout)
    except ValueError as error:
        raise MalformedError(f"an impossible layout: {error}") from error
    if layout.digest != offer.layout:
        raise MalformedError(f"the offer has layout {offer.layout.hex()}, its tensors {layout.digest.hex()}")
    if offer.encoding not in ENCODINGS:
        raise MalformedError(f"{offer.encoding!r} is no encoding of weights; known are {', '.join(ENCODINGS)}")
    return layout
