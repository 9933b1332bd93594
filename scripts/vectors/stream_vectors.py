"""Messages between two connected peers, as fields and as frames, and frames that must be refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from protocol import limits
from protocol.blob_id import blob_id, chunk_hashes
from protocol.cluster.documents import (
    Certificate,
    Credential,
    FormerKey,
    KeyChange,
    Revocations,
    sign_certificate,
    sign_join,
    sign_key_change,
    sign_revocations,
)
from protocol.cluster.refusal import RefusalReason
from protocol.cluster.spoken_code import seal_letter, secrets_of
from protocol.streams.averaging_messages import Abandon, Accept, Decline, DeclineReason, Have, Offer, Propose
from protocol.streams.blob_messages import BlobStatus, ChunkRange, encode_answer_header
from protocol.streams.framing import framed, framed_message
from protocol.streams.handshake_messages import (
    HandshakeAnswer,
    HandshakeConclusion,
    HandshakeDocuments,
    HandshakeGreeting,
    HandshakeRefusal,
)
from protocol.streams.letter_messages import AskAboutLetter, HoldLetter, LetterAnswer, LetterReceipt, LetterRequest
from protocol.streams.member_messages import MembersAnswer, MembersNews, MembersQuestion, credential_digest
from protocol.streams.peer_messages import PeerExchangeAnswer, PeerExchangeQuestion
from scripts.vectors.cluster_vectors import (
    CLUSTER_MADE,
    INVITATION_KEY,
    OWNER,
    PEER,
    STRANGER,
    example_cluster,
    example_invitation,
)
from scripts.vectors.engine_vectors import refused_engine_requests
from scripts.vectors.lend_vectors import refused_lend_messages
from scripts.vectors.plain_values import FAMILY, SWARM_ID, Json, pattern, plain
from scripts.vectors.stage_vectors import refused_stage_requests

EXAMPLE_CODE = "4821093755261841"
EXCHANGE = bytes(range(16))
OFFER = Offer(FAMILY, b"\x22" * 16, "sparse-2bit", 41, b"\x33" * 32, 123_456)


def messages(named: Mapping[str, tuple[str, Struct]]) -> list[Json]:
    """Each message with its kind, its fields and its frame."""
    return [
        {"name": name, "kind": kind, "fields": plain(message), "frame": framed_message(message).hex()}
        for name, (kind, message) in named.items()
    ]


def averaging_messages() -> list[Json]:
    """Every message of ``/starling/averaging/1``."""
    declines = {f"decline: {reason}": ("decline", Decline(reason)) for reason in DeclineReason}
    return messages(
        {
            "propose": ("propose", Propose(EXCHANGE, OFFER)),
            "accept": ("accept", Accept(msgspec.structs.replace(OFFER, size=limits.BLOB_BYTES, step=2**63 - 1))),
            **declines,
            "decline, and a peer that seeks": ("decline", Decline(DeclineReason.BUSY, PEER.peer_id)),
            "have": ("have", Have(EXCHANGE)),
            "abandon": ("abandon", Abandon(EXCHANGE, "its norm is ½ of ours")),
        }
    )


def blob_messages() -> list[Json]:
    """Requests of ``/starling/blobs/1``, and the answer to each of their ranges by a peer that has one of the blobs."""
    content = pattern(655)
    here = blob_id(content)
    ranges = {
        "one chunk": [ChunkRange(here, 0, 1, False)],
        "hashes and chunks": [ChunkRange(here, 0, 4, True)],
        "beyond the end": [ChunkRange(here, 1, 2**32, False)],
        "two ranges, the second of a missing blob": [ChunkRange(here, 0, 1, False), ChunkRange(bytes(32), 0, 1, True)],
        "nothing": [],
    }

    def answer(asked: ChunkRange) -> bytes:
        if asked.blob != here:
            return encode_answer_header(BlobStatus.MISSING, 0)
        header = encode_answer_header(BlobStatus.HERE, len(content))
        return header + b"".join(chunk_hashes(content) * asked.hashes) + content * (asked.first == 0)

    return [
        {
            "name": name,
            "content": "byte i is i modulo 251, 655 bytes",
            "ranges": plain(asked),
            "frame": framed_message(asked).hex(),
            "answers": [answer(one).hex() for one in asked],
            "answers_if_busy": [encode_answer_header(BlobStatus.BUSY, 0).hex() for _ in asked],
        }
        for name, asked in ranges.items()
    ]


def peer_messages() -> list[Json]:
    """Every message of ``/starling/peers/1``."""
    own = (f"/ip4/192.0.2.7/tcp/4001/p2p/{PEER.peer_id}", f"/ip6/2001:db8::7/tcp/4001/p2p/{PEER.peer_id}")
    other = f"/ip4/192.0.2.8/tcp/4001/p2p/{STRANGER.peer_id}"
    return messages(
        {
            "question": ("question", PeerExchangeQuestion(SWARM_ID, own, (STRANGER.peer_id,))),
            "answer": ("answer", PeerExchangeAnswer(SWARM_ID, own[:1], (other,))),
            "answer to another swarm": ("answer", PeerExchangeAnswer(bytes(16), (), ())),
        }
    )


def example_credential() -> bytes:
    joined = sign_join(INVITATION_KEY, PEER, invitation=example_invitation(), time_seconds=CLUSTER_MADE)
    return Credential("join", joined).encode()


def example_documents() -> HandshakeDocuments:
    swarm_id, until = example_cluster().swarm_id, CLUSTER_MADE + 7_776_000
    revocations = Revocations(swarm_id, 7, CLUSTER_MADE, (STRANGER.public_bytes,), ())
    change = KeyChange(swarm_id, 1, CLUSTER_MADE, b"\x44" * 32, (FormerKey(b"\x55" * 32, until),))
    certificate = Certificate(swarm_id, PEER.public_bytes, INVITATION_KEY.public_bytes, CLUSTER_MADE, until, "Wren")
    return HandshakeDocuments(
        example_cluster().document,
        sign_revocations(OWNER, revocations),
        sign_key_change(OWNER, change),
        sign_certificate(OWNER, certificate),
    )


def handshake_messages() -> list[Json]:
    """Every message of a private cluster's handshake, and every reason of a refusal."""
    greeting = HandshakeGreeting(example_cluster().swarm_id, CLUSTER_MADE, example_credential(), 8, 0, True)
    documents, nothing = example_documents(), HandshakeDocuments()
    refusals = {
        reason: HandshakeRefusal(
            reason, CLUSTER_MADE, documents.revocations if reason is RefusalReason.REVOKED else b""
        )
        for reason in RefusalReason
    }
    return messages(
        {
            "greeting": ("greeting", greeting),
            "answer": ("answer", HandshakeAnswer(None, greeting, documents)),
            **{
                f"answer: {reason}": ("answer", HandshakeAnswer(refusal, None, None))
                for reason, refusal in refusals.items()
            },
            "conclusion": ("conclusion", HandshakeConclusion(None, nothing)),
            "conclusion: expired": ("conclusion", HandshakeConclusion(refusals[RefusalReason.EXPIRED], nothing)),
        }
    )


