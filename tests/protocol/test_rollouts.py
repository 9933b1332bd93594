from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import assume, given
from hypothesis import strategies as st

from protocol import limits
from protocol.blob_id import blob_id
from protocol.columns import compress_columns
from protocol.conversations import Action
from protocol.errors import IntegrityError, MalformedError, OversizedError
from protocol.messages import GroupAdvert, PromptRef
from protocol.rollouts import (
    GROUP_MAGIC,
    LOGP_FLOOR,
    LOGP_STEPS_PER_NAT,
    Completion,
    FinishReason,
    Group,
    advert_of,
    check_against_advert,
    content_hash,
    decode_group,
    encode_group,
)

MakeGroup = Callable[..., Group]
MakeCompletion = Callable[..., Completion]
COLUMNS = (
    "prompt",
    "family",
    "tokenizer",
    "policy_version",
    "finish",
    "rewards",
    "lengths",
    "text_lengths",
    "text",
    "token_ids",
    "token_bytes",
    "logps",
    "turns",
    "action_lengths",
    "action_finish",
    "digests",
)


@st.composite
def completions(draw: st.DrawFn) -> Completion:
    lengths = draw(st.lists(st.integers(0, limits.TOKEN_TEXT_BYTES), max_size=12))
    stopped = draw(st.booleans())
    lengths += [0] if stopped else []
    size, count = sum(lengths), len(lengths)
    ids = st.integers(0, draw(st.sampled_from([255, 65_535, limits.TOKEN_ID])))
    logps = st.floats(-50.0, 0.0, width=32)
    return Completion(
        text=draw(st.binary(min_size=1, max_size=8)).ljust(size, b"x")[:size],
        token_ids=np.array(draw(st.lists(ids, min_size=count, max_size=count)), np.int64),
        token_bytes=np.array(lengths, np.int64),
        logps=np.array(draw(st.lists(logps, min_size=count, max_size=count)), np.float32),
        finish=FinishReason.STOP if stopped else FinishReason.LENGTH,
        reward=draw(st.floats(-limits.REWARD_MAGNITUDE, limits.REWARD_MAGNITUDE, width=32)),
    )


@st.composite
def conversations(draw: st.DrawFn) -> Completion:
    """Single answers one after the other, each an action."""
    answers = [each for each in draw(st.lists(completions(), min_size=1, max_size=4)) if len(each.token_ids)]
    digests = st.binary(min_size=16, max_size=16)
    assume(answers)
    return Completion(
        text=b"".join(each.text for each in answers),
        token_ids=np.concatenate([each.token_ids for each in answers]),
        token_bytes=np.concatenate([each.token_bytes for each in answers]),
        logps=np.concatenate([each.logps for each in answers]),
        finish=answers[-1].finish,
        reward=answers[-1].reward,
        actions=tuple(Action(len(each.token_ids), each.finish is FinishReason.STOP, draw(digests)) for each in answers),
    )


def content_of(group: Group) -> list[Any]:
    """The columns of a group as they travel, to be changed one by one."""
    columns: list[Any] = msgspec.msgpack.decode(zstandard.decompress(encode_group(group)[len(GROUP_MAGIC) :]))
    return columns


def blob_of(columns: list[Any]) -> bytes:
    return GROUP_MAGIC + zstandard.compress(msgspec.msgpack.encode(columns))


def assert_equal(group: Group, decoded: Group) -> None:
    for field in ("prompt", "family", "tokenizer", "policy_version", "beginning"):
        assert getattr(decoded, field) == getattr(group, field)
    for sent, got in zip(group.completions, decoded.completions, strict=True):
        assert (got.text, got.finish, got.reward) == (sent.text, sent.finish, sent.reward)
        assert got.actions == sent.actions
        assert np.array_equal(got.token_ids, sent.token_ids)
        assert np.array_equal(got.token_bytes, sent.token_bytes)
        assert [str(column.dtype) for column in (got.token_ids, got.token_bytes, got.logps)] == [
            "int64",
            "int64",
            "float32",
        ]
        assert (got.logps <= 0).all()
        assert not np.signbit(got.logps[got.logps == 0]).any()
        error = np.abs(got.logps - np.maximum(sent.logps, LOGP_FLOOR))
        assert (error <= 0.5 / LOGP_STEPS_PER_NAT).all()


