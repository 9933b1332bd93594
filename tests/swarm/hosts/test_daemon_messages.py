"""The codec of the daemon's control protocol: what it reads of rubbish, and that bytes of the real schema fit."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import MalformedError, OversizedError, ProtocolError
from swarm.hosts.go import daemon_messages as messages


def test_requests_are_what_the_schema_says() -> None:
    assert messages.identify() == bytes.fromhex("0800")
    assert messages.connect(b"\x00\x24", b"\x04", timeout_seconds=300) == bytes.fromhex("0801120a0a02002412010418ac02")
    assert messages.publish("t", b"news") == bytes.fromhex("0808420b08021201741a046e657773")
    assert messages.handle_streams(b"/a/s", "/p/1") == bytes.fromhex(
        "080322110a07900304" + b"/a/s".hex() + "1204" + b"/p/1".hex() + "1800"
    )


def test_listed_peers_are_read() -> None:
    answer = messages.read_answer(bytes.fromhex("0800320c0a0200241206047f0000010632040a020025"))
    assert answer.error is None
    assert [(peer.id.hex(), len(peer.addresses)) for peer in answer.peers] == [("0024", 1), ("0025", 0)]


def test_refusal_is_read_with_its_reason() -> None:
    assert messages.read_answer(bytes.fromhex("080112060a04") + b"busy").error == "busy"


def test_frame_is_complete_only_with_its_last_byte() -> None:
    frame = messages.framed(bytes(300))
    assert messages.frame_of(frame[:-1]) is None
    assert messages.frame_of(frame[:1]) is None
    assert messages.frame_of(frame + b"more") == (2, 302)


def test_many_fields_or_one_that_protobuf_does_not_have_are_refused_before_all_are_read() -> None:
    with pytest.raises(MalformedError, match="fields"):
        messages.read_answer(b"\x78\x00" * messages.MESSAGE_BYTES)  # would take seconds
    with pytest.raises(MalformedError, match="field 0"):
        messages.read_answer(bytes(messages.MESSAGE_BYTES))


def test_length_above_the_bound_is_refused_before_anything_is_read() -> None:
    with pytest.raises(OversizedError, match=str(messages.MESSAGE_BYTES)):
        messages.frame_of(bytes.fromhex("ffffffff0f"))
    with pytest.raises(MalformedError):
        messages.frame_of(b"\xff" * 11)


@given(st.binary(max_size=200))
def test_rubbish_is_read_or_refused_and_never_a_bug(content: bytes) -> None:
    for read in (messages.read_answer, messages.read_stream_origin, messages.read_provider, messages.read_published):
        with suppress(ProtocolError):
            read(content)
