"""Messages of a hostile or faulty partner are refused, counted and reported, and hinder no other node."""

from __future__ import annotations

import struct
from typing import Any

import anyio
import msgspec
import pytest

from protocol.errors import TransportError
from protocol.limits import AVERAGING_MESSAGE_BYTES
from protocol.streams.averaging_messages import (
    AVERAGING_PROTOCOL,
    Abandon,
    Accept,
    AveragingMessage,
    Decline,
    Have,
    Propose,
)
from swarm.averaging.pairing import STREAMS_PER_PEER, TRIALS
from swarm.averaging.weight_exchange import Conversation
from swarm.peers.reputation import Conduct


def test_unfit_weights_are_abandoned_on_both_sides_and_not_asked_for_again(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2) as (one, liar):
            old = one.weights
            liar.weights = world.spoilt + liar.weights[4:]
            spoilt = liar.weights
            liar.averages(one.peer, deadline_seconds=20.0)
            one.averages(liar.peer, deadline_seconds=20.0)
            await world.over(one, liar)
            assert (one.weights, liar.weights) == (old, spoilt)
            assert one.outcome.because.startswith("1 × not finite")
            assert "1 × abandoned by the partner" in liar.outcome.because
            assert one.host.traffic().received_bytes < 1.5 * world.size

    world.play(story)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (struct.pack(">I", 0xFFFFFFFF), "oversized"),
        (struct.pack(">I", AVERAGING_MESSAGE_BYTES + 1) + bytes(AVERAGING_MESSAGE_BYTES + 1), "oversized"),
        (struct.pack(">I", 4) + b"\xc1\xc1\xc1\xc1", "malformed"),
        (struct.pack(">I", 1000) + b"\x91" * 1000, "oversized"),
        (struct.pack(">I", 3) + msgspec.msgpack.encode(["x"]), "malformed"),
        (struct.pack(">I", 0), "malformed"),
        (struct.pack(">I", 22) + msgspec.msgpack.encode(Abandon(bytes(16), "")), "malformed"),
    ],
)
@pytest.mark.parametrize("place", ["first", "answer", "last word"])
def test_hostile_bytes_are_refused_counted_and_reported_wherever_they_come(
    world: Any, raw: bytes, reason: str, place: str
) -> None:
    async def story() -> None:
        async with world.nodes(3) as (one, hostile, honest):
            if place == "first":
                await hostile.reach(one.peer, 5.0)
                stream = await hostile.host.open_stream(one.peer, AVERAGING_PROTOCOL, deadline_seconds=5.0)
                await stream.send(raw)
                with pytest.raises(TransportError):
                    assert await stream.receive(100) != b""
            else:

                async def attack(conversation: Conversation, proposal: Propose) -> None:
                    if place == "last word":
                        await conversation.send(Accept(hostile.offer()), 5.0)
                    await conversation.stream.send(raw)
                    await anyio.sleep(5.0)

                hostile.answers(attack)
                assert (await one.average(hostile.peer, deadline_seconds=4.0)).partner is None
            assert one.pairing.refused[reason] >= 1
            assert set(one.reports) == {(hostile.peer, Conduct.HOSTILE_REQUEST)}
            honest.averages()
            assert (await one.average(honest.peer)).partner == honest.peer

    world.play(story)


def test_an_acceptance_with_an_unfit_offer_and_a_decline_in_odd_words_lead_nowhere(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2) as (one, odd):
            for answer, because in (
                (Accept(odd.offer(layout=bytes(16))), "1 × other_layout"),
                (Decline("\x1b[31m"), "unknown to this version"),
            ):

                async def reply(
                    conversation: Conversation, proposal: Propose, answer: AveragingMessage = answer
                ) -> None:
                    await conversation.send(answer, 5.0)

                odd.answers(reply)
                outcome = await one.average(odd.peer, deadline_seconds=3.0)
                assert outcome.partner is None
                assert because in outcome.because

    world.play(story)


def test_who_asks_how_an_unknown_exchange_ended_hears_that_it_did_not_happen(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2) as (one, other):
            await one.reach(other.peer, 5.0)
            conversation = Conversation(
                await one.host.open_stream(other.peer, AVERAGING_PROTOCOL, deadline_seconds=5.0)
            )
            await conversation.send(Have(bytes(16)), 5.0)
            assert isinstance(await conversation.receive(5.0, Have, Abandon), Abandon)
            await conversation.stream.finish(linger_seconds=1.0)

    world.play(story)


