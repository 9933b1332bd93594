"""A donor: a participant of the owner's swarm that lends its engine to that owner, and to nobody else.

It neither learns nor shares; its heartbeats say so, as a relay's do. It opens streams of ``/starling/lend/1`` to the
owner alone and serves none. After the terms it passes bytes between the stream and its engine, unread, until either is
gone; then it begins again. An owner that refuses for good ends it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Final

import anyio
from anyio.abc import ByteStream

from protocol import limits
from protocol.errors import EngineLostError, ProtocolError, RefusedError, TransportError
from protocol.identity import NodeKey
from protocol.streams.framing import framed_message
from protocol.streams.lend_messages import (
    FINAL_REFUSALS,
    LEND_MAJOR,
    LEND_MINOR,
    LEND_PROTOCOL,
    LendHello,
    LendRefused,
    LendTerms,
    decode_lend_answer,
)
from swarm import api
from swarm.cluster.membership import Membership
from swarm.donors.donor_door import GONE, PART_BYTES
from swarm.host import Host, PeerId, Stream
from swarm.participant import Emit, Participant
from swarm.peers.reaching import Relays
from swarm.settings import ServiceSettings
from swarm.stream_reader import StreamReader, read_frame

log = logging.getLogger(__name__)

REACH_SECONDS: Final = 20.0  # for the owner to be connected, and to answer
FIRST_RETRY_SECONDS: Final = 1.0
LAST_RETRY_SECONDS: Final = 30.0
SHORT_SESSION_SECONDS: Final = 20.0  # one that was shorter counts as a failure: an engine may die at each start

EngineOf = Callable[[LendTerms], Awaitable[ByteStream]]


class LenderService:
    """Call ``run`` once. ``engine`` connects to an engine with the model of the terms, started where none runs; it
    raises ``EngineLostError`` where that fails, and any other ``StarlingError`` where it can never succeed.

    ``emit`` is called with the events of ``Participant``, ``lending`` with the terms once the owner took this donor,
    ``waiting`` with the reason when it does not lend, ``refused``, and ``left``.
    """

    def __init__(
        self,
        host: Host,
        key: NodeKey,
        settings: ServiceSettings,
        *,
        owner: PeerId,
        secret: bytes,
        engine: EngineOf,
        wall_clock: Callable[[], float],
        random: Random,
        emit: Emit = lambda event, fields: None,
        membership: Membership | None = None,
    ) -> None:
        self._owner, self._secret, self._engine, self._emit = owner, secret, engine, emit
        self._name = settings.name
        self._participant = Participant(
            host,
            key,
            settings,
            wall_clock=wall_clock,
            random=random,
            emit=emit,
            membership=membership,
            has_learner=False,
            relays=Relays.NEVER,
        )
        self.host, self.started, self.leave = host, self._participant.started, self._participant.leave
        self._status = api.LendingStatus(owner)

    async def run(self) -> None:
        """Runs until ``leave``, or cancelled. Raises ``RefusedError`` once the owner refuses for good, what ``engine``
        raises for good, and the errors of ``Participant.run``."""
        await self._participant.run(self._lend)
        self._emit("left", {"reason": self._participant.goodbye})

    async def answer(self, request: api.Request) -> api.Reply:
        """Returns the reply to one request of a client. Raises ``ConfigurationError`` for what takes a learner."""
        return await self._participant.answer_without_learner(request, self._status)

    async def _lend(self) -> None:
        failures = 0
        while True:
            began = anyio.current_time()
            try:
                await self._session()
                failures = 0 if anyio.current_time() - began > SHORT_SESSION_SECONDS else failures + 1
            except RefusedError as error:
                if error.reason in FINAL_REFUSALS:
                    raise
                failures += 1
                self._waits(str(error))
            except (TransportError, ProtocolError, EngineLostError) as error:
                failures += 1
                self._waits(str(error))
            await anyio.sleep(min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(failures, 8)))

    def _waits(self, because: str) -> None:
        if self._status.waits_because != because:
            self._emit("waiting", {"because": because})
        self._status = api.LendingStatus(self._owner, waits_because=because, sessions=self._status.sessions)

    async def _session(self) -> None:
        """Offers the engine once, and lends it until the owner, the connection or the engine is gone."""
        await self._participant.peering.reach(self._owner, REACH_SECONDS)
        stream = await self._participant.host.open_stream(self._owner, LEND_PROTOCOL, deadline_seconds=REACH_SECONDS)
        try:
            terms, unread = await self._greet(stream)
            self._emit(
                "lending",
                {
                    "owner": self._owner,
                    "model": terms.model,
                    "family": terms.family.hex(),
                    "layers": bool(terms.layers),
                },
            )
            self._status = api.LendingStatus(
                self._owner, model=terms.model, sessions=self._status.sessions + 1, layers=bool(terms.layers)
            )
            async with await self._engine(terms) as engine:
                if unread:
                    await engine.send(unread)
                await _pass_both_ways(stream, engine)
        finally:
            with anyio.CancelScope(shield=True):
                await stream.reset()
        self._waits("the owner or the engine ended the session, or the connection was lost")

    async def _greet(self, stream: Stream) -> tuple[LendTerms, bytes]:
        """Returns the terms, and what arrived behind them."""
        hello = LendHello(LEND_MAJOR, LEND_MINOR, self._secret, self._name)
        await stream.send(framed_message(hello))
        reader = StreamReader(stream, stall_seconds=REACH_SECONDS)
        answer = decode_lend_answer(
            await read_frame(reader.exactly, max_bytes=limits.LEND_MESSAGE_BYTES, what=LEND_PROTOCOL)
        )
        if isinstance(answer, LendRefused):
            raise RefusedError(f"the owner refuses ({answer.reason}): {answer.message}", answer.reason)
        return answer, reader.unread


async def _pass_both_ways(stream: Stream, engine: ByteStream) -> None:
    async with anyio.create_task_group() as tasks:

        async def to_engine() -> None:
            with suppress(*GONE):
                while part := await stream.receive(PART_BYTES):
                    await engine.send(part)
            tasks.cancel_scope.cancel()

        tasks.start_soon(to_engine)
        with suppress(*GONE):
            while True:
                await stream.send(await engine.receive(PART_BYTES))
        tasks.cancel_scope.cancel()
