"""Announcements, messages on streams, manifests, documents of a cluster and invites: their decoders alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import msgspec

from protocol import base58, limits
from protocol.blob_id import id_of_chunk_hashes
from protocol.cluster.admission import (
    judge_as_made,
    judge_credential,
    judge_join,
    judge_key_change,
    judge_revocations,
    read_invite,
    read_manifest,
)
from protocol.cluster.cluster_manifest import MANIFEST_DOMAIN, ClusterManifest, open_manifest
from protocol.cluster.documents import (
    CERTIFICATE_DOMAIN,
    INVITATION_DOMAIN,
    KEY_CHANGE_DOMAIN,
    REVOCATIONS_DOMAIN,
    Certificate,
    Credential,
    Invitation,
    Join,
    KeyChange,
    Revocations,
    sign_join,
)
from protocol.cluster.invite import SCHEME, _check, decode_invite
from protocol.cluster.signed_document import body_of, sign_document
from protocol.cluster.spoken_code import open_letter, read_spoken, seal_letter, secrets_of
from protocol.errors import ProtocolError
from protocol.manifest import Manifest, decode_manifest
from protocol.messages import Goodbye, Heartbeat, RolloutAdvert, StateAdvert
from protocol.streams.averaging_messages import (
    Abandon,
    Accept,
    Decline,
    Have,
    Offer,
    Propose,
    decode_averaging_message,
)
from protocol.streams.blob_messages import (
    ANSWER_HEADER_BYTES,
    ChunkRange,
    decode_answer_header,
    decode_blob_request,
)
from protocol.streams.framing import LENGTH_BYTES, checked_body_length
from protocol.streams.handshake_messages import (
    HandshakeAnswer,
    HandshakeConclusion,
    HandshakeGreeting,
    decode_handshake,
)
from protocol.streams.letter_messages import (
    AskAboutLetter,
    HoldLetter,
    LetterAnswer,
    LetterReceipt,
    LetterRequest,
    decode_letter_message,
    decode_letter_question,
    is_letter_request,
)
from protocol.streams.member_messages import (
    MembersAnswer,
    MembersNews,
    MembersQuestion,
    decode_members_message,
    split_digests,
)
from protocol.streams.peer_messages import PeerExchangeAnswer, PeerExchangeQuestion, decode_peer_message
from protocol.swarm_list import SWARM_LIST_DOMAIN, SwarmList, open_swarm_list
from protocol.wire import Envelope, open_announcement, open_body
from scripts.attacks.fuzzing.extremes import Extremes, encoded
from scripts.attacks.fuzzing.targets import Target, direct
from scripts.vectors.announcement_vectors import NOW_SECONDS, announcements, refused_announcements
from scripts.vectors.cluster_vectors import (
    CLUSTER_MADE,
    INVITATION_KEY,
    OWNER,
    PEER,
    example_cluster,
    example_invitation,
    judged_credentials,
    membership,
)
from scripts.vectors.plain_values import SWARM_ID
from scripts.vectors.stream_vectors import (
    EXAMPLE_CODE,
    averaging_messages,
    blob_messages,
    example_documents,
    handshake_messages,
    letter_messages,
    member_messages,
    peer_messages,
)
from scripts.vectors.swarm_list_vectors import NOW_SECONDS as NOW_OF_LISTS
from scripts.vectors.swarm_list_vectors import OPEN, PRIVATE, swarm_lists
from swarm.averaging.pairing_rules import (
    ExchangeEvent,
    ExchangeProgress,
    PairingState,
    Terms,
    after_event,
    reason_to_decline,
)
from swarm.cluster.letter_box import LetterBox
from swarm.host import LanSwarm
from swarm.hosts.lan import decode_swarm, decode_txt, encode_txt

_OFFER = Offer(bytes(16), bytes(16), "sparse-2bit", 41, bytes(32), 1000)
_HOUR = CLUSTER_MADE + 3600.0


def frames(vectors: list[dict[str, Any]]) -> list[bytes]:
    return [bytes.fromhex(vector["frame"])[LENGTH_BYTES:] for vector in vectors]


def one_of(*kinds: type, most: int) -> Callable[[Random], bytes]:
    return lambda random: encoded(random, random.choice(kinds), most)


def message_targets() -> list[Target]:
    return [*_announcements(), *_streams(), *_documents(), *_texts()]


def _announcements() -> list[Target]:
    sound = [bytes.fromhex(vector["announcement"]) for vector in announcements()]
    others = [bytes.fromhex(vector["announcement"]) for vector in refused_announcements()]
    payloads = [msgspec.msgpack.decode(raw)[0] for raw in sound]
    manifests = [Manifest("стая", (("chain_sum", 1, b"\x01" * 16), ("b", 2, b"\x02" * 16))).encode()]
    return [
        Target(
            "announcement",
            direct(partial(open_announcement, swarm_id=SWARM_ID, now_seconds=NOW_SECONDS)),
            sound + others,
            12,
        ),
        Target("body of an announcement", direct(_open_body), payloads, 24, _payload, 24),
        Target("manifest", direct(_manifest), manifests, 8, one_of(Manifest, most=limits.MANIFEST_BYTES), 4),
    ]


def _open_body(payload: bytes) -> None:
    open_body(Envelope(PEER.peer_id, 1, NOW_SECONDS, payload))


def _payload(random: Random) -> bytes:
    """The payload of an announcement, as it is before it is signed."""
    body = encoded(
        random, random.choice((Heartbeat, RolloutAdvert, StateAdvert, Goodbye)), limits.ANNOUNCEMENT_BYTES - 256
    )
    return msgspec.msgpack.encode((1, 0, SWARM_ID, 1, 1, bytes(32), msgspec.Raw(body)))


def _manifest(raw: bytes) -> bytes:
    return decode_manifest(raw).swarm_id


def _streams() -> list[Target]:
    averaging = (Propose, Accept, Decline, Have, Abandon)
    peers = (PeerExchangeQuestion, PeerExchangeAnswer)
    handshake = (HandshakeGreeting, HandshakeAnswer, HandshakeConclusion)
    members = (MembersQuestion, MembersAnswer, MembersNews)
    letters = (LetterRequest, LetterAnswer, HoldLetter, AskAboutLetter, LetterReceipt)
    headers = [bytes.fromhex(each)[:ANSWER_HEADER_BYTES] for v in blob_messages() for each in v["answers"]]
    asked = _every(decode_handshake, handshake)
    of_cluster = one_of(*handshake, most=limits.HANDSHAKE_MESSAGE_BYTES)
    of_members = one_of(*members, most=limits.MEMBERS_MESSAGE_BYTES)
    proposals = frames(averaging_messages())
    return [
        Target("averaging message", direct(_averaging), proposals, 16, one_of(*averaging, most=1024), 8),
        Target("blob request", direct(decode_blob_request), frames(blob_messages()), 12, _ranges, 4),
        Target("blob answer", direct(_answer_header), headers, 4),
        Target("peer exchange", direct(_every(decode_peer_message, peers)), frames(peer_messages()), 8),
        Target("handshake of a cluster", direct(asked), frames(handshake_messages()), 8, of_cluster, 4),
        Target("letter", direct(_letter), frames(letter_messages()), 4, one_of(*letters, most=2144), 2),
        Target("members of a cluster", direct(_members), frames(member_messages()), 8, of_members, 4),
    ]


def _every(decode: Callable[[bytes, Any], object], kinds: tuple[type, ...]) -> Callable[[bytes], object]:
    """A decoder that takes a message for the kind that its first byte chooses."""
    return lambda raw: decode(raw, kinds[sum(raw[:2]) % len(kinds)])


def _averaging(raw: bytes) -> None:
    """Decodes a message, and does what either side would do next."""
    message = decode_averaging_message(raw)
    progress = ExchangeProgress()
    match message:
        case Propose(_, offer) | Accept(offer):
            reason_to_decline(PairingState("a", _OFFER), "b", offer, Terms(1 << 30, 4))
        case Have():
            for event in (ExchangeEvent.HELD, ExchangeEvent.SENDING_HAVE, ExchangeEvent.HAVE_RECEIVED):
                progress = after_event(progress, event)
        case Abandon():
            after_event(progress, ExchangeEvent.REFUSED)


def _ranges(random: Random) -> bytes:
    draw = Extremes(random, 1.0 if random.random() < 0.02 else 0.005)
    return msgspec.msgpack.encode(draw.entries(0, limits.RANGES_PER_REQUEST, lambda: draw.of(ChunkRange)))


def _answer_header(raw: bytes) -> None:
    if len(raw) >= LENGTH_BYTES:
        checked_body_length(raw[:LENGTH_BYTES], max_bytes=limits.BLOB_REQUEST_BYTES, what="blobs")
    if len(raw) >= ANSWER_HEADER_BYTES:  # a reader never has fewer
        _, size_bytes = decode_answer_header(raw[:ANSWER_HEADER_BYTES])
        id_of_chunk_hashes(size_bytes, [raw] * (len(raw) % 3))


def _letter(raw: bytes) -> None:
    """Decodes a message, and does what a member does next."""
    box = LetterBox()
    if is_letter_request(raw):
        box.take(0.0, decode_letter_message(raw, LetterRequest).lookup, PEER.peer_id)
        return
    kinds: tuple[Any, ...] = (LetterAnswer, LetterReceipt)
    with suppress(ProtocolError):
        decode_letter_message(raw, kinds[sum(raw[:2]) % len(kinds)])
    question = decode_letter_question(raw)
    if isinstance(question, HoldLetter):
        box.hold(0.0, PEER.peer_id, question)
    box.receipt(0.0, question.lookup, PEER.peer_id)


def _members(raw: bytes) -> None:
    kinds: tuple[Any, ...] = (MembersQuestion, MembersAnswer, MembersNews)
    message = decode_members_message(raw, kinds[sum(raw[:2]) % len(kinds)])
    if isinstance(message, MembersQuestion):
        split_digests(message.known)


def _documents() -> list[Target]:
    cluster, documents = example_cluster(), example_documents()
    invite = decode_invite(membership()[0]["invite"])
    credentials = [bytes.fromhex(each["credential"]) for each in judged_credentials(cluster)]
    lists, changes = [documents.revocations], [documents.key_change]
    swarms = [bytes.fromhex(each["document"]) for each in swarm_lists()]
    bodies = (ClusterManifest, Invitation, Join, Certificate, Revocations, KeyChange)
    plain = [msgspec.msgpack.decode(raw)[0] for raw in (cluster.document, example_invitation(), *lists, *changes)]

    def judged(raw: bytes) -> None:
        judge_credential(_HOUR, cluster, None, {}, raw, PEER.public_bytes)
        judge_as_made(_HOUR, cluster, None, {}, raw)
        judge_join(_HOUR, cluster, None, {}, raw, PEER.public_bytes)

    def ordered(raw: bytes) -> None:
        judge_revocations(cluster, None, raw)
        judge_key_change(cluster, None, raw)

    def body(raw: bytes) -> None:
        body_of(raw, bodies[sum(raw[-2:]) % len(bodies)], max_bytes=limits.MANIFEST_BYTES)

    return [
        Target("credential", direct(judged), credentials, 3, _credential, 1),
        Target("owner's order", direct(ordered), lists + changes, 4, _order, 1),
        Target("manifest of a cluster", direct(partial(read_manifest, invite)), [cluster.document], 4),
        Target("signed manifest", direct(open_manifest), [cluster.document], 1, _signed_manifest, 1),
        Target("body of a document", direct(body), plain, 8),
        Target("list of swarms", direct(partial(open_swarm_list, now_seconds=NOW_OF_LISTS)), swarms, 4, _swarm_list, 1),
    ]


def _swarm_list(random: Random) -> bytes:
    """A list with a sound signature and extreme fields; most of its manifests are sound."""
    draw = Extremes(random, random.choice((0.02, 1.0)))
    content = draw.of(SwarmList)
    times = random.choice(((0, limits.UNIX_SECONDS), (content.made_seconds, content.until_seconds)))
    sound = random.choice((OPEN, PRIVATE))
    swarms = tuple(random.choice((each, sound)) for each in content.swarms)
    signed = SwarmList(OWNER.public_bytes, content.name, times[0], times[1], swarms)
    payload = msgspec.msgpack.encode((1, 0, signed))
    return msgspec.msgpack.encode((payload, OWNER.sign(SWARM_LIST_DOMAIN, payload)))


def _credential(random: Random) -> bytes:
    """A credential with a sound signature and extreme fields."""
    draw = Extremes(random, random.choice((0.02, 1.0)))
    if random.random() < 0.5:
        signed = sign_document(OWNER, CERTIFICATE_DOMAIN, draw.of(Certificate))
        return Credential("certificate", signed[: limits.DOCUMENT_BYTES]).encode()
    changes = {"swarm_id": example_cluster().swarm_id, "key": INVITATION_KEY.public_bytes}
    invitation = sign_document(OWNER, INVITATION_DOMAIN, msgspec.structs.replace(draw.of(Invitation), **changes))
    at_seconds = draw.integer(0, limits.UNIX_SECONDS)
    joined = sign_join(INVITATION_KEY, PEER, invitation=invitation, time_seconds=at_seconds)
    return Credential("join", joined[: limits.DOCUMENT_BYTES]).encode()


def _order(random: Random) -> bytes:
    draw = Extremes(random, random.choice((0.02, 0.49)))
    if random.random() < 0.5:
        return sign_document(OWNER, REVOCATIONS_DOMAIN, draw.of(Revocations))
    return sign_document(OWNER, KEY_CHANGE_DOMAIN, draw.of(KeyChange))


def _signed_manifest(random: Random) -> bytes:
    draw = Extremes(random, 0.5 if random.random() < 0.02 else 0.01)
    manifest = msgspec.structs.replace(draw.of(ClusterManifest), owner=OWNER.public_bytes)
    return sign_document(OWNER, MANIFEST_DOMAIN, manifest)


def _texts() -> list[Target]:
    invite = membership()[0]["invite"]
    body = base58.to_bytes(invite[len(SCHEME) + 1 :])[:-4]
    longest = (SCHEME + "1" + "z" * (limits.INVITE_CHARACTERS - len(SCHEME) - 1)).encode()
    txt = encode_txt(membership()[0]["addresses"], LanSwarm("0f" * 16, "lark"))

    def heard(raw: bytes) -> None:
        decode_txt(raw, exclude=PEER.peer_id)
        decode_swarm(raw)

    def read(raw: bytes) -> None:
        read_invite(raw.decode("utf-8", "replace"), _HOUR)

    derived = secrets_of(EXAMPLE_CODE)
    typed = f"{EXAMPLE_CODE[:4]}-{EXAMPLE_CODE[4:]} @ 192.0.2.7".encode()

    return [
        Target("text of an invite", direct(read), [invite.encode(), longest], 1, lambda _: longest, 0.1),
        Target("body of an invite", lambda raw: partial(read, _invite_text(raw).encode()), [body], 0.03),
        Target("code that was read out", direct(lambda raw: read_spoken(raw.decode("utf-8", "replace"))), [typed], 1),
        Target("sealed letter", direct(partial(open_letter, derived)), [seal_letter(derived, invite)], 1),
        Target("addresses on the local network", direct(heard), [txt], 8),
    ]


def _invite_text(body: bytes) -> str:
    """The invite with this body and the right checksum."""
    return SCHEME + "1" + base58.to_text(body + _check(body))