def member_messages() -> list[Json]:
    """Every message of ``/starling/members/1``."""
    question = MembersQuestion(credential_digest(example_credential()), 8, 2)
    documents = example_documents()
    news = MembersNews((example_credential(),), documents.revocations, documents.key_change)
    return messages(
        {
            "question": ("question", question),
            "answer": ("answer", MembersAnswer(MembersQuestion(b"", 0, 0), news)),
            "news": ("news", MembersNews((), b"", b"")),
        }
    )


def letter_messages() -> list[Json]:
    """The request and answer in place of a handshake, and every message of ``/starling/letters/1``."""
    derived = secrets_of(EXAMPLE_CODE)
    sealed = seal_letter(derived, "starling://1")
    return messages(
        {
            "request": ("request", LetterRequest(derived.lookup)),
            "answer": ("answer", LetterAnswer("waiting", sealed)),
            "answer: another peer has it": ("answer", LetterAnswer("taken", b"")),
            "hold": ("hold", HoldLetter(derived.lookup, derived.psk, sealed, 600)),
            "ask": ("ask", AskAboutLetter(derived.lookup)),
            "receipt": ("receipt", LetterReceipt("taken", PEER.peer_id)),
        }
    )


def refused_stream_messages() -> list[Json]:
    """Frames that must be refused, the message that was expected, and the reason that must be given."""
    offer: list[object] = list(msgspec.structs.astuple(OFFER))
    answer = [None, [bytes(16), -1, b"", 0, 0], None]
    addresses = ["/ip4/192.0.2.7/tcp/4001"] * (limits.ADDRESSES_PER_ANSWER + 1)

    def propose(place: int, value: object) -> bytes:
        return packed(["propose", EXCHANGE, [*offer[:place], value, *offer[place + 1 :]]])

    def packed(value: Sequence[object]) -> bytes:
        return framed(msgspec.msgpack.encode(value))

    def hold(letter: bytes, seconds: int) -> bytes:
        return packed(["hold", bytes(16), bytes(32), letter, seconds])

    def too_long(max_bytes: int) -> bytes:
        return (max_bytes + 1).to_bytes(4, "big")

    cases = {
        ("averaging", "any", "oversized: its length"): too_long(limits.AVERAGING_MESSAGE_BYTES),
        ("averaging", "any", "malformed: empty"): framed(b""),
        ("averaging", "any", "malformed: an unknown message"): packed(["sermon", EXCHANGE]),
        ("averaging", "any", "malformed: a family of 15 bytes"): propose(0, bytes(15)),
        ("averaging", "any", "malformed: a negative step"): propose(3, -1),
        ("averaging", "any", "malformed: a blob of no size"): propose(5, 0),
        ("averaging", "any", "malformed: a blob over the bound"): propose(5, limits.BLOB_BYTES + 1),
        ("averaging", "any", "malformed: a long reason"): packed(["abandon", EXCHANGE, "x" * 201]),
        ("blobs", "request", "oversized: its length"): too_long(limits.BLOB_REQUEST_BYTES),
        ("blobs", "request", "malformed: an id of 31 bytes"): packed([[bytes(31), 0, 1, False]]),
        ("blobs", "request", "malformed: a chunk beyond every blob"): packed([[bytes(32), 2**32 + 1, 1, False]]),
        ("blobs", "request", "malformed: a number for a boolean"): packed([[bytes(32), 0, 1, 1]]),
        ("letters", "hold", "oversized: its length"): too_long(limits.LETTER_MESSAGE_BYTES),
        ("letters", "hold", "malformed: a letter over the bound"): hold(bytes(limits.LETTER_BYTES + 1), 600),
        ("letters", "hold", "malformed: no letter"): hold(b"", 600),
        ("letters", "hold", "malformed: for too long"): hold(b"x", limits.LETTER_SECONDS + 1),
        ("letters", "hold", "malformed: for no time"): hold(b"x", 0),
        ("letters", "answer", "malformed: an unknown state"): packed(["lost", b""]),
        ("peers", "question", "oversized: its length"): too_long(limits.PEER_MESSAGE_BYTES),
        ("peers", "question", "malformed: too many sought"): packed([SWARM_ID, [], ["x"] * (limits.PEERS_SOUGHT + 1)]),
        ("peers", "answer", "malformed: too many addresses"): packed([SWARM_ID, [], addresses]),
        ("peers", "answer", "malformed: a long address"): packed([SWARM_ID, ["x" * 257], []]),
        ("handshake", "greeting", "oversized: its length"): too_long(limits.HANDSHAKE_MESSAGE_BYTES),
        ("handshake", "greeting", "malformed: a long credential"): packed([bytes(16), 0, bytes(1025), 0, 0]),
        ("handshake", "answer", "malformed: a time before 1970"): packed(answer),
        ("handshake", "conclusion", "malformed: an unknown reason"): packed([["sermon", 0, b""], [b"", b"", b"", b""]]),
        ("members", "question", "oversized: its length"): too_long(limits.MEMBERS_MESSAGE_BYTES),
        ("members", "question", "malformed: text for bytes"): packed(["", 0, 0]),
        ("members", "news", "malformed: too many credentials"): packed(
            [[b""] * (limits.CREDENTIALS_PER_NEWS + 1), b"", b""]
        ),
        ("members", "answer", "malformed: no news"): packed([[b"", 0, 0], None]),
        **refused_engine_requests(),
        **refused_lend_messages(),
        **refused_stage_requests(),
    }
    return [
        {"protocol": protocol, "expected": kind, "name": name, "reason": name.split(":")[0], "frame": frame.hex()}
        for (protocol, kind, name), frame in cases.items()
    ]