@given(st.lists(completions(), min_size=1, max_size=5), st.integers(0, 2**63 - 1))
def test_group_survives_the_wire_and_matches_its_advert(several: list[Completion], version: int) -> None:
    group = Group(PromptRef("chain_sum", 1, b"c" * 16, 42), b"f" * 16, b"t" * 16, version, tuple(several))
    blob = encode_group(group)
    decoded = decode_group(blob)
    assert_equal(group, decoded)
    check_against_advert(decoded, advert_of(group, blob))
    assert encode_group(decoded) == blob


@given(st.lists(conversations(), min_size=1, max_size=4), st.binary(min_size=16, max_size=16))
def test_conversations_survive_the_wire_and_their_turns_are_what_was_said(
    several: list[Completion], beginning: bytes
) -> None:
    group = Group(PromptRef("grid", 1, b"c" * 16, 42), b"f" * 16, b"t" * 16, 7, tuple(several), beginning)
    blob = encode_group(group)
    decoded = decode_group(blob)
    assert decoded.converses
    assert_equal(group, decoded)
    check_against_advert(decoded, advert_of(group, blob))
    assert encode_group(decoded) == blob
    for completion in decoded.completions:
        turns = completion.turns()
        assert [len(turn.token_ids) for turn in turns] == [action.tokens for action in completion.actions]
        assert b"".join(turn.text for turn in turns) == completion.text
        assert np.concatenate([turn.logps for turn in turns]).tolist() == completion.logps.tolist()
        assert all(int(turn.token_bytes.sum()) == len(turn.text) for turn in turns)


def test_conversations_of_short_actions_are_smaller_than_in_one_block() -> None:
    rng = np.random.default_rng(0)

    def conversation() -> Completion:
        digits = rng.integers(10, size=(7, 3))
        return Completion(
            text=bytes((ord("0") + digits).ravel().tolist()),
            token_ids=np.hstack([15 + digits, np.full((7, 1), 151_645)]).ravel(),
            token_bytes=np.tile([1, 1, 1, 0], 7),
            logps=-rng.exponential(size=4 * 7).astype(np.float32),
            finish=FinishReason.STOP,
            reward=0.5,
            actions=tuple(Action(4, True, rng.bytes(16)) for _ in range(7)),
        )

    several = tuple(conversation() for _ in range(8))
    blob = encode_group(Group(PromptRef("game", 1, bytes(16), 42), bytes(16), bytes(16), 7, several, rng.bytes(16)))
    content = zstandard.decompress(blob[len(GROUP_MAGIC) :])
    assert len(blob) - len(GROUP_MAGIC) < 0.99 * len(compress_columns(content, []))


def test_most_turns_and_actions_are_accepted_and_no_more(make_completion: MakeCompletion) -> None:
    one = make_completion(text=b"", token_ids=np.zeros(1), token_bytes=np.zeros(1, np.int64), logps=np.zeros(1))
    ids, none = np.zeros(limits.TURNS, np.int64), np.zeros(limits.TURNS, np.float32)
    most = replace(one, token_ids=ids, token_bytes=ids, logps=none, actions=(Action(1, True, b"d" * 16),) * len(ids))
    count = limits.ACTIONS_PER_GROUP // limits.TURNS

    def group(*completions: Completion) -> Group:
        return Group(PromptRef("g" * 64, 1, b"c" * 16, 2**63 - 1), bytes(16), bytes(16), 7, completions, b"b" * 16)

    largest = encode_group(group(*[most] * count))
    assert len(zstandard.decompress(largest[4:])) < limits.GROUP_OTHER_BYTES
    assert len(decode_group(largest, tokens=limits.ACTIONS_PER_GROUP).completions) == count
    single = replace(one, token_ids=ids[:1], actions=most.actions[:1])
    with pytest.raises(ValueError, match="must not be sent"):
        encode_group(group(*[most] * count, single))
    more = np.zeros(limits.TURNS + 1, np.int64)
    longer = replace(most, token_ids=more, token_bytes=more, logps=more.astype(np.float32))
    with pytest.raises(ValueError, match=f"1 to {limits.TURNS} turns"):
        encode_group(group(replace(longer, actions=most.actions[:1] * len(more))))


