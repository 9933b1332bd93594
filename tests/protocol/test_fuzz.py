"""Whatever a stranger sends, every decoder gives a value or a ``ProtocolError``: no other exception, ever."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.identity import NodeKey, public_bytes_of
from protocol.manifest import Manifest, decode_manifest
from protocol.messages import (
    Goodbye,
    GroupAdvert,
    Heartbeat,
    PromptRef,
    RolloutAdvert,
    StateAdvert,
    StateBlob,
    TaskSuccess,
)
from protocol.rollouts import GROUP_MAGIC, Group, decode_group, encode_group
from protocol.wire import ANNOUNCEMENT_DOMAIN, decode, open_announcement, seal
from tests.examples import examples
from tests.protocol.mutation import mutated

KEY = NodeKey(bytes(range(32)))
SWARM = bytes(16)
NOW = 1_790_000_000.0
PROMPT = PromptRef("chain_sum", 1, b"c" * 16, 42)
SEALED = [
    seal(KEY, swarm_id=SWARM, sequence=1, time_seconds=NOW, body=body)
    for body in (
        Goodbye("bye"),
        RolloutAdvert(b"f" * 16, b"t" * 16, 1, (GroupAdvert(b"b" * 32, 9, PROMPT, (1.0,), (3,), (-0.5,)),)),
        Heartbeat("n", "s", "m", b"f" * 16, b"t" * 16, 1, 1, "p", 1.0, 1, 1, (TaskSuccess("chain_sum", 0.5, 9),)),
        StateAdvert(
            b"f" * 16,
            b"l" * 16,
            1,
            0,
            (TaskSuccess("chain_sum", 0.5, 9),),
            StateBlob(b"a" * 32, 300, b"w" * 32),
            (StateBlob(b"d" * 32, 7, b"x" * 32),),
        ),
    )
]


def announce(raw: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        open_announcement(raw, swarm_id=SWARM, now_seconds=NOW)


@given(st.binary(max_size=500) | mutated(SEALED))
@examples(500)
def test_announcement(raw: bytes) -> None:
    announce(raw)


@given(mutated([msgspec.msgpack.decode(raw)[0] for raw in SEALED]))
@examples(500)
def test_payload_that_is_rightly_signed(payload: bytes) -> None:
    announce(msgspec.msgpack.encode((payload, KEY.sign(ANNOUNCEMENT_DOMAIN, payload))))


def mutated_bodies() -> st.SearchStrategy[bytes]:
    bodies = [msgspec.msgpack.encode(msgspec.msgpack.decode(msgspec.msgpack.decode(raw)[0])[6]) for raw in SEALED]
    return st.binary(max_size=100) | mutated(bodies)


@given(mutated_bodies())
@examples(500)
def test_body_within_a_sound_and_signed_payload(body: bytes) -> None:
    header = (1, 0, SWARM, 1, round(NOW * 1000), KEY.public_bytes, msgspec.Raw(body))
    payload = msgspec.msgpack.encode(header)
    announce(msgspec.msgpack.encode((payload, KEY.sign(ANNOUNCEMENT_DOMAIN, payload))))


@pytest.fixture(scope="module")
def group_blob(make_group: Callable[..., Group]) -> bytes:
    return encode_group(make_group())


@pytest.fixture(scope="module")
def conversation_blob(conversations: Group) -> bytes:
    return encode_group(conversations)


@given(st.data())
@examples(400)
def test_group_blob(group_blob: bytes, conversation_blob: bytes, data: st.DataObject) -> None:
    raw = data.draw(st.binary(max_size=300) | mutated([group_blob, conversation_blob]))
    with contextlib.suppress(ProtocolError):
        decode_group(data.draw(st.sampled_from([b"", GROUP_MAGIC])) + raw)


@given(st.data())
@examples(900)
def test_content_within_a_sound_frame(group_blob: bytes, conversation_blob: bytes, data: st.DataObject) -> None:
    contents = [zstandard.decompress(blob[len(GROUP_MAGIC) :]) for blob in (group_blob, conversation_blob)]
    raw = data.draw(st.binary(max_size=300) | mutated(contents))
    with contextlib.suppress(ProtocolError):
        group = decode_group(GROUP_MAGIC + zstandard.compress(raw))
        assert all(len(each.turns()) == len(each.actions or (0,)) for each in group.completions)
        encode_group(group)  # what was accepted keeps every guarantee, so that it may be sent on


@given(st.binary(max_size=300) | mutated([Manifest("starling", (("chain_sum", 1, bytes(16)),)).encode()]))
def test_manifest(raw: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode_manifest(raw).swarm_id  # noqa: B018


@given(st.binary(max_size=300))
def test_decoding_to_any_type(raw: bytes) -> None:
    for type_ in (PromptRef, dict[str, list[float]], list[bytes], tuple[int, str], float):
        with contextlib.suppress(ProtocolError):
            decode(raw, type_, max_bytes=300)


@given(st.text(alphabet="123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz", min_size=50, max_size=54))
def test_peer_id(text: str) -> None:
    with contextlib.suppress(ProtocolError):
        public_bytes_of(text)
