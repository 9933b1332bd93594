from __future__ import annotations

from typing import Any

import msgspec
import pytest

from protocol import limits, structure, wire
from protocol.errors import (
    ClockError,
    MalformedError,
    OversizedError,
    SignatureError,
    UnknownKindError,
    VersionError,
    WrongSwarmError,
)
from protocol.identity import NodeKey
from protocol.messages import Announcement, Body, Goodbye, GroupAdvert, Heartbeat, PromptRef, RolloutAdvert, TaskSuccess
from protocol.wire import ANNOUNCEMENT_DOMAIN, decode, open_announcement, seal

SWARM = b"swarm___________"
NOW = 1_790_000_000.0
PROMPT = PromptRef("chain_sum", 1, b"c" * 16, 42)
ADVERT = GroupAdvert(b"b" * 32, 2400, PROMPT, (1.0, 0.0), (64, 3), (-0.5, -1.25))
BODIES: list[Body] = [
    Goodbye("until tomorrow"),
    RolloutAdvert(b"f" * 16, b"t" * 16, 11, (ADVERT,)),
    Heartbeat(
        "wren-3",
        "starling 0.1.0",
        "builtin:wren",
        b"f" * 16,
        b"t" * 16,
        12,
        11,
        "generate",
        8200.5,
        48,
        24,
        (TaskSuccess("chain_sum", 0.375, 1000),),
    ),
]


def sealed(key: NodeKey, body: Body = BODIES[0], time_seconds: float = NOW) -> bytes:
    return seal(key, swarm_id=SWARM, sequence=5, time_seconds=time_seconds, body=body)


def opened(raw: bytes) -> Announcement:
    return open_announcement(raw, swarm_id=SWARM, now_seconds=NOW)


def forged(key: NodeKey, body: Any, **changes: Any) -> bytes:
    """A rightly signed announcement with any body and any header at all; ``appended`` goes behind the payload's end."""
    header: dict[str, Any] = {
        "major": limits.PROTOCOL_MAJOR,
        "minor": limits.PROTOCOL_MINOR,
        "swarm_id": SWARM,
        "sequence": 5,
        "time_milliseconds": int(NOW * 1000),
        "public_key": key.public_bytes,
        "body": body,
    }
    payload = msgspec.msgpack.encode(list((header | changes).values()))
    return msgspec.msgpack.encode((payload, key.sign(ANNOUNCEMENT_DOMAIN, payload)))


def with_field(body: Body, field: str, value: Any) -> list[Any]:
    """A body as it travels, with one field replaced by anything at all."""
    raw: list[Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(body))
    raw[1 + body.__struct_fields__.index(field)] = value
    return raw


def with_advert_field(field: str, value: Any) -> list[Any]:
    raw: list[Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(ADVERT))
    raw[ADVERT.__struct_fields__.index(field)] = value
    return with_field(BODIES[1], "groups", [raw])


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_what_was_sealed_is_opened_with_its_sender_sequence_and_time(key: NodeKey, body: Body) -> None:
    announcement = opened(sealed(key, body, NOW + 0.125))
    assert announcement == Announcement(key.peer_id, 5, NOW + 0.125, body)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_every_truncation_is_malformed(key: NodeKey, body: Body) -> None:
    raw = sealed(key, body)
    for cut in range(len(raw)):
        with pytest.raises(MalformedError):
            opened(raw[:cut])


def test_every_flipped_bit_is_refused(key: NodeKey) -> None:
    raw = sealed(key)
    for bit in range(8 * len(raw)):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises((MalformedError, SignatureError, WrongSwarmError, VersionError, ClockError)):
            opened(bytes(flipped))


def test_oversized_is_refused_before_anything_is_read() -> None:
    with pytest.raises(OversizedError, match=r"65537 bytes; at most 65536"):
        opened(b"\xc1" * (limits.ANNOUNCEMENT_BYTES + 1))


def test_sender_learns_of_an_oversized_announcement_first(key: NodeKey) -> None:
    many = GroupAdvert(b"b" * 32, 1, PROMPT, (1.0,) * 64, (1,) * 64, (-1.0,) * 64)
    with pytest.raises(OversizedError):
        sealed(key, RolloutAdvert(b"f" * 16, b"t" * 16, 1, (many,) * 64))


@pytest.mark.parametrize(
    "body",
    [
        Goodbye("x" * (limits.REASON_BYTES + 1)),
        RolloutAdvert(b"f" * 15, b"t" * 16, 1, (ADVERT,)),
        RolloutAdvert(b"f" * 16, b"t" * 16, 1, ()),
        RolloutAdvert(b"f" * 16, b"t" * 16, 1, (GroupAdvert(b"b" * 32, 1, PROMPT, (1.0,), (1, 2), (-1.0,)),)),
    ],
)
def test_sealing_what_every_receiver_would_refuse_is_our_bug(key: NodeKey, body: Body) -> None:
    with pytest.raises(ValueError, match="must not be sent"):
        sealed(key, body)