@pytest.mark.parametrize("tokens", [0, 1, 127, 128, 129, 5_000])
def test_group_on_either_side_of_a_block_for_each_column_survives(make_group: MakeGroup, tokens: int) -> None:
    rng = np.random.default_rng(tokens)
    completion = Completion(
        text=rng.bytes(2 * tokens),
        token_ids=rng.integers(0, 150_000, tokens),
        token_bytes=np.full(tokens, 2),
        logps=-rng.exponential(size=tokens).astype(np.float32),
        finish=FinishReason.LENGTH,
        reward=0.5,
    )
    group = make_group(completion, completion)
    assert_equal(group, decode_group(encode_group(group)))


def test_largest_completion_and_largest_group_are_accepted(make_group: MakeGroup) -> None:
    tokens = limits.COMPLETION_TOKENS
    longest = Completion(
        text=b"x" * limits.COMPLETION_TEXT_BYTES,
        token_ids=np.full(tokens, limits.TOKEN_ID),
        token_bytes=np.full(tokens, limits.COMPLETION_TEXT_BYTES // tokens),
        logps=np.full(tokens, -1.0, np.float32),
        finish=FinishReason.LENGTH,
        reward=1.0,
    )
    empty = Completion(b"", longest.token_ids[:0], longest.token_bytes[:0], longest.logps[:0], FinishReason.LENGTH, 0.0)
    count = limits.GROUP_TOKENS // tokens
    completions = [*[longest] * count, *[empty] * (limits.COMPLETIONS_PER_GROUP - count)]
    group = make_group(*completions)
    assert len(decode_group(encode_group(group)).completions) == limits.COMPLETIONS_PER_GROUP
    with pytest.raises(OversizedError, match=f"{limits.GROUP_TOKENS + tokens} tokens; at most {limits.GROUP_TOKENS}"):
        encode_group(make_group(longest, *completions[:-1]))


def test_group_of_more_tokens_than_advertised_is_refused_before_it_is_built(make_group: MakeGroup) -> None:
    blob = encode_group(make_group())
    assert len(decode_group(blob, tokens=12).completions) == 2
    with pytest.raises(OversizedError, match="12 tokens; at most 11"):
        decode_group(blob, tokens=11)


def test_recompressed_group_has_another_id_and_the_same_content(
    make_group: MakeGroup, make_completion: MakeCompletion
) -> None:
    group = make_group()
    twin = decode_group(GROUP_MAGIC + zstandard.compress(zstandard.decompress(encode_group(group)[4:]), 19))
    assert content_hash(twin) == content_hash(group)
    disguised = replace(
        group,
        policy_version=99,
        tokenizer=b"u" * 16,
        completions=tuple(
            replace(completion, logps=completion.logps * np.float32(0.5), token_ids=completion.token_ids + 1)
            for completion in reversed(group.completions)
        ),
    )
    assert content_hash(disguised) == content_hash(group)
    other = make_group(make_completion(), make_completion(text=b"So 43."))
    elsewhere = replace(group, prompt=PromptRef("chain_sum", 1, b"c" * 16, 43))
    assert len({content_hash(each) for each in (group, other, elsewhere)}) == 3


def test_error_of_a_log_probability_is_the_same_everywhere(
    make_group: MakeGroup, make_completion: MakeCompletion
) -> None:
    logps = -np.linspace(0.0, 32.0, 60_000, dtype=np.float32)[:, None]
    group = make_group(
        make_completion(
            text=b"",
            token_ids=np.zeros(60_000, np.int64),
            token_bytes=np.zeros(60_000, np.int64),
            logps=logps[:, 0],
            finish=FinishReason.LENGTH,
        )
    )
    error = np.abs(decode_group(encode_group(group)).completions[0].logps - np.maximum(logps[:, 0], LOGP_FLOOR))
    for nats in range(32):
        worst = error[(-logps[:, 0] >= nats) & (-logps[:, 0] < nats + 1)].max()
        assert 0.9 * 2.44e-4 < worst <= 2.4415e-4


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"logps": np.array([-0.1, np.nan, -0.5, -1, -1, 0], np.float32)}, id="NaN log-probability"),
        pytest.param({"logps": np.array([-0.1, -np.inf, -0.5, -1, -1, 0], np.float32)}, id="infinite log-probability"),
        pytest.param({"logps": np.array([-0.1, 0.001, -0.5, -1, -1, 0], np.float32)}, id="positive log-probability"),
        pytest.param({"logps": np.zeros(5, np.float32)}, id="fewer log-probabilities than tokens"),
        pytest.param({"token_ids": np.array([1, 2, 3, 4, 5, -1])}, id="negative id"),
        pytest.param({"token_ids": np.array([1, 2, 3, 4, 5, limits.TOKEN_ID + 1])}, id="id over the limit"),
        pytest.param({"token_ids": np.arange(7)}, id="more ids than byte lengths"),
        pytest.param({"token_bytes": np.array([2, 1, 1, 1, 2, 0])}, id="byte lengths over the text"),
        pytest.param({"token_bytes": np.array([2, 1, 1, 1, 2, -1])}, id="negative byte length"),
        pytest.param({"text": b"x" * 260, "token_bytes": np.array([256, 1, 1, 1, 1, 0])}, id="byte length over 255"),
        pytest.param({"text": b"So 42"}, id="text under the byte lengths"),
        pytest.param(
            {"text": b"So 42.!", "token_bytes": np.array([2, 1, 1, 1, 1, 1])}, id="stopped by a visible token"
        ),
        pytest.param({"reward": float("nan")}, id="NaN reward"),
        pytest.param({"reward": limits.REWARD_MAGNITUDE + 1}, id="reward over the limit"),
    ],
)
def test_sending_what_breaks_a_guarantee_is_our_bug(
    make_group: MakeGroup, make_completion: MakeCompletion, changes: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="must not be sent"):
        encode_group(make_group(make_completion(), make_completion(**changes)))


