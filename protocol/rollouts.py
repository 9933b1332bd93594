"""Completions and groups, and the blob form of a group.

A blob is ``b"SLG1"`` followed by one zstd frame of a MessagePack array whose large elements are columns over all
tokens of all completions (``docs/protocol.md`` gives every byte). Two columns take nearly all of the bytes:

- token ids as little-endian byte planes of the smallest width that holds them, 1 to 3 bytes;
- log-probabilities as unsigned fixed point, q = round(-logp · 2048), clipped to 65535, in two byte planes.

Fixed point has one ABSOLUTE error, at most 1/4096 = 2.4e-4 nats, everywhere from 0 to -32 nats. An importance ratio
is the exponential of a difference of log-probabilities, so that the ratio has one RELATIVE error, 0.024 %, for likely
and unlikely tokens alike. In as many bits, bfloat16 has an error of up to 3e-2 nats at -10 and float16 of 4e-3, while
both use most of their codes for log-probabilities so near 0 that they change no ratio. Below -32 nats the value sent is
-32.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from protocol import limits, wire
from protocol.blob_id import blob_id
from protocol.columns import compress_columns, decompress_columns, from_planes, to_planes
from protocol.conversations import DIGEST_BYTES, Action
from protocol.errors import IntegrityError, MalformedError, OversizedError
from protocol.messages import Counter, GroupAdvert, Hash16, PromptRef

GROUP_MAGIC: Final = b"SLG1"
LOGP_STEPS_PER_NAT: Final = 2048
LOGP_FLOOR: Final = -65535 / LOGP_STEPS_PER_NAT  # nats; a lower value is sent as this one
MEAN_LOGP_TOLERANCE: Final = 1e-2  # nats; between an advert and its group

# A zstd block for each column, with its own Huffman tables, saves bytes (scripts/bench/wire.py shows how many). In a
# group of fewer tokens than this the headers of the blocks cost more than the blocks save. Conversations are also
# compressed with blocks for the two planes of log-probabilities alone, and the smaller frame is sent: digests do not
# compress, and in one block with them hardly anything does; short actions make columns too short for a block each.
_BLOCK_PER_COLUMN_TOKENS: Final = 256

# Of one token in the columns: its id, its byte length, its log-probability and its text.
_TOKEN_CONTENT_BYTES: Final = 3 + 1 + 2 + limits.TOKEN_TEXT_BYTES


class FinishReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"  # the end-of-sequence token was sampled; it is the last token id, and has no text
    LENGTH = "length"  # the limit on new tokens was reached


_FINISH_CODES: Final = (FinishReason.STOP, FinishReason.LENGTH)  # on the wire: the position in this tuple


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """One sampled answer, with what off-policy learning needs to know of the policy that sampled it. Of a conversation
    it has the tokens and the text of all actions, one after the other, and nothing of what was observed.

    ``decode_group`` guarantees: all three columns have T entries, ``token_bytes`` sums to ``len(text)``, every
    log-probability is finite and at most 0, ids are within ``limits.TOKEN_ID``; the reward is finite and within
    ``limits.REWARD_MAGNITUDE``; ``STOP`` means that there is a last token and that it has no text. ``actions`` have T
    tokens together, and ``finish`` is that of the last.
    """

    text: bytes  # UTF-8 as a rule; the tokens' byte strings joined, end-of-sequence excluded
    token_ids: NDArray[np.int64]  # (T,) in the generator's tokenizer, end-of-sequence included when sampled
    token_bytes: NDArray[np.int64]  # (T,) bytes of text that each token stands for; 0 for end-of-sequence
    logps: NDArray[np.float32]  # (T,) log-probability of each token under the behaviour policy, nats
    finish: FinishReason
    reward: float  # claimed; every receiver recomputes it
    actions: tuple[Action, ...] = ()  # of a conversation; none: a single answer

    def turns(self) -> list[Completion]:
        """Returns each action as a completion of its own, in order; a single answer is the only one."""
        if not self.actions:
            return [self]
        turns: list[Completion] = []
        token, byte = 0, 0
        for action in self.actions:
            span = slice(token, token + action.tokens)
            size = int(self.token_bytes[span].sum())
            finish = FinishReason.STOP if action.stopped else FinishReason.LENGTH
            columns = self.token_ids[span], self.token_bytes[span], self.logps[span]
            turns.append(Completion(self.text[byte : byte + size], *columns, finish, self.reward))
            token, byte = span.stop, byte + size
        return turns


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """One prompt with its G completions, all by one policy at one version. Either all of them are conversations or
    none is."""

    prompt: PromptRef
    family: bytes  # 16 bytes, the generator's
    tokenizer: bytes  # 16 bytes, the generator's
    policy_version: int
    completions: tuple[Completion, ...]
    beginning: bytes = b""  # of conversations: the digest of their first text, 16 bytes

    @property
    def converses(self) -> bool:
        """Whether it holds conversations."""
        return bool(self.beginning)


class _Columns(Struct, frozen=True, array_like=True):
    """A group as it is sent. N is the number of tokens of all completions together."""

    prompt: PromptRef
    family: Hash16
    tokenizer: Hash16
    policy_version: Counter
    finish: Annotated[bytes, Meta(min_length=1, max_length=limits.COMPLETIONS_PER_GROUP)]  # G codes
    rewards: bytes  # G float32, little-endian
    lengths: tuple[Annotated[int, Meta(ge=0, le=limits.COMPLETION_TOKENS)], ...]  # G, tokens
    text_lengths: tuple[Annotated[int, Meta(ge=0, le=limits.COMPLETION_TEXT_BYTES)], ...]  # G, bytes
    text: bytes
    token_ids: bytes  # 1 to 3 planes of N bytes, least significant first
    token_bytes: bytes  # N
    logps: bytes  # 2 planes of N bytes, least significant first


class _ConversationColumns(_Columns, frozen=True, array_like=True):
    """A group of conversations as it is sent, since minor version 3. A is the number of all actions together."""

    turns: Annotated[bytes, Meta(max_length=limits.COMPLETIONS_PER_GROUP)] = b""  # G, actions of each completion
    action_lengths: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=limits.COMPLETION_TOKENS)], ...],
        Meta(max_length=limits.ACTIONS_PER_GROUP),
    ] = ()  # A, tokens
    action_finish: Annotated[bytes, Meta(max_length=limits.ACTIONS_PER_GROUP)] = b""  # A codes
    digests: Annotated[bytes, Meta(max_length=DIGEST_BYTES * (1 + limits.ACTIONS_PER_GROUP))] = b""  # 1 + A


def encode_group(group: Group) -> bytes:
    """The blob of a group. Rewards are rounded to float32, log-probabilities to 1/2048 nat and to -32 at least.

    Raises ``OversizedError`` for a group that exceeds ``limits``, ``ValueError`` for one that breaks the guarantees of
    ``Completion``: that is our own bug, not a peer's.
    """
    try:
        columns = _columns_of(group)
        content = msgspec.msgpack.encode(columns)
        wire.decode(content, _ConversationColumns, max_bytes=limits.GROUP_BYTES)  # every receiver's schema
    except MalformedError as error:
        raise ValueError(f"this group must not be sent: {error}") from error
    frames = [compress_columns(content, ends) for ends in _block_ends(columns, len(content))]
    blob = GROUP_MAGIC + min(frames, key=len)
    if len(blob) > limits.GROUP_BLOB_BYTES:
        raise OversizedError(
            f"a group blob of {len(blob)} bytes; at most {limits.GROUP_BLOB_BYTES} are allowed: "
            "ask for shorter or fewer completions"
        )
    return blob


def most_content_bytes(tokens: int) -> int:
    """The bytes that a group of so many tokens may have, decompressed: any group within ``limits`` has fewer."""
    return min(limits.GROUP_BYTES, limits.GROUP_OTHER_BYTES + _TOKEN_CONTENT_BYTES * tokens)


def most_blob_bytes(tokens: int) -> int:
    """The bytes that the blob of a group of so many tokens may need, however badly its content compresses."""
    content_bytes = most_content_bytes(tokens)
    return min(limits.GROUP_BLOB_BYTES, content_bytes + content_bytes // 128 + 1024)


def decode_group(raw: bytes, *, tokens: int = limits.GROUP_TOKENS) -> Group:
    """The group in a blob, with every guarantee that ``Completion`` lists.

    ``tokens`` is the number advertised, of all completions together: nothing is decompressed beyond what a group of so
    many may have, and none with more is built. Allocates at most a few times ``most_content_bytes(tokens)``, whatever
    the blob claims. Raises ``OversizedError`` or ``MalformedError``. ``check_against_advert`` tests whether the group
    is the one advertised.
    """
    if len(raw) > limits.GROUP_BLOB_BYTES:
        raise OversizedError(f"a group blob of {len(raw)} bytes; at most {limits.GROUP_BLOB_BYTES} are allowed")
    if not raw.startswith(GROUP_MAGIC):
        raise MalformedError(f"not a rollout group: begins with {raw[:4].hex()}, expected {GROUP_MAGIC.hex()}")
    most_bytes = most_content_bytes(tokens)
    content = decompress_columns(memoryview(raw)[len(GROUP_MAGIC) :], max_bytes=most_bytes)
    columns = wire.decode(content, _ConversationColumns, max_bytes=most_bytes)
    del content  # the columns are copies
    _check_tokens(columns.lengths, tokens)
    return _group_of(columns)


def content_hash(group: Group) -> bytes:
    """32 bytes that two groups share if they teach the same: the same prompt and the same texts, of conversations the
    same actions, in any order.

    How a group is compressed, which tokens its texts are cut into and which policy it names make no difference: all
    three can be changed by anybody who passes on the group of another.
    """
    digest = hashlib.sha256(msgspec.msgpack.encode(group.prompt))
    for text_digest in sorted(map(_text_digest, group.completions)):
        digest.update(text_digest)
    return digest.digest()


def _text_digest(completion: Completion) -> bytes:
    digest = hashlib.sha256(completion.text)
    for turn in completion.turns() if completion.actions else ():
        digest.update(len(turn.text).to_bytes(4, "big"))
    return digest.digest()


def advert_of(group: Group, blob: bytes) -> GroupAdvert:
    """The advert of a group and of its ``blob``, from ``encode_group``: it claims what a receiver finds in the blob."""
    return GroupAdvert(
        blob=blob_id(blob),
        size=len(blob),
        prompt=group.prompt,
        rewards=tuple(float(np.float32(c.reward)) for c in group.completions),
        lengths=tuple(len(c.token_ids) for c in group.completions),
        mean_logps=tuple(_mean_logp(c.logps) for c in group.completions),
    )


def check_against_advert(
    group: Group,
    advert: GroupAdvert,
    *,
    family: bytes | None = None,
    tokenizer: bytes | None = None,
    policy_version: int | None = None,
) -> None:
    """Raises ``IntegrityError``, which names the first field in which a group differs from its advert.

    The three keywords are the fields of the announcement around the advert; one that is None is not checked. Mean
    log-probabilities may differ by ``MEAN_LOGP_TOLERANCE``, other fields not at all. Id and size of the blob were
    checked when it was fetched.
    """
    wire.check_advert(advert)
    found = advert_of(group, b"")
    claims: list[tuple[str, object, object]] = [
        ("prompt", advert.prompt, group.prompt),
        ("family", family, group.family),
        ("tokenizer", tokenizer, group.tokenizer),
        ("policy version", policy_version, group.policy_version),
        ("rewards", tuple(float(np.float32(reward)) for reward in advert.rewards), found.rewards),
        ("lengths", advert.lengths, found.lengths),
    ]
    for field, advertised, value in claims:
        if advertised is not None and advertised != value:
            raise IntegrityError(f"{field}: advertised {advertised!r}, the group has {value!r}")
    for advertised_logp, mean_logp in zip(advert.mean_logps, found.mean_logps, strict=True):
        if abs(advertised_logp - mean_logp) > MEAN_LOGP_TOLERANCE:
            raise IntegrityError(
                f"mean log-probability: advertised {advertised_logp:.4f}, the group has {mean_logp:.4f}"
            )


def _columns_of(group: Group) -> _Columns:
    if not 1 <= len(group.completions) <= limits.COMPLETIONS_PER_GROUP:
        raise MalformedError(f"{len(group.completions)} completions; 1 to {limits.COMPLETIONS_PER_GROUP} are allowed")
    _check_tokens([len(completion.token_ids) for completion in group.completions], limits.GROUP_TOKENS)
    for completion in group.completions:
        _check_completion(completion)
    columns = _single_columns_of(group)
    if not group.beginning and not any(c.actions for c in group.completions):
        return columns
    actions = [action for completion in group.completions for action in completion.actions]
    conversations = _ConversationColumns(
        **msgspec.structs.asdict(columns),
        turns=bytes(min(len(c.actions), 255) for c in group.completions),
        action_lengths=tuple(action.tokens for action in actions),
        action_finish=bytes(not action.stopped for action in actions),
        digests=b"".join([group.beginning, *(action.digest for action in actions)]),
    )
    _actions_of(conversations)
    return conversations


def _single_columns_of(group: Group) -> _Columns:
    return _Columns(
        prompt=group.prompt,
        family=group.family,
        tokenizer=group.tokenizer,
        policy_version=group.policy_version,
        finish=bytes(_FINISH_CODES.index(c.finish) for c in group.completions),
        rewards=np.array([c.reward for c in group.completions], dtype="<f4").tobytes(),
        lengths=tuple(len(c.token_ids) for c in group.completions),
        text_lengths=tuple(len(c.text) for c in group.completions),
        text=b"".join(c.text for c in group.completions),
        token_ids=_id_planes(np.concatenate([c.token_ids for c in group.completions])),
        token_bytes=np.concatenate([c.token_bytes for c in group.completions]).astype(np.uint8).tobytes(),
        logps=to_planes(np.concatenate([_logp_steps(c.logps) for c in group.completions]), 2),
    )


def _group_of(columns: _ConversationColumns) -> Group:
    counts = {len(columns.finish), len(columns.lengths), len(columns.text_lengths)}
    if len(counts) != 1 or len(columns.rewards) != 4 * len(columns.finish):
        raise MalformedError("finish reasons, rewards, lengths and text lengths are of unequal numbers of completions")
    if max(columns.finish) >= len(_FINISH_CODES):
        raise MalformedError(f"finish reason {max(columns.finish)}; known are 0 to {len(_FINISH_CODES) - 1}")
    tokens = sum(columns.lengths)
    if len(columns.text) != sum(columns.text_lengths) or len(columns.token_bytes) != tokens:
        raise MalformedError(
            f"{len(columns.text)} bytes of text and {len(columns.token_bytes)} token byte lengths; "
            f"the completions' lengths add up to {sum(columns.text_lengths)} and {tokens}"
        )
    rewards = np.frombuffer(columns.rewards, dtype="<f4").tolist()
    token_ids = from_planes(columns.token_ids, tokens, widths=(1, 2, 3))
    token_bytes = np.frombuffer(columns.token_bytes, dtype=np.uint8).astype(np.int64)
    steps = from_planes(columns.logps, tokens, widths=(2,))
    logps = (-steps / LOGP_STEPS_PER_NAT).astype(np.float32)
    actions = _actions_of(columns)
    completions: list[Completion] = []
    token, byte = 0, 0
    for index, (length, text_length) in enumerate(zip(columns.lengths, columns.text_lengths, strict=True)):
        span = slice(token, token + length)
        completion = Completion(
            text=columns.text[byte : byte + text_length],
            token_ids=token_ids[span],
            token_bytes=token_bytes[span],
            logps=logps[span],
            finish=_FINISH_CODES[columns.finish[index]],
            reward=rewards[index],
            actions=actions[index],
        )
        _check_completion(completion)
        completions.append(completion)
        token, byte = token + length, byte + text_length
    of_policy = columns.family, columns.tokenizer, columns.policy_version
    return Group(columns.prompt, *of_policy, tuple(completions), columns.digests[:DIGEST_BYTES])


def _actions_of(columns: _ConversationColumns) -> list[tuple[Action, ...]]:
    """Returns the actions of each completion. Raises ``MalformedError`` where their columns do not agree."""
    count = len(columns.action_lengths)
    if not (columns.turns or count or columns.action_finish or columns.digests):
        return [()] * len(columns.finish)
    if len(columns.turns) != len(columns.finish) or min(columns.turns) < 1 or max(columns.turns) > limits.TURNS:
        raise MalformedError(f"each of {len(columns.finish)} conversations has 1 to {limits.TURNS} turns")
    if not sum(columns.turns) == count == len(columns.action_finish):
        raise MalformedError(
            f"{sum(columns.turns)} turns, {count} action lengths, {len(columns.action_finish)} of their finish reasons"
        )
    if len(columns.digests) != DIGEST_BYTES * (1 + count):
        raise MalformedError(f"{len(columns.digests)} bytes of digests for {count} actions")
    if max(columns.action_finish) >= len(_FINISH_CODES):
        raise MalformedError(f"finish reason {max(columns.action_finish)} of an action")
    cut = range(DIGEST_BYTES, len(columns.digests), DIGEST_BYTES)
    digests = [columns.digests[begin : begin + DIGEST_BYTES] for begin in cut]
    rows = zip(columns.action_lengths, columns.action_finish, digests, strict=True)
    actions = iter([Action(tokens, not code, digest) for tokens, code, digest in rows])
    return [tuple(itertools.islice(actions, turns)) for turns in columns.turns]


def _check_tokens(lengths: Sequence[int], most: int) -> None:
    if sum(lengths) > most:
        raise OversizedError(f"a group of {sum(lengths)} tokens; at most {most} are allowed")


def _check_completion(completion: Completion) -> None:
    """Raises ``OversizedError`` or ``MalformedError`` unless the guarantees of ``Completion`` hold."""
    ids, token_bytes, logps, text = completion.token_ids, completion.token_bytes, completion.logps, completion.text
    if len(ids) > limits.COMPLETION_TOKENS or len(text) > limits.COMPLETION_TEXT_BYTES:
        raise OversizedError(
            f"a completion of {len(ids)} tokens and {len(text)} bytes of text; at most {limits.COMPLETION_TOKENS} "
            f"and {limits.COMPLETION_TEXT_BYTES} are allowed"
        )
    if not len(ids) == len(token_bytes) == len(logps):
        raise MalformedError(f"{len(ids)} token ids, {len(token_bytes)} byte lengths, {len(logps)} log-probabilities")
    if not abs(completion.reward) <= limits.REWARD_MAGNITUDE:  # refuses NaN too
        raise MalformedError(f"reward {completion.reward}; finite and at most ±{limits.REWARD_MAGNITUDE} is allowed")
    if completion.finish is FinishReason.STOP and (len(ids) == 0 or token_bytes[-1] != 0):
        raise MalformedError("ended by an end-of-sequence token, but the last token is not one (0 bytes of text)")
    if len(ids):
        if ids.min() < 0 or ids.max() > limits.TOKEN_ID:
            raise MalformedError(f"token ids from {ids.min()} to {ids.max()}; 0 to {limits.TOKEN_ID} are allowed")
        if token_bytes.min() < 0 or token_bytes.max() > limits.TOKEN_TEXT_BYTES:
            raise MalformedError(f"a token of more than {limits.TOKEN_TEXT_BYTES} or less than 0 bytes of text")
        if not (logps.max() < 0.5 / LOGP_STEPS_PER_NAT and np.isfinite(logps).all()):  # a hair above 0 is rounding
            raise MalformedError("a log-probability that is positive or not finite")
    if int(token_bytes.sum()) != len(text):
        raise MalformedError(f"the tokens stand for {int(token_bytes.sum())} bytes, the text has {len(text)}")
    if completion.actions:
        _check_actions(completion)


def _check_actions(completion: Completion) -> None:
    ends = np.cumsum([action.tokens for action in completion.actions])
    if int(ends[-1]) != len(completion.token_ids):
        raise MalformedError(f"the actions have {ends[-1]} tokens, their completion {len(completion.token_ids)}")
    if completion.actions[-1].stopped != (completion.finish is FinishReason.STOP):
        raise MalformedError("the last action has another finish reason than its completion")
    for action, end in zip(completion.actions, ends, strict=True):
        if action.stopped and completion.token_bytes[end - 1] != 0:
            raise MalformedError("an action ended by an end-of-sequence token, but its last token is not one")


def _mean_logp(logps: NDArray[np.float32]) -> float:
    """The mean of the log-probabilities as they are sent; 0 for an empty completion."""
    return 0.0 - float(_logp_steps(logps).mean()) / LOGP_STEPS_PER_NAT if len(logps) else 0.0


def _logp_steps(logps: NDArray[np.float32]) -> NDArray[np.int64]:
    return np.rint(np.clip(logps, LOGP_FLOOR, 0.0) * -LOGP_STEPS_PER_NAT).astype(np.int64)


def _id_planes(ids: NDArray[np.int64]) -> bytes:
    highest = int(ids.max()) if len(ids) else 0
    return to_planes(ids, max(1, (highest.bit_length() + 7) // 8))


def _block_ends(columns: _Columns, content_bytes: int) -> list[list[int]]:
    """Returns the ways to divide the encoded group into blocks, each as rising offsets, that are worth a try."""
    small = len(columns.token_bytes) < _BLOCK_PER_COLUMN_TOKENS
    if not isinstance(columns, _ConversationColumns):
        return [[] if small else _column_ends(columns, content_bytes)]
    ends = _column_ends(columns, content_bytes)
    return [[] if small else ends, ends[-4:-1]]  # the latter: where token byte lengths and the two planes end


def _column_ends(columns: _Columns, content_bytes: int) -> list[int]:
    """The offsets at which columns and their planes end within the encoded group (rising), of one token at least."""
    tokens = len(columns.token_bytes)
    ends: list[int] = []
    end = content_bytes
    if isinstance(columns, _ConversationColumns):
        ends = [end, end - len(columns.digests)]
        fields = columns.turns, columns.action_lengths, columns.action_finish, columns.digests
        end -= sum(len(msgspec.msgpack.encode(field)) for field in fields)
    for column, pieces in (
        (columns.logps, 2),
        (columns.token_bytes, 1),
        (columns.token_ids, len(columns.token_ids) // tokens),
        (columns.text, 1),
    ):
        ends += [end - piece * tokens for piece in range(pieces)]
        end -= len(msgspec.msgpack.encode(column))
    return [end, *ends[:0:-1]]