@pytest.mark.parametrize("body", [[], "goodbye", 5, {}, None, [5, "x"], [None], [["goodbye"], "x"]])
def test_body_without_a_kind_is_malformed(key: NodeKey, body: Any) -> None:
    with pytest.raises(MalformedError):
        opened(forged(key, body))


def test_signature_by_another_key_is_refused(key: NodeKey) -> None:
    with pytest.raises(SignatureError):
        opened(forged(key, ["goodbye", "bye"], public_key=NodeKey(bytes(32)).public_bytes))


@pytest.mark.parametrize("length", [0, 63, 65])
def test_signature_of_another_length_is_refused(key: NodeKey, length: int) -> None:
    payload, signature = msgspec.msgpack.decode(sealed(key))
    with pytest.raises(SignatureError):
        opened(msgspec.msgpack.encode((payload, (signature + b"x")[:length])))


def test_signature_for_another_purpose_is_refused(key: NodeKey) -> None:
    payload, _ = msgspec.msgpack.decode(sealed(key))
    with pytest.raises(SignatureError):
        opened(msgspec.msgpack.encode((payload, key.sign(b"starling/manifest/1", payload))))


def test_another_swarm_is_refused(key: NodeKey) -> None:
    with pytest.raises(WrongSwarmError, match=rf"for swarm {SWARM.hex()}; ours is {bytes(16).hex()}"):
        open_announcement(sealed(key), swarm_id=bytes(16), now_seconds=NOW)


@pytest.mark.parametrize("sign", [-1, 1])
def test_time_is_accepted_to_the_edge_of_the_window_and_not_beyond(key: NodeKey, sign: int) -> None:
    edge = NOW + sign * limits.CLOCK_WINDOW_SECONDS
    assert opened(sealed(key, time_seconds=edge)).time_seconds == edge
    with pytest.raises(ClockError, match=r"±300 s"):
        opened(sealed(key, time_seconds=edge + sign * 0.001))


def test_time_from_the_end_of_days_is_refused(key: NodeKey) -> None:
    with pytest.raises(ClockError):
        opened(forged(key, ["goodbye", "bye"], time_milliseconds=2**63 - 1))


@pytest.mark.parametrize(
    ("major", "who"), [(limits.PROTOCOL_MAJOR + 1, "this node"), (limits.PROTOCOL_MAJOR - 1, "the sender")]
)
def test_another_major_version_is_refused_and_says_who_must_upgrade(key: NodeKey, major: int, who: str) -> None:
    with pytest.raises(
        VersionError,
        match=rf"protocol {major}\.3, ours is {limits.PROTOCOL_MAJOR}\.{limits.PROTOCOL_MINOR}: {who} must be upgraded",
    ):
        opened(forged(key, {"laid out": "otherwise"}, major=major, minor=3))