def test_a_peer_that_opens_streams_and_says_nothing_holds_a_few_and_hinders_nobody(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(3) as (one, greedy, honest):
            await greedy.reach(one.peer, 5.0)
            held = [await greedy.host.open_stream(one.peer, AVERAGING_PROTOCOL, deadline_seconds=5.0) for _ in range(6)]
            await anyio.sleep(0.5)
            with pytest.raises(TransportError):
                await held[STREAMS_PER_PEER].receive(1)
            honest.averages()
            assert (await one.average(honest.peer)).partner == honest.peer
            await anyio.sleep(2 * world.terms.answer_seconds)
            with pytest.raises(TransportError):
                await held[0].receive(1)

    world.play(story)


def test_a_partner_that_serves_and_never_says_have_holds_us_for_seconds_and_is_reported(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(3) as (one, silent, honest):
            theirs = silent.offer()

            async def take_and_say_nothing(conversation: Conversation, proposal: Propose) -> None:
                if isinstance(proposal, Propose):  # it does not answer questions either
                    await conversation.send(Accept(theirs), 5.0)
                    await silent.bring(one.peer, proposal.offer)
                await anyio.sleep(10_000.0)

            silent.answers(take_and_say_nothing)
            outcome = await one.average(silent.peer, deadline_seconds=1.0)
            assert outcome.partner is None
            terms = world.terms
            assert outcome.seconds < terms.have_seconds_for(world.size) + 3 * terms.answer_seconds
            assert (silent.peer, Conduct.STALLED) in one.reports
            honest.averages()
            assert (await one.average(honest.peer)).partner == honest.peer

    world.play(story)


def test_a_stranger_that_proposes_and_never_says_have_hears_none_of_us_and_leaves_no_doubt(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2) as (one, stranger):
            one.is_known = lambda peer: False
            one.averages(deadline_seconds=1.0)
            await stranger.reach(one.peer, 5.0)
            conversation = Conversation(
                await stranger.host.open_stream(one.peer, AVERAGING_PROTOCOL, deadline_seconds=5.0)
            )
            await conversation.send(Propose(bytes(16), stranger.offer()), 5.0)
            accepted = await conversation.receive(5.0, Accept, Decline)
            assert isinstance(accepted, Accept)
            assert await stranger.bring(one.peer, accepted.offer) is None
            assert isinstance(await conversation.receive(60.0, Have, Abandon), Abandon)
            await one.ended.wait()
            assert one.outcome.partner is None
            assert one.outcome.seconds < world.terms.have_seconds_for(world.size) + 1.0
            assert (stranger.peer, Conduct.STALLED) in one.reports

    world.play(story)


def test_a_stranger_on_trial_that_never_says_have_hears_none_of_us_and_takes_no_time(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(3) as (one, stranger, honest):
            one.is_known, one.on_trial = lambda peer: peer == honest.peer, lambda peer: peer != honest.peer
            one.averages(deadline_seconds=60.0)
            await stranger.reach(one.peer, 5.0)
            conversation = Conversation(
                await stranger.host.open_stream(one.peer, AVERAGING_PROTOCOL, deadline_seconds=5.0)
            )
            await conversation.send(Propose(bytes(16), stranger.offer()), 5.0)
            accepted = await conversation.receive(5.0, Accept, Decline)
            assert isinstance(accepted, Accept)
            assert await stranger.bring(one.peer, accepted.offer) is None
            assert isinstance(await conversation.receive(60.0, Have, Abandon), Abandon)
            assert (stranger.peer, Conduct.STALLED) in one.reports
            silent = await stranger.host.open_stream(one.peer, AVERAGING_PROTOCOL, deadline_seconds=5.0)
            await Conversation(silent).send(Propose(b"2" * 16, stranger.offer()), 5.0)
            assert (await honest.average(one.peer, deadline_seconds=5.0)).partner == one.peer

    world.play(story)


def test_a_stranger_on_trial_that_fetches_and_says_have_is_averaged_with(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2) as (one, newcomer):
            one.is_known, one.on_trial = lambda peer: False, lambda peer: True
            one.averages(deadline_seconds=30.0)
            assert (await newcomer.average(one.peer)).partner == one.peer
            await world.over(one)
            assert one.outcome.partner == newcomer.peer and one.weights == newcomer.weights

    world.play(story)


def test_a_stranger_on_trial_that_says_have_before_it_fetched_is_no_partner(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2) as (one, liar):
            one.is_known, one.on_trial = lambda peer: False, lambda peer: True
            one.averages(deadline_seconds=20.0)
            await liar.reach(one.peer, 5.0)
            stream = await liar.host.open_stream(one.peer, AVERAGING_PROTOCOL, deadline_seconds=5.0)
            conversation = Conversation(stream)
            await conversation.send(Propose(bytes(16), liar.offer()), 5.0)
            assert isinstance(await conversation.receive(5.0, Accept, Decline), Accept)
            await conversation.send(Have(bytes(16)), 5.0)
            assert isinstance(await conversation.receive(60.0, Have, Abandon), Abandon)
            assert not one.ended.is_set() and not one.store.has(liar.offer().blob)

    world.play(story)


def test_many_strangers_on_trial_push_out_each_other_and_not_one_from_elsewhere(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(TRIALS + 4) as nodes:
            one, newcomer, *crowd = nodes
            one.is_known, one.on_trial = lambda peer: False, lambda peer: True
            at = {peer.peer: "198.51.100.9" for peer in crowd} | {newcomer.peer: "203.0.113.5"}
            one.host.remote_ip = lambda peer: at[peer]
            one.averages(deadline_seconds=60.0)
            conversations = []
            for stranger in [newcomer, *crowd]:
                await stranger.reach(one.peer, 5.0)
                stream = await stranger.host.open_stream(one.peer, AVERAGING_PROTOCOL, deadline_seconds=5.0)
                conversations.append(Conversation(stream))
                await conversations[-1].send(Propose(bytes(16), stranger.offer()), 5.0)
                assert isinstance(await conversations[-1].receive(5.0, Accept, Decline), Accept)
            assert isinstance(await conversations[1].receive(1.0, Have, Abandon), Abandon)
            with pytest.raises(TransportError):
                await conversations[0].receive(1.0, Have, Abandon)

    world.play(story)


def test_a_peer_that_we_would_not_ask_cannot_take_our_time_by_proposing(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(3) as (one, stranger, honest):
            one.accepts = lambda peer: peer == honest.peer
            one.averages(deadline_seconds=30.0)
            assert (await stranger.average(one.peer, deadline_seconds=10.0)).partner is None
            assert (await honest.average(one.peer)).partner == one.peer

    world.play(story)
