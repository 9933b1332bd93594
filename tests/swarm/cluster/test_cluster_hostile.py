"""Hostile messages in the handshake and on ``/starling/members/1`` are refused, bounded, and without effect."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from protocol import wire
from protocol.cluster.admission import Admitted, certify
from protocol.cluster.cluster_manifest import ClusterManifest, sign_manifest
from protocol.cluster.documents import Credential, KeyChange, Revocations, sign_key_change, sign_revocations
from protocol.cluster.refusal import RefusalReason
from protocol.errors import DeadlineError, OversizedError, ProtocolError, RefusedError, UnreachableError
from protocol.identity import NodeKey
from protocol.limits import HANDSHAKE_MESSAGE_BYTES
from protocol.streams.handshake_messages import (
    HandshakeAnswer,
    HandshakeConclusion,
    HandshakeDocuments,
    HandshakeGreeting,
    HandshakeRefusal,
    encode_handshake,
)
from protocol.streams.member_messages import MembersAnswer, MembersNews, MembersQuestion
from swarm.cluster.handshake import perform_handshake
from swarm.cluster.membership import ClusterCredentials, Membership
from swarm.host import GossipVerdict
from swarm.hosts.libp2p.libp2p_host import Libp2pHost

NOW = 1_790_000_000.0
OWNER, US, PEER, STRANGER = (NodeKey(bytes([number]) * 32) for number in (1, 2, 3, 4))
PSK = b"k" * 32
SECRETS = (PSK, b"n" * 32)


def cluster() -> Any:
    manifest = ClusterManifest("lab", (), OWNER.public_bytes, int(NOW), "invitation", 8, 1_000_000)
    return sign_manifest(OWNER, manifest)


LAB = cluster()


def credential(key: NodeKey) -> bytes:
    admitted = Admitted(key.public_bytes, OWNER.public_bytes, True, 0.0, "")
    return Credential("certificate", certify(OWNER, LAB, admitted, NOW)).encode()


def member(key: NodeKey = US, **credentials: Any) -> Membership:
    kept: dict[str, bytes] = {}
    return Membership(
        key, ClusterCredentials(LAB, PSK, credential(key), **credentials), wall_clock=lambda: NOW, keep=kept.__setitem__
    )


def revocations(sequence: int, *keys: NodeKey, signer: NodeKey = OWNER) -> bytes:
    peers = tuple(key.public_bytes for key in keys)
    return sign_revocations(signer, Revocations(LAB.swarm_id, sequence, int(NOW), peers, ()))


def key_change(signer: NodeKey = OWNER) -> bytes:
    return sign_key_change(signer, KeyChange(LAB.swarm_id, 1, int(NOW), SECRETS[1], ()))


def greeting(key: NodeKey, **changes: Any) -> bytes:
    fields = {
        "swarm_id": LAB.swarm_id, "time_seconds": int(NOW), "credential": credential(key), "revocations": 0,
        "key_change": 0, "wants_manifest": True,
    }  # fmt: skip
    return encode_handshake(HandshakeGreeting(**(fields | changes)))


def test_members_let_each_other_in_and_the_later_documents_pass_both_ways() -> None:
    ours, theirs = member(revocations=revocations(3)), member(PEER, key_change=key_change())
    answer = theirs.answer(US.peer_id, ours.greet(PEER.peer_id))
    conclusion = ours.conclude(PEER.peer_id, answer.frame)
    theirs.confirm(US.peer_id, conclusion.frame)
    assert (answer.refused, conclusion.refused) == (None, None)
    assert theirs.revocations is not None and theirs.revocations.sequence == 3
    assert ours.keys() == [SECRETS[1]]
    assert ours.refusal(PEER.peer_id) is None and theirs.refusal(US.peer_id) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"credential": b""}, RefusalReason.NO_MEMBER),
        ({"credential": credential(PEER)}, RefusalReason.WRONG_KEY),
        ({"credential": credential(STRANGER)[:-1]}, RefusalReason.DAMAGED),
        ({"swarm_id": bytes(16)}, RefusalReason.WRONG_SWARM),
        ({"time_seconds": int(NOW) + 3600}, RefusalReason.CLOCK),
    ],
)
def test_stranger_is_refused_by_reason_and_gets_nothing_else(changes: dict[str, Any], reason: RefusalReason) -> None:
    ours = member(key_change=key_change(), revocations=revocations(1))
    said = ours.answer(STRANGER.peer_id, greeting(STRANGER, **changes))
    assert said.refused is not None and said.refused.reason == reason
    answer = msgspec.msgpack.decode(said.frame, type=HandshakeAnswer)
    assert answer == HandshakeAnswer(HandshakeRefusal(reason, int(NOW)), None, None)
    assert ours.refusal(STRANGER.peer_id) is not None
    assert not [secret for secret in SECRETS if secret in said.frame]


def test_revoked_peer_gets_the_list_that_proves_it_and_believes_nothing_without() -> None:
    ours, out = member(revocations=revocations(1, PEER), key_change=key_change()), member(PEER)
    said = ours.answer(PEER.peer_id, out.greet(US.peer_id))
    assert SECRETS[1] not in said.frame
    lie = encode_handshake(HandshakeAnswer(HandshakeRefusal(RefusalReason.REVOKED, int(NOW)), None, None))
    concluded = out.conclude(US.peer_id, lie)
    assert concluded.refused is not None and out.own_refusal() is None
    forged = HandshakeRefusal(RefusalReason.REVOKED, int(NOW), revocations(1, PEER, signer=STRANGER))
    out.conclude(US.peer_id, encode_handshake(HandshakeAnswer(forged, None, None)))
    assert out.own_refusal() is None
    out.conclude(US.peer_id, said.frame)
    refused = out.own_refusal()
    assert refused is not None and refused.reason is RefusalReason.REVOKED


def test_member_that_brings_the_list_which_names_itself_is_not_let_in() -> None:
    ours = member()
    ours.answer(PEER.peer_id, greeting(PEER))
    with pytest.raises(RefusedError, match="revoked"):
        documents = HandshakeDocuments(revocations=revocations(1, PEER))
        ours.confirm(PEER.peer_id, encode_handshake(HandshakeConclusion(None, documents)))


def test_documents_of_another_signer_are_counted_and_not_taken() -> None:
    ours = member()
    documents = HandshakeDocuments(revocations=revocations(9, US, signer=STRANGER), key_change=key_change(STRANGER))
    answer = HandshakeAnswer(None, msgspec.msgpack.decode(greeting(PEER), type=HandshakeGreeting), documents)
    assert ours.conclude(PEER.peer_id, encode_handshake(answer)).refused is None
    assert (ours.revocations, ours.keys()) == (None, [PSK])
    assert ours.refusals[RefusalReason.WRONG_KEY] == 2


def test_no_text_form_shows_a_key() -> None:
    ours = member(key_change=key_change())
    credentials = ClusterCredentials(LAB, PSK, credential(US), key_change=key_change())
    news = MembersNews((), b"", key_change())
    shown = f"{credentials!r}{ours.key_change!r}{ours.documents!r}{news!r}{HandshakeConclusion(None, ours.documents)!r}"
    assert not [secret for secret in SECRETS for form in (repr(secret)[2:-1], secret.hex()) if form in shown]


@given(st.data())
def test_whatever_bytes_come_to_the_door_are_a_refusal_or_a_protocol_error_and_let_nobody_in(data: Any) -> None:
    ours = member()
    sound = greeting(STRANGER, credential=b"")
    position = data.draw(st.integers(0, len(sound) - 1))
    changed = sound[:position] + data.draw(st.binary(max_size=40)) + sound[position + data.draw(st.integers(0, 9)) :]
    raw = data.draw(st.sampled_from([changed, sound[:position]]) | st.binary(max_size=300))
    for say in (ours.answer, ours.conclude, ours.confirm):
        try:
            said = say(STRANGER.peer_id, raw)
        except (ProtocolError, RefusedError):
            continue
        assert said is None or said.refused is not None
    assert ours.refusal(STRANGER.peer_id) is not None


@given(st.binary(max_size=300), st.sampled_from([MembersQuestion, MembersAnswer, MembersNews]))
def test_noise_in_place_of_a_message_about_members_is_a_protocol_error(raw: bytes, kind: Any) -> None:
    try:
        decoded = wire.decode(raw, kind, max_bytes=300)
    except ProtocolError:
        return
    assert isinstance(decoded, kind)


def test_frame_that_claims_too_much_is_refused_before_it_is_read_and_silence_ends_at_a_deadline() -> None:
    async def say(claim: bytes) -> None:
        async def receive(size: int) -> bytes:
            if size != len(claim):
                await trio.sleep_forever()
            return claim

        async def send(frame: bytes) -> None:
            raise AssertionError("nothing is said to who was not heard")

        await perform_handshake(member(), STRANGER.peer_id, send, receive, dialled=False)

    async def main() -> None:
        with pytest.raises(OversizedError):
            await say((HANDSHAKE_MESSAGE_BYTES + 1).to_bytes(4, "big"))
        with pytest.raises(DeadlineError, match=STRANGER.peer_id):
            await say(HANDSHAKE_MESSAGE_BYTES.to_bytes(4, "big"))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_on_sockets_members_meet_and_who_holds_the_key_and_no_credential_gets_no_connection(tell_on_sockets) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        handshakes = {key: member(key) for key in (US, PEER)}
        stranger = member(PEER)  # shows the credential of another
        hosts = [
            Libp2pHost(key, ["/ip4/127.0.0.1/tcp/0"], handshake=handshake)
            for key, handshake in [*handshakes.items(), (STRANGER, stranger)]
        ]
        async with hosts[0].run(), hosts[1].run(), hosts[2].run():
            address = hosts[0].addresses()[0]
            with pytest.raises(RefusedError) as refused:
                await hosts[2].connect(address, deadline_seconds=60)
            assert refused.value.reason == RefusalReason.WRONG_KEY
            assert hosts[0].failures.counts["handshake"] == 1
            assert await hosts[1].connect(address, deadline_seconds=60) == US.peer_id
            await world.eventually(lambda: list(hosts[0].peers()) == [PEER.peer_id])
            assert list(hosts[2].peers()) == []
            assert {str(p) for p in hosts[0]._network.peerstore.peer_ids()} <= {US.peer_id, PEER.peer_id}

            await hosts[0].subscribe("t", lambda peer, raw: GossipVerdict.ACCEPT, lambda peer, raw: None)
            handshakes[US].take_revocations(revocations(1, PEER))
            with pytest.raises(UnreachableError):
                stream = await hosts[1].open_stream(US.peer_id, "/test/echo/1", deadline_seconds=60)
                await stream.receive(1)

    tell_on_sockets(story)