def test_sending_a_stop_without_any_token_is_our_bug(make_group: MakeGroup, make_completion: MakeCompletion) -> None:
    none = np.zeros(0, np.int64)
    empty = make_completion(text=b"", token_ids=none, token_bytes=none, logps=none.astype(np.float32))
    with pytest.raises(ValueError, match="end-of-sequence"):
        encode_group(make_group(empty))


@pytest.mark.parametrize("count", [0, limits.COMPLETIONS_PER_GROUP + 1])
def test_sending_too_few_or_too_many_completions_is_our_bug(
    make_group: MakeGroup, make_completion: MakeCompletion, count: int
) -> None:
    group = make_group(make_completion())
    several = (make_completion(),) * count
    with pytest.raises(ValueError, match=f"{count} completions; 1 to {limits.COMPLETIONS_PER_GROUP}"):
        encode_group(Group(group.prompt, group.family, group.tokenizer, group.policy_version, several))


def test_sending_a_fingerprint_of_another_length_is_our_bug(make_group: MakeGroup) -> None:
    group = make_group()
    with pytest.raises(ValueError, match="must not be sent"):
        encode_group(Group(group.prompt, b"f" * 15, group.tokenizer, group.policy_version, group.completions))


def test_log_probability_a_rounding_error_above_zero_is_sent_as_zero(
    make_group: MakeGroup, make_completion: MakeCompletion
) -> None:
    logps = np.array([1e-7, 0, 0, 0, 0, 0], np.float32)
    blob = encode_group(make_group(make_completion(logps=logps)))
    assert decode_group(blob).completions[0].logps.tolist() == [0.0] * 6


