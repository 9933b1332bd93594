"""A donor and an owner over the simulated network, in virtual time: admission, carrying, faults."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream

from protocol.errors import EngineLostError, RefusedError, UnreachableError
from protocol.streams.framing import framed_message
from protocol.streams.lend_messages import LEND_MAJOR, LEND_MINOR, LEND_PROTOCOL, LendHello, LendRefusal, LendTerms
from swarm import api
from swarm.donors import DONOR_LIST, donor_list
from swarm.donors.donor_door import GREETING_AT_ONCE, HELLO_SECONDS, PAUSED
from swarm.donors.lender_service import LenderService
from swarm.service import SwarmService
from swarm.settings import ServiceSettings
from tests.swarm.test_service import Swarm, now_seconds, play, status

SECRET = bytes([7]) * 32
TERMS = LendTerms("builtin:wren", 0, False, "auto", bytes(16))
Event = tuple[str, dict[str, Any]]


class MemoryPipe(ByteStream):
    """One end of a pipe within the process."""

    def __init__(self, incoming: Any, outgoing: Any) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    async def receive(self, max_bytes: int = 65536) -> bytes:
        part: bytes = await self._incoming.receive()
        return part

    async def send(self, item: bytes) -> None:
        await self._outgoing.send(item)

    async def send_eof(self) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        self._outgoing.close()
        self._incoming.close()


def pipe() -> tuple[MemoryPipe, MemoryPipe]:
    to_one, at_one = anyio.create_memory_object_stream[bytes](8)
    to_two, at_two = anyio.create_memory_object_stream[bytes](8)
    return MemoryPipe(at_one, to_two), MemoryPipe(at_two, to_one)


class Engines:
    """Engines that a donor starts: each answers what it gets in capitals."""

    def __init__(self) -> None:
        self.terms: list[LendTerms] = []
        self.ends: list[MemoryPipe] = []
        self._ours: list[MemoryPipe] = []
        self.fails = 0

    async def __call__(self, terms: LendTerms) -> ByteStream:
        self.terms.append(terms)
        if self.fails:
            self.fails -= 1
            raise EngineLostError("no room", "not_started")
        ours, theirs = pipe()
        self.ends.append(theirs)
        self._ours.append(ours)
        return ours

    def close(self) -> None:
        for end in (*self.ends, *self._ours):
            end.close()

    async def answer(self, number: int = -1) -> bytes:
        end = self.ends[number]
        got = await end.receive()
        await end.send(got.upper())
        return got


def invite(home: Path, name: str = "attic", secret: bytes = SECRET) -> None:
    donor_list.change_donors(
        home / DONOR_LIST,
        lambda donors: donor_list.invite(
            donors, secret, name, now_seconds=now_seconds(), until_seconds=now_seconds() + 1000
        ),
    )


@asynccontextmanager
async def donor_of(
    swarm: Swarm, owner: SwarmService, home: Path, engines: Engines, secret: bytes = SECRET, name: str = "donor"
) -> AsyncIterator[tuple[LenderService, list[Event], list[BaseException]]]:
    await anyio.Path(home).mkdir()
    host, events, ended = swarm.network.host(name), list[Event](), list[BaseException]()
    service = LenderService(
        host,
        host.key,
        ServiceSettings(
            home=str(home), swarm_name="test", swarm_id="ab" * 16, name=name, peers=tuple(owner.host.addresses())
        ),
        owner=owner.host.peer_id,
        secret=secret,
        engine=engines,
        wall_clock=now_seconds,
        random=Random(1),
        emit=lambda event, fields: events.append((event, dict(fields))),
    )

    async def run() -> None:
        try:
            await service.run()
        except RefusedError as error:
            ended.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await service.started.wait()
        yield service, events, ended
        tasks.cancel_scope.cancel()
    engines.close()


async def offers(owner: SwarmService, terms: LendTerms = TERMS) -> list[api.DonorOffer]:
    reply = await owner.answer(api.AskDonors(terms))
    assert isinstance(reply, api.DonorOffers)
    return list(reply.donors)


async def offered(owner: SwarmService) -> api.DonorOffer:
    for _ in range(120):
        found = await offers(owner)
        if found:
            return found[0]
        await anyio.sleep(1.0)
    raise AssertionError("no donor came")


@asynccontextmanager
async def learner_with(owner: SwarmService, peer: str) -> AsyncIterator[MemoryPipe]:
    """What the learner does: it takes the stream, and talks on it."""
    assert await owner.answer(api.UseDonor(peer)) == api.Carrying(peer)
    ours, theirs = pipe()

    async def carry() -> None:
        await owner.carry(peer, theirs, b"first")
        await theirs.aclose()  # as the socket server does

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(carry)
        assert await ours.receive() == b"first"
        yield ours
        ours.close()
        tasks.cancel_scope.cancel()
    theirs.close()


def test_a_donor_hears_that_its_owner_is_paused_and_lends_again_after_the_pause(tmp_path: Path) -> None:
    async def story() -> None:
        swarm, engines = Swarm(tmp_path), Engines()
        async with swarm.member("owner") as owner:
            invite(tmp_path / "owner")
            async with donor_of(swarm, owner, tmp_path / "donor", engines) as (donor, events, _):
                await offered(owner)
                await owner.answer(api.SetPaused(True))
                await anyio.sleep(60.0)
                assert await offers(owner) == [] and events[-1][0] == "waiting"
                assert PAUSED in events[-1][1]["because"]
                waits = await donor.answer(api.AskStatus())
                assert isinstance(waits, api.SwarmStatus) and waits.lending is not None
                assert PAUSED in waits.lending.waits_because
                await owner.answer(api.SetPaused(False))
                assert (await offered(owner)).peer == donor.host.peer_id

    play(story)


def test_an_invited_donor_waits_for_a_learner_and_carries_both_ways(tmp_path: Path) -> None:
    async def story() -> None:
        swarm, engines = Swarm(tmp_path), Engines()
        async with swarm.member("owner") as owner:
            invite(tmp_path / "owner")
            async with donor_of(swarm, owner, tmp_path / "donor", engines) as (donor, events, _):
                await anyio.sleep(5.0)
                assert "not_ready" in next(f["because"] for event, f in events if event == "waiting")
                offer = await offered(owner)
                assert (offer.peer, offer.name) == (donor.host.peer_id, "attic")
                assert engines.terms == [TERMS]
                async with learner_with(owner, offer.peer) as learner:
                    assert await offers(owner) == []  # it is in use
                    with pytest.raises(UnreachableError):
                        await owner.answer(api.UseDonor(offer.peer))
                    await learner.send(b"sample")
                    assert await engines.answer() == b"sample"
                    assert await learner.receive() == b"SAMPLE"
                    reply = await donor.answer(api.AskStatus())
                    assert isinstance(reply, api.SwarmStatus) and reply.lending is not None
                    assert reply.lending.model == "builtin:wren" and not reply.lending.waits_because
                # The learner is gone, for example by kill -9: the donor offers itself anew.
                again = await offered(owner)
                assert again.peer == offer.peer and len(engines.terms) == 2

    play(story)


def test_a_stranger_and_a_second_peer_with_the_same_secret_are_refused_for_good(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("owner") as owner:
            invite(tmp_path / "owner")
            await offers(owner)
            async with donor_of(swarm, owner, tmp_path / "first", Engines(), name="first") as (first, _, _):
                assert (await offered(owner)).peer == first.host.peer_id
                for name, secret in (("thief", SECRET), ("stranger", bytes(32))):
                    async with donor_of(swarm, owner, tmp_path / name, Engines(), secret, name) as (_, _, ended):
                        await anyio.sleep(10.0)
                        (error,) = ended
                        assert isinstance(error, RefusedError) and error.reason == LendRefusal.NOT_INVITED
                assert [each.peer for each in await offers(owner)] == [first.host.peer_id]

    play(story)


def test_a_dropped_donor_is_cut_off_at_once_and_refused_also_after_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        swarm, engines = Swarm(tmp_path), Engines()
        async with swarm.member("owner") as owner:
            invite(tmp_path / "owner")
            async with donor_of(swarm, owner, tmp_path / "donor", engines) as (_, _, ended):
                offer = await offered(owner)
                async with learner_with(owner, offer.peer) as learner:
                    await owner.answer(api.DropDonor(offer.peer, "it lied"))
                    with pytest.raises((anyio.EndOfStream, anyio.ClosedResourceError)):
                        await learner.receive()
                await anyio.sleep(10.0)
                (error,) = ended
                assert isinstance(error, RefusedError) and error.reason == LendRefusal.DROPPED
        (kept,) = donor_list.read_donors(tmp_path / "owner" / DONOR_LIST)
        assert (kept.peer, kept.dropped_because) == (offer.peer, "it lied")

    play(story)


def test_an_engine_that_dies_or_does_not_start_is_tried_again(tmp_path: Path) -> None:
    async def story() -> None:
        swarm, engines = Swarm(tmp_path), Engines()
        engines.fails = 2
        async with swarm.member("owner") as owner:
            invite(tmp_path / "owner")
            await offers(owner)
            async with donor_of(swarm, owner, tmp_path / "donor", engines) as (_, events, _):
                await anyio.sleep(15.0)
                assert any("no room" in fields.get("because", "") for _, fields in events)
                offer = await offered(owner)
                assert len(engines.terms) == 3
                async with learner_with(owner, offer.peer) as learner:
                    await engines.ends[-1].aclose()
                    with pytest.raises((anyio.EndOfStream, anyio.ClosedResourceError)):
                        await learner.receive()
                assert (await offered(owner)).peer == offer.peer and len(engines.ends) == 2

    play(story)


def test_a_learner_with_another_model_has_its_donors_come_again(tmp_path: Path) -> None:
    async def story() -> None:
        swarm, engines = Swarm(tmp_path), Engines()
        other = LendTerms("builtin:finch", 4, False, "auto", bytes([3]) * 16)
        async with swarm.member("owner") as owner:
            invite(tmp_path / "owner")
            await offers(owner)
            async with donor_of(swarm, owner, tmp_path / "donor", engines):
                await offered(owner)
                assert await offers(owner, other) == []
                for _ in range(60):
                    if await offers(owner, other):
                        break
                    await anyio.sleep(1.0)
                assert engines.terms == [TERMS, other]

    play(story)


def test_who_talks_before_it_was_asked_or_says_nothing_or_sends_no_hello_is_cut_off(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("owner") as owner, swarm.member("rude", owner) as rude:
            invite(tmp_path / "owner")
            await offers(owner)
            await anyio.sleep(5.0)
            hello = framed_message(LendHello(LEND_MAJOR, LEND_MINOR, SECRET, "rude"))
            other_major = framed_message(LendHello(LEND_MAJOR + 1, 0, SECRET, "rude"))
            for said, is_answered in (
                (b"", False),
                (b"\x00\x00\x00\x05hello", False),
                (b"\xff\xff\xff\xff", False),
                (hello + b"unasked", False),
                (other_major, True),
            ):
                stream = await rude.host.open_stream(owner.host.peer_id, LEND_PROTOCOL, deadline_seconds=5.0)
                if said:
                    await stream.send(said)
                with anyio.fail_after(60.0):
                    answer = b""
                    try:
                        while part := await stream.receive(4096):
                            answer += part
                    except UnreachableError:
                        pass
                assert bool(answer) == is_answered, said
                await stream.reset()
            assert await offers(owner) == []
            stream = await rude.host.open_stream(owner.host.peer_id, LEND_PROTOCOL, deadline_seconds=5.0)
            await stream.send(hello)
            await stream.receive(4096)
            assert len(await offers(owner)) == 1
            await stream.send(b"unasked")
            await anyio.sleep(1.0)
            assert await offers(owner) == []
            assert (await status(owner)).connected_peers == 1

    play(story)


def test_strangers_hold_no_place_without_an_invitation_and_never_that_of_a_donor(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("owner") as owner, swarm.member("rude", owner) as rude:
            await offers(owner)
            await anyio.sleep(5.0)
            silent = await rude.host.open_stream(owner.host.peer_id, LEND_PROTOCOL, deadline_seconds=5.0)
            assert LendRefusal.NOT_INVITED.encode() in await silent.receive(4096)  # at once, unasked
            invite(tmp_path / "owner")
            async with donor_of(swarm, owner, tmp_path / "donor", Engines()) as (donor, _, _):
                await offered(owner)
                invite(tmp_path / "owner", "another", bytes([9]) * 32)
                held = [
                    await rude.host.open_stream(owner.host.peer_id, LEND_PROTOCOL, deadline_seconds=5.0)
                    for _ in range(GREETING_AT_ONCE)
                ]
                await anyio.sleep(0.1)
                over = await rude.host.open_stream(owner.host.peer_id, LEND_PROTOCOL, deadline_seconds=5.0)
                assert LendRefusal.NOT_INVITED.encode() in await over.receive(4096)
                await owner.answer(api.CutOffDonor(donor.host.peer_id))  # it comes again, among them
                await anyio.sleep(0.1)
                with anyio.fail_after(HELLO_SECONDS - 1):  # while the others still hold their places
                    assert (await offered(owner)).peer == donor.host.peer_id
                assert len(held) == GREETING_AT_ONCE

    play(story)


def test_what_the_learner_does_not_take_stays_with_the_donor(tmp_path: Path) -> None:
    async def story() -> None:
        swarm, engines, sent = Swarm(tmp_path), Engines(), 0
        async with swarm.member("owner") as owner:
            invite(tmp_path / "owner")
            await offers(owner)
            async with donor_of(swarm, owner, tmp_path / "donor", engines):
                offer = await offered(owner)
                async with learner_with(owner, offer.peer) as learner:
                    await learner.send(b"sample")
                    await engines.ends[-1].receive()
                    with anyio.move_on_after(60.0):
                        for _ in range(1000):
                            await engines.ends[-1].send(bytes(1 << 16))
                            sent += 1
                    assert sent < 100  # what the pipes and the stream's window hold
                    for _ in range(sent):
                        await learner.receive()
                    with anyio.fail_after(60.0):
                        await engines.ends[-1].send(b"more")

    play(story)


def test_the_newest_stream_of_a_donor_counts(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("owner") as owner, swarm.member("friend", owner) as friend:
            invite(tmp_path / "owner")
            await offers(owner)
            await anyio.sleep(5.0)
            hello = framed_message(LendHello(LEND_MAJOR, LEND_MINOR, SECRET, "friend"))
            streams = []
            for _ in range(2):
                stream = await friend.host.open_stream(owner.host.peer_id, LEND_PROTOCOL, deadline_seconds=5.0)
                await stream.send(hello)
                await stream.receive(4096)
                streams.append(stream)
            with pytest.raises(UnreachableError):
                await streams[0].receive(1)
            assert [each.peer for each in await offers(owner)] == [friend.host.peer_id]
            async with learner_with(owner, friend.host.peer_id) as learner:
                await learner.send(b"to the newest")
                assert await streams[1].receive(4096) == b"to the newest"

    play(story)
