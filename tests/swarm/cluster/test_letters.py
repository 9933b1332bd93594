"""Codes that are read out, in virtual time: who gets the letter, what is said to everybody else, and what bounds it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import anyio
import pytest

from protocol.cluster.admission import read_invite
from protocol.cluster.invite import Invite, encode_invite
from protocol.cluster.spoken_code import SpokenSecrets, seal_letter
from protocol.errors import ConfigurationError, RefusedError, UnreachableError
from protocol.limits import LETTER_MESSAGE_BYTES, LETTER_SECONDS
from protocol.streams.framing import framed
from protocol.streams.letter_messages import LETTERS_PROTOCOL, HoldLetter, LetterReceipt
from swarm import api
from swarm.cluster.letter_box import LETTERS, PER_MEMBER, REMEMBERED_SECONDS, LetterBox
from swarm.cluster.letter_taking import LetterReader, take_letter
from swarm.hosts.simulated.network import SimulatedNetwork
from swarm.relay_service import RelayService
from swarm.service import SwarmService
from swarm.settings import ServiceSettings
from tests.swarm.cluster.test_cluster import OWNER, PSK, SETTLE_SECONDS, Lab, connected, key_of, peer, play

CODE_SECONDS = 20  # of virtual time


def secrets_like(code: int) -> SpokenSecrets:
    """Secrets as of a code, without its slow derivation."""
    drawn = Random(code).randbytes(80)
    return SpokenSecrets(drawn[:16], drawn[16:48], drawn[48:])


def text_of(invite: Invite) -> str:
    return encode_invite(
        document=invite.document, key=invite.key, owner=OWNER.public_bytes, psk=PSK, addresses=invite.addresses
    )


def letter_of(code: int, text: str, seconds: int = CODE_SECONDS) -> HoldLetter:
    derived = secrets_like(code)
    return HoldLetter(derived.lookup, derived.psk, seal_letter(derived, text), seconds)


async def leave(service: SwarmService | RelayService, code: int, invite: Invite) -> str:
    reply = await service.answer(api.LeaveLetter(letter_of(code, text_of(invite))))
    assert isinstance(reply, api.LetterLeft)
    return reply.holder


async def seen(service: SwarmService | RelayService, code: int) -> LetterReceipt:
    reply = await service.answer(api.AskLetter(secrets_like(code).lookup))
    assert isinstance(reply, api.LetterSeen)
    return reply.receipt


async def take(lab: Lab, name: str, code: int, doors: Sequence[str], **how: object) -> str:
    """Does what ``starling up --join CODE@ADDRESS`` does before it has the invite."""
    reader = LetterReader(secrets_like(code))
    host = lab.network.host(key_of(name), reader)
    async with host.run():
        return await take_letter(host, reader, doors, **how)  # type: ignore[arg-type]


async def refusal(lab: Lab, name: str, code: int, doors: Sequence[str]) -> str:
    with pytest.raises(RefusedError) as refused:
        await take(lab, name, code, doors)
    return refused.value.reason


def spoken_address(service: SwarmService | RelayService) -> str:
    """An address that can be read out has no peer id."""
    return service.host.addresses()[0].partition("/p2p/")[0]


def test_newcomer_with_a_code_gets_the_invite_joins_and_the_inviter_hears_who_it_was(tmp_path: Path) -> None:
    async def story() -> None:
        lab = Lab(tmp_path)
        async with lab.member("founder") as founder:
            assert await leave(founder, 1, lab.invite(founder)) == peer("founder")
            assert (await seen(founder, 1)).state == "waiting"
            text = await take(lab, "wren", 1, [spoken_address(founder)])
            assert peer("wren") not in connected(founder), "taking a letter makes nobody a peer"
            invite = read_invite(text, lab.now())
            assert isinstance(invite, Invite)
            await lab.join("wren", invite)
            assert await seen(founder, 1) == LetterReceipt("taken", peer("wren"))
            async with lab.member("wren"):
                await anyio.sleep(SETTLE_SECONDS)
                assert connected(founder) == {peer("wren")}

    play(story)


def test_a_code_is_good_for_one_peer_which_may_ask_again_where_its_connection_broke(tmp_path: Path) -> None:
    async def story() -> None:
        lab = Lab(tmp_path)
        async with lab.member("founder") as founder:
            await leave(founder, 1, lab.invite(founder))
            doors = [spoken_address(founder)]
            first = await take(lab, "wren", 1, doors)
            assert await refusal(lab, "thief", 1, doors) == "taken"
            assert await take(lab, "wren", 1, doors) == first
            assert (await seen(founder, 1)).taken_by == peer("wren")
            await anyio.sleep(CODE_SECONDS)
            assert await refusal(lab, "wren", 1, doors) == "expired"
            assert await refusal(lab, "thief", 1, doors) == "taken"

    play(story)


def test_a_wrong_and_a_late_code_are_told_apart_and_nobody_is_reached_elsewhere(tmp_path: Path) -> None:
    async def story() -> None:
        lab = Lab(tmp_path)
        async with lab.member("founder") as founder:
            await leave(founder, 1, lab.invite(founder))
            doors = [spoken_address(founder)]
            assert await refusal(lab, "wren", 2, doors) == "wrong_code"
            with pytest.raises(UnreachableError, match="no node could be asked"):
                await take(lab, "wren", 1, ["/ip4/10.9.9.9/tcp/4001"])
            await anyio.sleep(CODE_SECONDS)
            assert (await seen(founder, 1)).state == "expired"
            assert await refusal(lab, "wren", 1, doors) == "expired"

    play(story)


def test_a_machine_is_found_by_its_name_and_the_local_network_is_asked_where_none_was_said(tmp_path: Path) -> None:
    async def story() -> None:
        lab = Lab(tmp_path)
        async with lab.member("founder") as founder:
            await leave(founder, 1, lab.invite(founder))

            lab.network.name("/dns4/door.example.org/tcp/4001", ["/ip4/10.9.9.9/tcp/4001", spoken_address(founder)])
            assert (await take(lab, "wren", 1, ["/dns4/door.example.org/tcp/4001"])).startswith("starling://")

            async def hear() -> list[str]:
                return ["/ip4/10.9.9.9/tcp/4001", founder.host.addresses()[0]]

            assert (await take(lab, "wren", 1, [], hear=hear)).startswith("starling://")

    play(story)


@asynccontextmanager
async def behind_a_router(lab: Lab) -> AsyncIterator[tuple[SwarmService, RelayService]]:
    """The founder, which nobody can dial, and the relay that is a member."""
    async with lab.member("founder", owner=True) as founder:
        await lab.join("relay", lab.invite(founder))
    async with lab.relay("relay") as relay, lab.member("founder", relay, can_be_dialled=False) as founder:
        await anyio.sleep(60.0)
        yield founder, relay


def test_a_member_behind_a_router_leaves_its_letter_at_its_relay_and_hears_who_took_it(tmp_path: Path) -> None:
    async def story() -> None:
        lab = Lab(tmp_path)
        async with behind_a_router(lab) as (founder, relay):
            assert await leave(founder, 1, lab.invite(relay)) == peer("relay")
            assert (await seen(founder, 1)).state == "waiting"
            assert (await seen(relay, 1)).state == "unknown", "who left it hears of it, and nobody else"
            await take(lab, "wren", 1, [spoken_address(relay)])
            assert await seen(founder, 1) == LetterReceipt("taken", peer("wren"))

    play(story)


def test_a_relay_without_letters_is_named_with_what_to_do(tmp_path: Path) -> None:
    async def story() -> None:
        lab = Lab(tmp_path)
        async with behind_a_router(lab) as (founder, relay):
            del relay.host._handlers[LETTERS_PROTOCOL]  # type: ignore[attr-defined]  # an earlier version
            with pytest.raises(UnreachableError, match="earlier version") as refused:
                await leave(founder, 1, lab.invite(relay))
            assert peer("relay") in str(refused.value)

    play(story)


def test_an_open_swarm_has_no_letters() -> None:
    """Its nodes need no invite, and strangers could leave letters there."""
    network = SimulatedNetwork(seed=1)
    settings = ServiceSettings("/nonexistent", "lark", "0" * 32)
    service = RelayService(
        network.host(key_of("door")), key_of("door"), settings, wall_clock=lambda: 0.0, random=Random(1)
    )

    async def story() -> None:
        with pytest.raises(ConfigurationError):
            await service.answer(api.AskLetter(bytes(16)))

    play(story)


# Hostile


def letter(number: int, seconds: int = CODE_SECONDS) -> HoldLetter:
    return letter_of(number, "starling://1", seconds)


def test_a_member_fills_its_own_places_alone_and_what_waits_is_never_pushed_out() -> None:
    box = LetterBox()
    members = LETTERS // PER_MEMBER
    for number in range(PER_MEMBER):
        assert box.hold(0.0, "flood", letter(number)).state == "waiting"
    for number in range(100, 200):
        assert box.hold(0.0, "flood", letter(number)).state == "full"
    for other in range(1, members):
        for number in range(PER_MEMBER):
            assert box.hold(0.0, f"member {other}", letter(1000 * other + number)).state == "waiting"
    assert box.hold(0.0, "one more", letter(9)).state == "full"
    assert len(box.keys(0.0)) == LETTERS
    assert [box.receipt(0.0, letter(number).lookup, "flood").state for number in range(PER_MEMBER)] == [
        "waiting"
    ] * PER_MEMBER


def test_a_member_that_leaves_letters_without_end_makes_nobody_elses_be_forgotten() -> None:
    box = LetterBox()
    box.hold(0.0, "owner", letter(1))
    box.take(1.0, letter(1).lookup, "thief")
    for number in range(100, 300):
        assert box.hold(number, "flood", letter(number, seconds=1)).state == "waiting"
    assert len(box.keys(300.0)) == 1 + PER_MEMBER
    assert box.receipt(300.0, letter(1).lookup, "owner") == LetterReceipt("taken", "thief")


def test_a_lookup_in_use_is_not_replaced_and_nothing_outlasts_its_time() -> None:
    box = LetterBox()
    box.hold(0.0, "owner", letter(1))
    forged = HoldLetter(letter(1).lookup, bytes(32), b"forged", CODE_SECONDS)
    assert box.hold(0.0, "other", forged).state == "full"
    assert box.take(0.0, letter(1).lookup, "wren").letter == letter(1).letter
    late = LETTER_SECONDS + REMEMBERED_SECONDS
    assert box.hold(0.0, "other", letter(2, LETTER_SECONDS)).state == "waiting"
    assert len(box.keys(late - 1.0)) == 1 and box.keys(late) == []


def test_a_stranger_that_knows_no_code_gets_no_word_and_one_with_the_clusters_key_no_letter(tmp_path: Path) -> None:
    async def story() -> None:
        lab = Lab(tmp_path)
        async with lab.member("founder") as founder:
            await leave(founder, 1, lab.invite(founder))
            for psk, reason in ((bytes(32), "wrong_code"), (PSK, "unknown")):
                guessed = replace(secrets_like(2), psk=psk)
                reader = LetterReader(guessed)
                host = lab.network.host(key_of(reason), reader)
                async with host.run():
                    with pytest.raises(RefusedError) as refused:
                        await take_letter(host, reader, [spoken_address(founder)])
                assert refused.value.reason == "wrong_code"
            assert (await seen(founder, 1)).state == "waiting"
            assert connected(founder) == set()

    play(story)


def test_a_code_makes_nobody_a_member(tmp_path: Path) -> None:
    """Under the letter's key the handshake asks for a credential as under every other."""

    async def story() -> None:
        lab = Lab(tmp_path)
        async with lab.member("founder") as founder:
            await leave(founder, 1, lab.invite(founder))
            code = secrets_like(1)
            invite = lab.invite(founder, psk=code.psk, swarm_id=bytes(16))
            with pytest.raises(RefusedError):
                await lab.join("thief", invite)
            assert connected(founder) == set()

    play(story)


