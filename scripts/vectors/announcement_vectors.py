"""Rollout groups and announcements, those that must be refused, and messages of GossipSub around announcements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import zstandard
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol import limits
from protocol.connections import connections_field
from protocol.conversations import Action, beginning_digest, turn_digest
from protocol.gossip_message import gossip_message_id
from protocol.identity import PEER_ID_PREFIX, NodeKey
from protocol.meeting_points import gossip_topic
from protocol.messages import (
    Body,
    Goodbye,
    GroupAdvert,
    Heartbeat,
    PromptRef,
    RolloutAdvert,
    StateAdvert,
    StateBlob,
    TaskSuccess,
)
from protocol.rollouts import GROUP_MAGIC, Completion, FinishReason, Group, advert_of, encode_group
from protocol.wire import ANNOUNCEMENT_DOMAIN, seal
from scripts.vectors.plain_values import FAMILY, SEED, SWARM_ID, Json, plain

NOW_SECONDS = 1_790_000_000.25
TOKENIZER = b"tokenizer_______"
SIGNING_PREFIX = b"libp2p-pubsub:"
FROM, DATA, SEQNO, TOPIC, SIGNATURE, KEY = range(1, 7)  # the fields of a message in protobuf


def example_groups() -> dict[str, Group]:
    """Groups that together use every form a column can take."""

    def completion(text: str, ids: list[int], lengths: list[int], logps: list[float], reward: float) -> Completion:
        finish = FinishReason.STOP if lengths and lengths[-1] == 0 else FinishReason.LENGTH
        columns = (np.array(ids, np.int64), np.array(lengths, np.int64), np.array(logps, np.float32))
        return Completion(text.encode(), *columns, finish, reward)

    def group(*completions: Completion) -> Group:
        return Group(PromptRef("chain_sum", 1, b"\x01" * 16, 2**63 - 1), FAMILY, TOKENIZER, 7, completions)

    return {
        "one byte an id": group(
            completion("12+3", [1, 2, 3, 255, 0], [1, 1, 1, 1, 0], [-0.5, -1.0, -0.25, -31.5, 0.0], 1.0),
            completion("7", [9], [1], [-0.125], 0.0),
        ),
        "two bytes an id": group(completion("Öl 12", [256, 65_535, 7], [3, 3, 0], [-2.0, -0.75, -3.5], 0.5)),
        "three bytes an id": group(completion("answer", [151_935, limits.TOKEN_ID], [6, 0], [-1.5, -0.0625], -1000.0)),
        "no tokens": group(completion("", [], [], [], 0.0)),
        "log-probabilities at the floor": group(completion("ab", [1, 2], [1, 1], [-65535 / 2048, -1 / 2048], 0.25)),
        "conversations": _conversations(),
    }


GUESSED = PromptRef("guess_number:tiny", 1, b"\x02" * 16, 7)
FIRST_TEXT = "40-46:"
TURNS = (("43", "+", 0.0, False), ("Ö45", "=", 0.75, True))  # action, observation, reward, done


def _digests(turns: Sequence[tuple[str, str, float, bool]]) -> list[bytes]:
    digests = [beginning_digest(GUESSED, FIRST_TEXT, 0.0)]
    for action, observation, reward, done in turns:
        digests.append(turn_digest(digests[-1], action, observation, reward, done=done))
    return digests


def _conversations() -> Group:
    beginning, higher, found = _digests(TURNS)
    ids, lengths, logps = np.array([3, 2, 0, 300, 4, 0]), np.array([1, 1, 0, 2, 2, 0]), np.full(6, -0.5, np.float32)
    actions = (Action(3, True, higher), Action(3, True, found))
    both = Completion("43Ö45".encode(), ids, lengths, logps, FinishReason.STOP, 0.75, actions)
    cut = Action(1, False, _digests([("4", "+", 0.0, False)])[1])
    short = Completion(b"4", ids[:1], lengths[:1], logps[:1], FinishReason.LENGTH, 0.0, (cut,))
    return Group(GUESSED, FAMILY, TOKENIZER, 7, (both, short), beginning)


def conversations() -> list[Json]:
    """What was said in the first conversation of the group "conversations", and its digests."""
    beginning, *digests = _digests(TURNS)
    names = ("action", "observation", "reward", "done")
    turns = [
        dict(zip(names, turn, strict=True)) | {"digest": digest.hex()}
        for turn, digest in zip(TURNS, digests, strict=True)
    ]
    begun = {"prompt": plain(GUESSED), "first_text": FIRST_TEXT, "first_reward": 0.0, "beginning": beginning.hex()}
    return [begun | {"turns": turns}]


def groups() -> list[Json]:
    """Rollout groups: values, MessagePack content, blob, id, advert."""
    vectors = []
    for name, group in example_groups().items():
        blob = encode_group(group)
        vectors.append(
            {
                "name": name,
                "group": plain(group),
                "content": zstandard.decompress(blob[len(GROUP_MAGIC) :]).hex(),
                "blob": blob.hex(),
                "advert": plain(advert_of(group, blob)),
            }
        )
    return vectors


def _with_columns(**changes: Any) -> bytes:
    """The conversations with other columns of actions."""
    names = ("turns", "action_lengths", "action_finish", "digests")
    columns = msgspec.msgpack.decode(zstandard.decompress(encode_group(_conversations())[len(GROUP_MAGIC) :]))
    columns[12:] = [changes.get(name, value) for name, value in zip(names, columns[12:], strict=True)]
    return GROUP_MAGIC + zstandard.compress(msgspec.msgpack.encode(columns))


def refused_groups() -> list[Json]:
    """Blobs of groups that must be refused, the number of tokens advertised, and the reason that must be given."""
    prompt = ["chain_sum", 1, b"\x01" * 16, 42]

    def blob(lengths: list[int], text: bytes = b"", *, more: bytes = b"") -> bytes:
        tokens, count = sum(lengths), len(lengths)
        of_policy = [prompt, FAMILY, TOKENIZER, 7]
        of_completions = [b"\x01" * count, bytes(4 * count), lengths, [len(text), *[0] * (count - 1)], text]
        of_tokens = [bytes(tokens), bytes(tokens), bytes(2 * tokens)]
        content = msgspec.msgpack.encode([*of_policy, *of_completions, *of_tokens, more])
        return GROUP_MAGIC + zstandard.compress(content)

    longest = [limits.COMPLETION_TOKENS] * (limits.GROUP_TOKENS // limits.COMPLETION_TOKENS)
    cases = {
        "oversized: one token more than a group may have": (blob([*longest, 1]), limits.GROUP_TOKENS + 1),
        "oversized: one token more than advertised": (blob([3, 2]), 4),
        "oversized: more content than the advertised tokens can need": (
            blob([3, 2], more=bytes(limits.GROUP_OTHER_BYTES + 261 * 5)),
            5,
        ),
        "malformed: text that no token stands for": (blob([3, 2], b"text"), 5),
        "malformed: actions beside single answers": (_with_columns(turns=b"\x02\x00"), 7),
        "malformed: an action of no tokens": (_with_columns(action_lengths=[0, 6, 1]), 7),
        "malformed: actions of fewer tokens than their completion": (_with_columns(action_lengths=[3, 2, 1]), 7),
        "malformed: a digest too few": (_with_columns(digests=bytes(48)), 7),
    }
    return [
        {"name": name, "tokens": tokens, "blob": refused.hex(), "reason": name.split(":")[0]}
        for name, (refused, tokens) in cases.items()
    ]


def example_bodies() -> dict[str, Body]:
    task = TaskSuccess("chain_sum", 0.375, 1000)
    advert = GroupAdvert(
        b"\x11" * 32, 2400, PromptRef("chain_sum", 1, b"\x01" * 16, 42), (1.0, 0.0), (64, 65_536), (-0.5, -1.25)
    )
    return {
        "heartbeat": Heartbeat(
            "wren-3",
            "starling 0.1.0",
            "builtin:wren",
            FAMILY,
            TOKENIZER,
            12,
            11,
            "generate",
            8200.5,
            48,
            24,
            (task,),
            connections_field(("12D3KooWann", "12D3KooWbob")),
            ("/ip4/203.0.113.7/tcp/4001", "/ip6/2001:db8::7/tcp/4001/p2p/12D3KooWrelay/p2p-circuit"),
        ),
        "rollouts": RolloutAdvert(FAMILY, TOKENIZER, 11, (advert, advert)),
        "goodbye": Goodbye("stopped by its owner"),
        "state": StateAdvert(
            FAMILY,
            b"\x22" * 16,
            11,
            2,
            (task,),
            StateBlob(b"\x33" * 32, 2**31, b"\x44" * 32),
            (StateBlob(b"\x55" * 32, 1, b"\x66" * 32), StateBlob(b"\x77" * 32, 2**40, b"\x88" * 32)),
        ),
    }


def announcements() -> list[Json]:
    """One announcement of every kind."""
    key = NodeKey(SEED)
    return [
        {
            "seed": SEED.hex(),
            "swarm_id": SWARM_ID.hex(),
            "sequence": 2**40 + sequence,
            "time_milliseconds": round(NOW_SECONDS * 1000),
            "kind": kind,
            "body": plain(body),
            "announcement": seal(
                key, swarm_id=SWARM_ID, sequence=2**40 + sequence, time_seconds=NOW_SECONDS, body=body
            ).hex(),
        }
        for sequence, (kind, body) in enumerate(example_bodies().items())
    ]


def signed(payload: list[Any]) -> bytes:
    """An announcement with any payload at all, rightly signed."""
    raw = msgspec.msgpack.encode(payload)
    return msgspec.msgpack.encode((raw, NodeKey(SEED).sign(ANNOUNCEMENT_DOMAIN, raw)))


def refused_announcements() -> list[Json]:
    """Announcements that must be refused, the receiver's swarm and clock, and the reason that must be given."""
    public = NodeKey(SEED).public_bytes
    now = round(NOW_SECONDS * 1000)
    window = round(limits.CLOCK_WINDOW_SECONDS * 1000)
    goodbye = ["goodbye", "bye"]
    good = signed([1, 0, SWARM_ID, 1, now, public, goodbye])
    prompt = ["chain_sum", 1, b"\x01" * 16, 42]

    def advert(rewards: list[Any], lengths: list[Any], mean_logps: list[Any]) -> bytes:
        group = [b"\x11" * 32, 2400, prompt, rewards, lengths, mean_logps]
        return signed([1, 0, SWARM_ID, 1, now, public, ["rollouts", FAMILY, TOKENIZER, 11, [group]]])

    def state(anchor: list[Any], diffs: list[Any]) -> bytes:
        return signed([1, 0, SWARM_ID, 1, now, public, ["state", FAMILY, bytes(16), 11, 0, [], anchor, diffs]])

    def heartbeat(addresses: list[str]) -> bytes:
        body = ["heartbeat", "", "", "", FAMILY, TOKENIZER, 0, 0, "", 0.0, 0, 0, [], b"", addresses]
        return signed([1, 2, SWARM_ID, 1, now, public, body])

    nested: list[Any] = []
    for _ in range(limits.NESTING_DEPTH):
        nested = [nested]
    cases = {
        "malformed: truncated": good[:-1],
        "malformed: bytes after the end": good + b"\x00",
        "malformed: an extension type": signed(
            [1, 0, SWARM_ID, 1, now, public, ["goodbye", msgspec.msgpack.Ext(5, b"x")]]
        ),
        "malformed: lengths disagree": advert([1.0, 0.0], [64], [-0.5, -0.5]),
        "malformed: a positive mean log-probability": advert([1.0], [64], [0.5]),
        "malformed: a mean log-probability that is not a number": advert([1.0], [64], [float("nan")]),
        "malformed: a group without completions": advert([], [], []),
        "malformed: a state of no size": state([bytes(32), 0, bytes(32)], []),
        "malformed: a state with more diffs than allowed": state(
            [bytes(32), 9, bytes(32)], [[bytes(32), 9, bytes(32)]] * (limits.STATE_DIFFS + 1)
        ),
        "malformed: a heartbeat with more addresses than allowed": heartbeat(
            ["/ip4/203.0.113.7/tcp/4001"] * (limits.ADDRESSES_PER_HEARTBEAT + 1)
        ),
        "malformed: a heartbeat with an address that is too long": heartbeat(["/" * (limits.ADDRESS_CHARACTERS + 1)]),
        "oversized: nested too deeply": signed([1, 0, SWARM_ID, 1, now, public, ["goodbye", nested]]),
        "version: a later major version": signed([2, 0, "laid out otherwise"]),
        "wrong_swarm: another swarm": signed([1, 0, bytes(16), 1, now, public, goodbye]),
        "clock: from the far future": signed([1, 0, SWARM_ID, 1, now + window + 1, public, goodbye]),
        "clock: from the far past": signed([1, 0, SWARM_ID, 1, now - window - 1, public, goodbye]),
        "signature: one bit changed": good[:-1] + bytes([good[-1] ^ 1]),
        "signature: by another key": signed([1, 0, SWARM_ID, 1, now, NodeKey(bytes(32)).public_bytes, goodbye]),
        "unknown_kind: a kind of a later minor version": signed([1, 1, SWARM_ID, 1, now, public, ["sermon", 1]]),
    }
    return [
        {
            "name": name,
            "reason": name.split(":")[0],
            "swarm_id": SWARM_ID.hex(),
            "now_milliseconds": now,
            "announcement": raw.hex(),
        }
        for name, raw in cases.items()
    ]