def test_completion_over_a_limit_is_oversized_before_it_is_sent(
    make_group: MakeGroup, make_completion: MakeCompletion
) -> None:
    tokens = limits.COMPLETION_TOKENS + 1
    long = make_completion(
        text=b"",
        token_ids=np.zeros(tokens, np.int64),
        token_bytes=np.zeros(tokens, np.int64),
        logps=np.zeros(tokens, np.float32),
    )
    with pytest.raises(OversizedError, match=f"{tokens} tokens"):
        encode_group(make_group(long))
    with pytest.raises(OversizedError, match=f"{limits.COMPLETION_TEXT_BYTES}"):
        encode_group(make_group(make_completion(text=bytes(limits.COMPLETION_TEXT_BYTES + 1))))


def test_group_that_does_not_compress_under_the_limit_is_oversized_before_it_is_sent(make_group: MakeGroup) -> None:
    rng = np.random.default_rng(0)
    tokens = limits.COMPLETION_TOKENS
    noise = [
        Completion(
            text=rng.bytes(4 * tokens),
            token_ids=rng.integers(0, limits.TOKEN_ID, tokens),
            token_bytes=np.full(tokens, 4),
            logps=rng.uniform(-32, 0, tokens).astype(np.float32),
            finish=FinishReason.LENGTH,
            reward=0.0,
        )
        for _ in range(limits.GROUP_TOKENS // tokens)
    ]
    with pytest.raises(OversizedError, match="shorter or fewer completions"):
        encode_group(make_group(*noise))


@pytest.mark.parametrize(
    ("column", "change"),
    [
        pytest.param("prompt", lambda v: v[:3], id="prompt without a seed"),
        pytest.param("family", lambda v: v + b"x", id="family of 17 bytes"),
        pytest.param("policy_version", lambda v: -1, id="negative version"),
        pytest.param("finish", lambda v: b"", id="no completions"),
        pytest.param("finish", lambda v: v + b"\0", id="one finish reason more"),
        pytest.param("finish", lambda v: b"\2" * len(v), id="unknown finish reason"),
        pytest.param("finish", lambda v: bytes(65), id="65 finish reasons"),
        pytest.param("rewards", lambda v: v[:-4], id="one reward less"),
        pytest.param("rewards", lambda v: v[:-1], id="rewards cut short"),
        pytest.param("rewards", lambda v: np.array([1, np.nan], "<f4").tobytes(), id="NaN reward"),
        pytest.param("rewards", lambda v: np.array([1, np.inf], "<f4").tobytes(), id="infinite reward"),
        pytest.param("rewards", lambda v: np.array([1, -1001], "<f4").tobytes(), id="reward over the limit"),
        pytest.param("lengths", lambda v: [*v, 0], id="one length more"),
        pytest.param("lengths", lambda v: [5, 6], id="lengths under the columns"),
        pytest.param("lengths", lambda v: [7, 5], id="lengths that cut elsewhere"),
        pytest.param("lengths", lambda v: [-1, 13], id="negative length"),
        pytest.param("lengths", lambda v: [limits.COMPLETION_TOKENS + 1, 6], id="length over the limit"),
        pytest.param("lengths", lambda v: [], id="no lengths"),
        pytest.param("text_lengths", lambda v: v[:-1], id="one text length less"),
        pytest.param("text_lengths", lambda v: [6, 7], id="text lengths over the text"),
        pytest.param("text_lengths", lambda v: [5, 7], id="text lengths that cut elsewhere"),
        pytest.param("text", lambda v: v[:-1], id="text cut short"),
        pytest.param("text", lambda v: v.decode(), id="text as a string"),
        pytest.param("token_ids", lambda v: v[:-1], id="ids cut short"),
        pytest.param("token_ids", lambda v: b"", id="no ids"),
        pytest.param("token_ids", lambda v: v + bytes(12), id="ids of four bytes"),
        pytest.param("token_bytes", lambda v: v[:-1], id="byte lengths cut short"),
        pytest.param("token_bytes", lambda v: b"\1" * len(v), id="stopped by a visible token"),
        pytest.param("token_bytes", lambda v: b"\xff" * len(v), id="byte lengths over the text"),
        pytest.param("logps", lambda v: v[:-1], id="log-probabilities cut short"),
        pytest.param("logps", lambda v: v + bytes(12), id="log-probabilities of three bytes"),
        pytest.param("logps", lambda v: b"", id="no log-probabilities"),
    ],
)
def test_group_with_an_impossible_column_is_malformed(
    make_group: MakeGroup, column: str, change: Callable[[Any], Any]
) -> None:
    columns = content_of(make_group())
    index = COLUMNS.index(column)
    columns[index] = change(columns[index])
    with pytest.raises(MalformedError):
        decode_group(blob_of(columns))


@pytest.mark.parametrize(
    ("column", "change"),
    [
        pytest.param("turns", lambda v: v[:1], id="one completion without actions"),
        pytest.param("turns", lambda v: bytes([2, 2]), id="more turns than actions"),
        pytest.param("turns", lambda v: bytes([3, 0]), id="a conversation without actions"),
        pytest.param("turns", lambda v: bytes([1, 2]), id="actions of another completion"),
        pytest.param("turns", lambda v: b"", id="actions without turns"),
        pytest.param("action_lengths", lambda v: [2, 4], id="one action less"),
        pytest.param("action_lengths", lambda v: [2, 4, 7], id="an action beyond its completion"),
        pytest.param("action_lengths", lambda v: [0, 6, 6], id="an action without tokens"),
        pytest.param("action_finish", lambda v: bytes([0, 0, 0]), id="stopped by a visible token"),
        pytest.param("action_finish", lambda v: bytes([1, 1, 0]), id="ended otherwise than its completion"),
        pytest.param("action_finish", lambda v: bytes([2, 0, 0]), id="unknown finish reason"),
        pytest.param("action_finish", lambda v: v[:2], id="one finish reason less"),
        pytest.param("digests", lambda v: v[:-1], id="digests cut short"),
        pytest.param("digests", lambda v: v[16:], id="no digest of the first text"),
        pytest.param("digests", lambda v: b"", id="no digests"),
        pytest.param("digests", lambda v: bytes(16 * (2 + limits.ACTIONS_PER_GROUP)), id="too many digests"),
    ],
)
def test_conversations_with_an_impossible_column_are_malformed(
    conversations: Group, column: str, change: Callable[[Any], Any]
) -> None:
    columns = content_of(conversations)
    index = COLUMNS.index(column)
    columns[index] = change(columns[index])
    with pytest.raises(MalformedError):
        decode_group(blob_of(columns))


def test_single_answers_are_sent_as_before_conversations_were_known(make_group: MakeGroup) -> None:
    assert len(content_of(make_group())) == COLUMNS.index("turns")


def test_equal_text_in_other_actions_is_another_content(conversations: Group) -> None:
    both, one = conversations.completions
    joined = replace(conversations, completions=(replace(both, actions=one.actions), one))
    assert content_hash(joined) != content_hash(conversations)
    reordered = replace(conversations, completions=(one, both))
    assert content_hash(reordered) == content_hash(conversations)


def test_columns_appended_by_a_newer_minor_version_are_ignored(conversations: Group) -> None:
    assert_equal(conversations, decode_group(blob_of([*content_of(conversations), b"new", [1]])))


def test_columns_are_read_by_a_decoder_written_from_the_specification(make_group: MakeGroup) -> None:
    """Not one line of the codec is used here: docs/protocol.md alone."""
    columns = dict(zip(COLUMNS, content_of(make_group()), strict=False))
    assert columns["prompt"] == ["chain_sum", 1, b"c" * 16, 42]
    assert columns["finish"] == bytes([0, 0])
    assert columns["rewards"] == bytes.fromhex("0000803f 00000000")
    assert (columns["lengths"], columns["text_lengths"]) == ([6, 6], [6, 6])
    low, middle, high = (columns["token_ids"][12 * plane : 12 * (plane + 1)] for plane in range(3))
    ids = [a + 256 * b + 65536 * c for a, b, c in zip(low, middle, high, strict=True)]
    assert ids == [70_000, 12, 4, 5, 300, 0] * 2
    steps = [a + 256 * b for a, b in zip(columns["logps"][:12], columns["logps"][12:], strict=True)]
    assert steps == [round(-logp * 2048) for logp in (-0.1, -2.0, -0.5, -11.0, -0.001, 0.0)] * 2


def test_advert_says_what_the_receiver_will_find(make_group: MakeGroup) -> None:
    group = make_group()
    blob = encode_group(group)
    advert = advert_of(group, blob)
    assert (advert.blob, advert.size, advert.prompt) == (blob_id(blob), len(blob), group.prompt)
    assert (advert.rewards, advert.lengths) == ((1.0, 0.0), (6, 6))
    assert advert.mean_logps == pytest.approx([np.mean([-0.1, -2.0, -0.5, -11.0, -0.001, 0.0])] * 2, abs=2.5e-4)
    assert advert == advert_of(decode_group(blob), blob)


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("prompt", PromptRef("chain_sum", 1, b"c" * 16, 43), "prompt"),
        ("rewards", (1.0, 1.0), "rewards"),
        ("rewards", (1.0, 1e-3), "rewards"),
        ("lengths", (6, 5), "lengths"),
        ("mean_logps", (-2.2668, -2.30), "mean log-probability"),
    ],
)
def test_group_that_is_not_the_one_advertised_names_the_field(
    make_group: MakeGroup, field: str, value: Any, named: str
) -> None:
    blob = encode_group(make_group())
    advert: GroupAdvert = msgspec.structs.replace(advert_of(make_group(), blob), **{field: value})
    with pytest.raises(IntegrityError, match=f"^{named}: advertised"):
        check_against_advert(decode_group(blob), advert)