def test_nothing_after_the_header_is_read_before_the_signature_verifies(
    key: NodeKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked: list[int] = []

    def walk(raw: bytes) -> None:
        walked.append(len(raw))
        structure.check_structure(raw)

    monkeypatch.setattr(wire, "check_structure", walk)
    values = [[0] * 1000] * 16
    later = msgspec.msgpack.encode(((payload := msgspec.msgpack.encode((2, 0, values))), b""))
    with pytest.raises(VersionError):
        opened(later)
    _, signature = msgspec.msgpack.decode(sealed(key))
    with pytest.raises(SignatureError):
        opened(msgspec.msgpack.encode((msgspec.msgpack.decode(forged(key, values))[0], signature)))
    assert len(payload) not in walked
    assert len(walked) == 2  # the envelopes, of three values each


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_fields_that_a_newer_minor_version_appended_are_ignored(key: NodeKey, body: Body) -> None:
    longer = [*msgspec.msgpack.decode(msgspec.msgpack.encode(body)), "new", {"of": [1, 1]}]
    raw = forged(key, longer, minor=limits.PROTOCOL_MINOR + 1, appended=["also", b"new"])
    assert opened(raw).body == body


def test_fields_appended_within_an_advert_are_ignored(key: NodeKey) -> None:
    advert: list[Any] = [*msgspec.msgpack.decode(msgspec.msgpack.encode(ADVERT)), "new"]
    advert[2] = [*advert[2], 7]
    assert opened(forged(key, with_field(BODIES[1], "groups", [advert]), minor=1)).body == BODIES[1]


def test_something_appended_outside_of_the_signature_is_malformed(key: NodeKey) -> None:
    payload, signature = msgspec.msgpack.decode(sealed(key))
    with pytest.raises(MalformedError):
        opened(msgspec.msgpack.encode((payload, signature, b"appended")))


def test_unknown_kind_is_refused_by_name_after_its_signature_verified(key: NodeKey) -> None:
    with pytest.raises(UnknownKindError, match=r"'sermon'; this version knows goodbye, heartbeat, rollouts"):
        opened(forged(key, ["sermon", {"text": "…"}], minor=9))
    with pytest.raises(SignatureError):
        opened(forged(key, ["sermon"], public_key=NodeKey(bytes(32)).public_bytes))


def test_nesting_within_the_payload_is_bounded(key: NodeKey) -> None:
    deep: list[Any] = []
    for _ in range(limits.NESTING_DEPTH):
        deep = [deep]
    with pytest.raises(OversizedError, match="nested deeper"):
        opened(forged(key, ["goodbye", "bye", deep]))


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -1.0, 2e12], ids=["nan", "infinite", "negative", "too many"]
)
def test_impossible_rate_in_a_heartbeat_is_malformed(key: NodeKey, value: float) -> None:
    with pytest.raises(MalformedError):
        opened(forged(key, with_field(BODIES[2], "tokens_per_second", value)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("blob", b"b" * 31),
        ("blob", "b" * 32),
        ("size", 0),
        ("size", limits.GROUP_BLOB_BYTES + 1),
        ("size", 2400.5),
        ("prompt", ["chain_sum", 1, b"c" * 16]),
        ("prompt", ["x" * 65, 1, b"c" * 16, 42]),
        ("prompt", ["chain_sum", -1, b"c" * 16, 42]),
        ("prompt", ["chain_sum", 1, b"c" * 16, -1]),
        ("prompt", ["chain_sum", 1, b"c" * 16, 2**64 - 1]),
        ("rewards", [1.0]),
        ("rewards", [1.0, float("nan")]),
        ("rewards", [1.0, float("inf")]),
        ("rewards", [1.0, limits.REWARD_MAGNITUDE * 1.01]),
        ("rewards", []),
        ("lengths", [64]),
        ("lengths", [64, 3, 3]),
        ("lengths", [64, -1]),
        ("lengths", [64, limits.COMPLETION_TOKENS + 1]),
        ("mean_logps", [-0.5]),
        ("mean_logps", [-0.5, 0.001]),
        ("mean_logps", [-0.5, float("nan")]),
        ("mean_logps", [-0.5, float("-inf")]),
        ("mean_logps", [-0.5, -1e5]),
        ("mean_logps", ["-0.5", "-0.5"]),
    ],
)
def test_impossible_field_of_an_advert_is_malformed(key: NodeKey, field: str, value: Any) -> None:
    with pytest.raises(MalformedError):
        opened(forged(key, with_advert_field(field, value)))


def test_more_adverts_or_completions_than_allowed_are_malformed(key: NodeKey) -> None:
    groups = [msgspec.msgpack.decode(msgspec.msgpack.encode(ADVERT))] * (limits.GROUPS_PER_ADVERT + 1)
    with pytest.raises(MalformedError):
        opened(forged(key, with_field(BODIES[1], "groups", groups)))
    with pytest.raises(MalformedError):
        opened(forged(key, with_advert_field("rewards", [1.0] * (limits.COMPLETIONS_PER_GROUP + 1))))


@pytest.mark.parametrize(("minor", "lacking"), [(0, 2), (1, 1)])
def test_a_heartbeat_of_an_earlier_protocol_says_nothing_of_its_connections_or_addresses(
    key: NodeKey, minor: int, lacking: int
) -> None:
    raw: list[Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(BODIES[2]))
    assert opened(forged(key, raw[:-lacking], minor=minor)).body == BODIES[2]


@pytest.mark.parametrize("value", [b"x" * (limits.CONNECTIONS_BYTES + 1), [b"abcd"], "abcd", None])
def test_connections_of_a_heartbeat_beyond_their_bound_or_of_another_kind_are_malformed(
    key: NodeKey, value: Any
) -> None:
    with pytest.raises(MalformedError):
        opened(forged(key, with_field(BODIES[2], "connected", value)))


def test_text_that_is_not_utf8_is_malformed(key: NodeKey) -> None:
    payload = msgspec.msgpack.decode(sealed(key))[0].replace(b"until", b"\xff\xfe\xfd\xfc\xfb")
    with pytest.raises(MalformedError, match="utf-8"):
        opened(msgspec.msgpack.encode((payload, key.sign(ANNOUNCEMENT_DOMAIN, payload))))


def test_the_door_decodes_any_type_within_its_bound() -> None:
    raw = msgspec.msgpack.encode(PROMPT)
    assert decode(raw, PromptRef, max_bytes=len(raw)) == PROMPT
    with pytest.raises(OversizedError, match=f"at most {len(raw) - 1}"):
        decode(raw, PromptRef, max_bytes=len(raw) - 1)
    with pytest.raises(MalformedError):
        decode(b"\xc0", PromptRef, max_bytes=10)
