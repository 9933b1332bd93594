"""Every decoder of a stream's messages gives, for any bytes, a value within its bounds or a ``ProtocolError``."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import limits
from protocol.donor_invitation import decode_donor_invitation, encode_donor_invitation
from protocol.errors import OversizedError, ProtocolError
from protocol.streams.averaging_messages import Abandon, Offer, Propose, decode_averaging_message
from protocol.streams.blob_messages import (
    ANSWER_HEADER_BYTES,
    BlobStatus,
    ChunkRange,
    decode_answer_header,
    decode_blob_request,
    encode_answer_header,
)
from protocol.streams.dial_back_messages import DialBackAnswer, DialBackQuestion, decode_dial_back_message
from protocol.streams.engine_batches import (
    generate_message,
    observe_message,
    opened_batch,
    opened_completions,
    opened_observations,
)
from protocol.streams.engine_messages import (
    EngineProgress,
    Generate,
    Observe,
    decode_engine_answer,
    decode_engine_request,
)
from protocol.streams.framing import LENGTH_BYTES, checked_body_length, framed, framed_message
from protocol.streams.handshake_messages import (
    HandshakeAnswer,
    HandshakeConclusion,
    HandshakeDocuments,
    HandshakeGreeting,
    decode_handshake,
)
from protocol.streams.lend_messages import decode_lend_answer, decode_lend_hello
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
    CREDENTIAL_DIGEST_BYTES,
    MembersAnswer,
    MembersNews,
    MembersQuestion,
    decode_members_message,
    split_digests,
)
from protocol.streams.peer_messages import PeerExchangeAnswer, PeerExchangeQuestion, decode_peer_message
from protocol.streams.stage_messages import decode_stage_answer, decode_stage_request, shapes_of
from tests.examples import examples
from tests.protocol.mutation import mutated

VECTORS = Path(__file__).resolve().parents[2] / "vectors"
INVITATIONS = json.loads((VECTORS / "donor_invitations.json").read_text(encoding="utf-8"))


def bodies(protocol: str) -> list[bytes]:
    """The bodies of all frames of a protocol's vectors."""
    vectors = json.loads((VECTORS / f"{protocol}_messages.json").read_text(encoding="utf-8"))
    return [bytes.fromhex(vector["frame"])[LENGTH_BYTES:] for vector in vectors]


def received(protocol: str) -> st.SearchStrategy[bytes]:
    return mutated(bodies(protocol)) | st.binary(max_size=100)


def check(decoded: Any, decode: Any) -> None:
    """What was accepted keeps every bound, so that it may be sent on: encoded again it gives an equal value."""
    assert decode(msgspec.msgpack.encode(decoded)) == decoded


@given(received("averaging"))
@examples(200)
def test_averaging_message(raw: bytes) -> None:
    try:
        message = decode_averaging_message(raw)
    except ProtocolError:
        return
    check(message, decode_averaging_message)


@given(received("blob"))
@examples(200)
def test_blob_request(raw: bytes) -> None:
    try:
        ranges = decode_blob_request(raw)
    except ProtocolError:
        return
    assert len(ranges) <= limits.RANGES_PER_REQUEST
    check(ranges, decode_blob_request)


@given(st.binary(min_size=ANSWER_HEADER_BYTES, max_size=ANSWER_HEADER_BYTES))
def test_answer_header(raw: bytes) -> None:
    status, size_bytes = decode_answer_header(raw)
    assert 0 <= status <= 255
    assert 0 <= size_bytes < 2**64
    if status in list(BlobStatus):
        assert encode_answer_header(BlobStatus(status), size_bytes) == raw


@given(received("lend"))
@examples(200)
def test_lend_message(raw: bytes) -> None:
    for decode in (decode_lend_hello, decode_lend_answer):
        with suppress(ProtocolError):
            check(decode(raw), decode)


@given(mutated([vector["text"].encode() for vector in INVITATIONS]) | st.binary(max_size=100))
@examples(200)
def test_donor_invitation(raw: bytes) -> None:
    try:
        invitation = decode_donor_invitation(raw.decode(errors="replace"))
    except ProtocolError as error:
        assert not any(vector["text"][20:40] in str(error) for vector in INVITATIONS)  # it may be a secret
        return
    assert decode_donor_invitation(encode_donor_invitation(invitation)) == invitation


@given(received("engine"))
@examples(300)
def test_engine_message(raw: bytes) -> None:
    for decode in (decode_engine_request, decode_engine_answer):
        try:
            message = decode(raw)
        except ProtocolError:
            continue
        check(message, decode)
        if isinstance(message, Generate):
            with suppress(ProtocolError):
                batch = opened_batch(message)
                assert generate_message(batch) == message
                assert len(batch.owners) <= limits.ENGINE_COMPLETIONS
        elif isinstance(message, Observe):
            with suppress(ProtocolError):
                assert observe_message(opened_observations(message)) == message
        elif isinstance(message, EngineProgress):
            with suppress(ProtocolError):
                assert all(len(ids) == len(logps) for _, (ids, logps) in opened_completions(message))


@given(received("stage"))
@examples(300)
def test_stage_message(raw: bytes) -> None:
    for decode in (decode_stage_request, decode_stage_answer):
        with suppress(ProtocolError):
            message = decode(raw)
            check(message, decode)
            assert sum(each.bytes for each in shapes_of(message)) <= limits.STAGE_TENSOR_BYTES