def gossip_messages() -> list[Json]:
    """An announcement as a message of two publishers, which has one id, and another announcement with another id."""
    heartbeat, goodbye = (bytes.fromhex(announcements()[place]["announcement"]) for place in (0, 2))
    topic = gossip_topic(SWARM_ID)
    cases = {
        "a heartbeat, published by its sender": (SEED, heartbeat, 1, False),
        "the same heartbeat, published by another peer": (b"\xff" * 32, heartbeat, 2**64 - 1, False),
        "a goodbye, with the key beside its peer id": (SEED, goodbye, 2, True),
    }
    return [
        {
            "name": name,
            "seed": seed.hex(),
            "topic": topic,
            "data": data.hex(),
            "seqno": seqno.to_bytes(8, "big").hex(),
            "message": _signed(NodeKey(seed), topic, data, seqno, with_key=with_key).hex(),
            "message_id": gossip_message_id(topic, data).decode(),
            "message_id_bytes": gossip_message_id(topic, data).hex(),
        }
        for name, (seed, data, seqno, with_key) in cases.items()
    ]


def _signed(key: NodeKey, topic: str, data: bytes, seqno: int, *, with_key: bool) -> bytes:
    publisher = PEER_ID_PREFIX + key.public_bytes
    unsigned = b"".join(
        [
            _field(FROM, publisher),
            _field(DATA, data),
            _field(SEQNO, seqno.to_bytes(8, "big")),
            _field(TOPIC, topic.encode()),
        ]
    )
    signature = Ed25519PrivateKey.from_private_bytes(key.private_bytes).sign(SIGNING_PREFIX + unsigned)
    public_key = publisher[2:] if with_key else b""  # libp2p's protobuf of a key, which an inline peer id holds
    return unsigned + _field(SIGNATURE, signature) + (_field(KEY, public_key) if with_key else b"")


def _field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    low = bytes([number & 0x7F])
    return low if number < 0x80 else bytes([low[0] | 0x80]) + _varint(number >> 7)