@pytest.mark.parametrize(
    ("promised", "named"),
    [({"family": b"g" * 16}, "family"), ({"tokenizer": b""}, "tokenizer"), ({"policy_version": 0}, "policy version")],
)
def test_group_by_another_policy_than_announced_names_the_field(
    make_group: MakeGroup, promised: dict[str, Any], named: str
) -> None:
    group = make_group()
    advert = advert_of(group, encode_group(group))
    check_against_advert(group, advert, family=b"f" * 16, tokenizer=b"t" * 16, policy_version=7)
    with pytest.raises(IntegrityError, match=f"^{named}: advertised"):
        check_against_advert(group, advert, **promised)


def test_advert_may_round_its_mean_log_probabilities(make_group: MakeGroup) -> None:
    group = make_group()
    advert = advert_of(group, encode_group(group))
    rounded = tuple(round(logp, 2) for logp in advert.mean_logps)
    assert rounded != advert.mean_logps
    check_against_advert(group, msgspec.structs.replace(advert, mean_logps=rounded))


def test_advert_whose_columns_disagree_is_malformed(make_group: MakeGroup) -> None:
    group = make_group()
    advert = msgspec.structs.replace(advert_of(group, encode_group(group)), mean_logps=(-1.0,))
    with pytest.raises(MalformedError, match="1 mean log-probabilities"):
        check_against_advert(group, advert)