@given(received("peer"))
@examples(150)
def test_peer_exchange_message(raw: bytes) -> None:
    kinds: tuple[Any, ...] = (PeerExchangeQuestion, PeerExchangeAnswer)
    for kind in kinds:
        try:
            message = decode_peer_message(raw, kind)
        except ProtocolError:
            continue
        check(message, lambda again, kind=kind: decode_peer_message(again, kind))


@given(received("handshake"))
@examples(150)
def test_handshake_message(raw: bytes) -> None:
    kinds: tuple[Any, ...] = (HandshakeGreeting, HandshakeAnswer, HandshakeConclusion)
    for kind in kinds:
        try:
            message = decode_handshake(raw, kind)
        except ProtocolError:
            continue
        check(message, lambda again, kind=kind: decode_handshake(again, kind))


@given(received("letter"))
@examples(150)
def test_letter_message(raw: bytes) -> None:
    kinds: tuple[Any, ...] = (LetterRequest, LetterAnswer, HoldLetter, AskAboutLetter, LetterReceipt)
    for kind in kinds:
        with suppress(ProtocolError):
            message = decode_letter_message(raw, kind)
            check(message, lambda again, kind=kind: decode_letter_message(again, kind))
            assert is_letter_request(raw) == (kind is LetterRequest)
    with suppress(ProtocolError):
        check(decode_letter_question(raw), decode_letter_question)


@given(received("member"))
@examples(150)
def test_members_message(raw: bytes) -> None:
    kinds: tuple[Any, ...] = (MembersQuestion, MembersAnswer, MembersNews)
    for kind in kinds:
        try:
            message = decode_members_message(raw, kind)
        except ProtocolError:
            continue
        check(message, lambda again, kind=kind: decode_members_message(again, kind))


@given(st.binary(max_size=100))
def test_digests_of_a_question_are_as_many_as_its_bytes_allow(known: bytes) -> None:
    digests = split_digests(known)
    assert len(digests) <= -(-len(known) // CREDENTIAL_DIGEST_BYTES)
    assert all(digest in known for digest in digests)


@given(st.binary(max_size=300))
def test_a_frame_is_the_length_of_its_body_and_the_body(body: bytes) -> None:
    frame = framed(body)
    assert checked_body_length(frame[:LENGTH_BYTES], max_bytes=300, what="a test") == len(body)
    assert frame[LENGTH_BYTES:] == body


def test_a_frame_over_the_bound_is_oversized_before_its_body_is_read() -> None:
    assert checked_body_length(b"\0\0\4\0", max_bytes=1024, what="a test") == 1024
    with pytest.raises(OversizedError, match="1025 bytes in a test; at most 1024"):
        checked_body_length(b"\0\0\4\1", max_bytes=1024, what="a test")


def test_more_ranges_than_a_request_may_have_are_oversized() -> None:
    ranges = [ChunkRange(bytes(32), 0, 1, False)] * limits.RANGES_PER_REQUEST
    assert len(decode_blob_request(framed_message(ranges)[LENGTH_BYTES:])) == limits.RANGES_PER_REQUEST
    with pytest.raises(OversizedError):
        decode_blob_request(framed_message([*ranges, ranges[0]])[LENGTH_BYTES:])


def test_the_longest_message_of_averaging_fits_its_bound_twice() -> None:
    offer = Offer(bytes(16), bytes(16), "ß" * limits.NAME_BYTES, 2**63 - 1, bytes(32), limits.BLOB_BYTES)
    for message in (Propose(bytes(16), offer), Abandon(bytes(16), "ß" * limits.REASON_BYTES)):
        assert len(msgspec.msgpack.encode(message)) <= limits.AVERAGING_MESSAGE_BYTES // 2


def test_the_largest_documents_of_a_handshake_and_of_news_fit_their_bounds() -> None:
    document, revocations = bytes(limits.DOCUMENT_BYTES), bytes(limits.REVOCATIONS_BYTES)
    greeting = HandshakeGreeting(bytes(16), 0, document, 0, 0, True)
    documents = HandshakeDocuments(bytes(limits.MANIFEST_BYTES), revocations, document, document)
    answer = msgspec.msgpack.encode(HandshakeAnswer(None, greeting, documents))
    assert decode_handshake(answer, HandshakeAnswer).documents == documents
    question = MembersQuestion(bytes(limits.KNOWN_CREDENTIALS_BYTES), 0, 0)
    news = MembersNews((document,) * limits.CREDENTIALS_PER_NEWS, revocations, document)
    answer = msgspec.msgpack.encode(MembersAnswer(question, news))
    assert decode_members_message(answer, MembersAnswer).news == news


def test_no_text_form_of_a_message_shows_a_change_of_key() -> None:
    secret = b"the pre-shared key"
    for message in (HandshakeDocuments(key_change=secret), MembersNews((), b"", secret)):
        assert secret.decode() not in repr(message)
        assert message.__rich_repr__() == []


DIAL_BACKS = [
    DialBackQuestion((4001, 65535)),
    DialBackAnswer(True, "2001:db8::1", (4001,)),
    DialBackAnswer(False, "", ()),
]


@given(mutated([msgspec.msgpack.encode(message) for message in DIAL_BACKS]) | st.binary(max_size=100))
@examples(200)
def test_dial_back_message(raw: bytes) -> None:
    kinds: tuple[Any, ...] = (DialBackQuestion, DialBackAnswer)
    for kind in kinds:
        try:
            message = decode_dial_back_message(raw, kind)
        except ProtocolError:
            continue
        assert len(getattr(message, "ports", ())) <= limits.DIAL_BACK_PORTS
        check(message, lambda again, kind=kind: decode_dial_back_message(again, kind))