def test_a_holder_that_alters_a_letter_is_found_out(tmp_path: Path) -> None:
    async def story() -> None:
        lab = Lab(tmp_path)
        async with lab.member("founder") as founder:
            altered = letter_of(1, "starling://1")
            altered = HoldLetter(altered.lookup, altered.psk, altered.letter[:-1] + b"?", altered.seconds)
            await founder.answer(api.LeaveLetter(altered))
            assert await refusal(lab, "wren", 1, [spoken_address(founder)]) == "damaged"

    play(story)


def test_only_members_leave_letters_and_a_frame_over_the_bound_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async def story() -> None:
        lab = Lab(tmp_path)
        async with lab.member("founder") as founder:
            await lab.join("wren", lab.invite(founder))
            async with lab.member("wren") as wren:
                await anyio.sleep(SETTLE_SECONDS)
                for sent in (framed(bytes(LETTER_MESSAGE_BYTES + 1))[:8], framed(b"noise")):
                    stream = await wren.host.open_stream(peer("founder"), LETTERS_PROTOCOL, deadline_seconds=5.0)
                    await stream.send(sent)
                    with pytest.raises(UnreachableError):
                        await stream.receive(1)
                stranger = lab.network.host(key_of("stranger"), LetterReader(replace(secrets_like(3), psk=PSK)))
                async with stranger.run():
                    with pytest.raises(RefusedError):
                        await stranger.connect(founder.host.addresses()[0], deadline_seconds=5.0)
                    with pytest.raises(UnreachableError):
                        await stranger.open_stream(peer("founder"), LETTERS_PROTOCOL, deadline_seconds=5.0)
            assert founder.host.faults.keys() == {"oversized", "malformed"}  # type: ignore[attr-defined]

    play(story)
