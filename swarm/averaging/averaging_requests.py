"""Averaging weights, the swarm's half: answers the learner's ``api.Average`` by one exchange with one peer, or by none.

``swarm.averaging.pairing`` finds the partner and decides when an exchange is committed; this module says whom to ask,
brings the partner's weights, and judges them before we say that we hold them.

Guarantees: only connected peers that are not banned and whose latest heartbeat names our family are asked. Weights that
we average with are of our layout, finite, bounded, and no outlier (``swarm.averaging.norm_history``); any others are
refused with the reason before anything is committed, and cost their sender reputation. Both blobs stay in the store
during the exchange and for the store's time of grace, a minute, after the answer. One search at a time; cancelled, it
abandons. Nothing waits for a blob to be decoded except the exchange itself.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

import anyio
import anyio.to_thread

from protocol.errors import MalformedError, ProtocolError, StorageError
from protocol.weights.tensor_layout import TensorLayout
from swarm import api
from swarm.averaging.norm_history import FamilyPast
from swarm.averaging.pairing import Pairing
from swarm.averaging.pairing_rules import EXCHANGE_SECONDS, ExchangePhase, Offer, Terms
from swarm.averaging.weight_exchange import WeightExchange
from swarm.averaging.weights_difference import ENCODINGS, Difference, measure
from swarm.blobs.blob_server import Report
from swarm.blobs.fetch import Fetcher
from swarm.blobs.store import ContentStore
from swarm.host import Host, PeerId
from swarm.peers.peer_table import PeerTable
from swarm.peers.reputation import Conduct

log = logging.getLogger(__name__)

# Why exchanges were abandoned, as they are counted.
OUTLIER, UNFIT, NOT_FETCHED, BY_PARTNER, LOST = "outlier", "unfit", "not_fetched", "by_the_partner", "lost"
ABANDONED: Final = (OUTLIER, UNFIT, NOT_FETCHED, BY_PARTNER, LOST)
COMMITTED: Final = "committed"
ANY_STEPS: Final = 2**63  # unlike machines take unlike numbers of outer steps; what counts is how far weights lie apart
STORE_SHARE: Final = 4  # ours, theirs, and those of the exchange before, still within their time of grace

Measure = Callable[[str, Path, Path, TensorLayout], Awaitable[Difference]]  # (encoding, theirs, ours, layout)


async def measured_in_thread(encoding: str, theirs: Path, ours: Path, layout: TensorLayout) -> Difference:
    """``measure``, beside the event loop. Cancelled, the thread reads on to its end, of files that nobody changes."""
    return await anyio.to_thread.run_sync(measure, encoding, theirs, ours, layout, abandon_on_cancel=True)


@dataclass(slots=True)
class _Search:
    """The request that is being served."""

    offer: Offer
    layout: TensorLayout
    pinned: list[bytes]
    refused_as: str = ""  # one of ``ABANDONED``, of the exchange that runs
    difference: Difference | None = None  # of the partner's weights from ours, once found fit
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
        report: Report,
        family: Callable[[bytes], Sequence[PeerId]],
        store_bytes: int,
        wall_clock: Callable[[], float],
        random: Random,
        measured: Measure = measured_in_thread,
    ) -> None:
        """``family`` gives the peers that may be asked."""
        self._store = store
        self._fetcher = fetcher
        self._table = table
        self._report = report
        self._family = family
        self._wall_clock = wall_clock
        self._measured = measured
        self._search: _Search | None = None
        self._pasts: dict[bytes, FamilyPast] = {}  # of the families that our own learner was of
        self._exchanges: Counter[str] = Counter()
        self._last: api.ExchangeStatus | None = None
        self._most_bytes = store_bytes // STORE_SHARE
        terms = Terms(max_bytes=self._most_bytes, max_steps_apart=ANY_STEPS)
        self._pairing = Pairing(
            host, terms, reach=fetcher.reach, bring=self._bring, report=report, ended=self._ended, random=random
        )

    async def average(self, request: api.Average) -> api.AverageReply | api.RequestRefused:
        """Raises ``MalformedError`` or ``StorageError`` for an offer of ours that nobody should be shown."""
        if self._search is not None:
            return api.RequestRefused(
                "busy", "an exchange of weights runs already: wait for its answer, or close its client"
            )
        offer = request.offer
        search = self._search = _Search(offer, _layout_of(request), [offer.blob])
        self._store.pin(offer.blob)
        try:
            await self._check_ours(search)
            outcome = await self._pairing.average(
                offer, lambda: self._family(offer.family), deadline_seconds=request.deadline_seconds
            )
        finally:
            for blob in search.pinned:
                self._store.touch(blob)
                self._store.unpin(blob)
            self._search = None
        if outcome.theirs is None:
            return api.AverageReply(None, None, None, 1.0, outcome.because, outcome.seconds)
        path = str(self._store.path(outcome.theirs.blob))
        return api.AverageReply(outcome.partner, outcome.theirs, path, search.weight, outcome.because, outcome.seconds)

    def status(self) -> api.AveragingStatus:
        return api.AveragingStatus(self._search is not None, dict(self._exchanges), self._last)

    async def _check_ours(self, search: _Search) -> None:
        """Others would refuse such weights at our cost, and no partner could be measured against them."""
        if search.offer.size > self._most_bytes:
            raise StorageError(
                f"weights of {search.offer.size} bytes; at most {self._most_bytes} are exchanged, a quarter of the "
                "content store: raise swarm.store_bytes"
            )
        if not self._store.has(search.offer.blob):
            raise StorageError(f"blob {search.offer.blob.hex()} is not in the store: put it there first")
        ours = self._store.path(search.offer.blob)
        try:
            await self._measured(search.offer.encoding, ours, ours, search.layout)
        except ProtocolError as error:
            raise MalformedError(f"our own weights are not offered: {error}") from error

    async def _bring(self, partner: PeerId, theirs: Offer) -> str | None:
        """Why the partner's weights are not here or unfit, in words; None once they may be averaged with."""
        search = self._search
        assert search is not None
        encoding = ENCODINGS[theirs.encoding]  # ours, or there would be no exchange
        max_bytes = encoding.max_bytes(search.layout, search.offer.size)
        if theirs.size > max_bytes:
            return self._refuse(partner, UNFIT, f"a blob of {theirs.size} bytes for a layout of {max_bytes}")
        search.pinned.append(theirs.blob)
        self._store.pin(theirs.blob)
        try:
            wanted = api.Wanted(theirs.blob, theirs.size, (partner,))
            (fetched,) = await self._fetcher.fetch([wanted], deadline_seconds=EXCHANGE_SECONDS)
            if fetched.reason is not None:
                return self._refuse(partner, NOT_FETCHED, fetched.reason)
            paths = self._store.path(theirs.blob), self._store.path(search.offer.blob)
            difference = await self._measured(theirs.encoding, *paths, search.layout)
        except StorageError as error:
            return self._refuse(partner, NOT_FETCHED, str(error))
        except ProtocolError as error:
            return self._refuse(partner, UNFIT, str(error))
        past = self._pasts.get(theirs.family, FamilyPast())
        because = past.outlier_because(difference.norm, difference.own_norm)
        if because is not None:
            self._pasts[theirs.family] = past.after_refusal()
            return self._refuse(partner, OUTLIER, because)
        search.difference, search.weight = difference, past.weight(difference.norm)
        return None

    def _refuse(self, partner: PeerId, kind: str, because: str) -> str:
        assert self._search is not None
        self._search.refused_as = kind
        if kind != NOT_FETCHED:  # what a failed fetch says of the partner, the fetcher has reported
            self._report(partner, Conduct.UNFIT_WEIGHTS if kind == UNFIT else Conduct.OUTLIER, because)
        return f"{kind}: {because}"

    def _ended(self, exchange: WeightExchange) -> None:
        """An exchange was decided."""
        search, theirs = self._search, exchange.theirs
        assert search is not None
        committed = exchange.progress.phase is ExchangePhase.COMMITTED
        if committed:
            assert search.difference is not None
            past = self._pasts.get(theirs.family, FamilyPast())
            self._pasts[theirs.family] = past.after_averaging(search.difference.norm)
            self._report(exchange.partner, Conduct.AVERAGED, "")
        kind = COMMITTED if committed else search.refused_as or (BY_PARTNER if exchange.left_by_partner else LOST)
        self._exchanges[kind] += 1
        notes = self._table.of(exchange.partner)
        notes.exchanges_committed += committed
        notes.exchanges_abandoned += not committed
        self._last = notes.last_exchange = api.ExchangeStatus(
            partner=exchange.partner,
            at_seconds=self._wall_clock(),
            seconds=anyio.current_time() - exchange.began_seconds,
            committed=committed,
            because=exchange.because,
            sent_bytes=search.offer.size if exchange.progress.heard else 0,
            received_bytes=theirs.size if self._store.has(theirs.blob) else 0,
            encoding=theirs.encoding,
        )
        search.refused_as = ""  # the next one has not refused anything yet
        log.info("exchange of weights with %s: %s", exchange.partner, exchange.because)


def _layout_of(request: api.Average) -> TensorLayout:
    offer = request.offer
    try:
        layout = TensorLayout(request.layout)
    except ValueError as error:
        raise MalformedError(f"a layout that cannot be: {error}") from error
    if layout.digest != offer.layout:
        raise MalformedError(f"the offer is of layout {offer.layout.hex()}, the tensors of {layout.digest.hex()}")
    if offer.encoding not in ENCODINGS:
        raise MalformedError(f"{offer.encoding!r} is no encoding of weights; known are {', '.join(ENCODINGS)}")
    return layout
