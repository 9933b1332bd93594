"""Every reason that this version can give has a sentence, and every sentence a reason that can be given."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from node.api.reasons import (
    ANNOUNCEMENT,
    CHECK,
    CHOICE,
    CONDUCT,
    FETCH,
    MEMBERSHIP,
    MESSAGE,
    OUTCOMES,
    STAGES,
    WORDS,
    stage_of,
    why_not,
    words_for,
)
from node.api.types import WhyNot
from node.learner.foreign.outcomes import TRAINED_ON, ForeignOutcome
from node.state_sync.rebuild import BadBlobError
from protocol.cluster.refusal import RefusalReason
from protocol.errors import ProtocolError, RefusedError
from swarm.announcements.gossip import GossipRefusal
from swarm.blobs.fetch_job import UnusableStreamError
from swarm.peers.reputation import Conduct


def errors(kind: type[ProtocolError]) -> Iterator[str]:
    yield kind.reason
    for each in kind.__subclasses__():
        yield from errors(each)


def test_each_reason_has_one_sentence_in_one_table() -> None:
    assert sum(map(len, STAGES.values())) == len(WORDS)
    for reason, words in WORDS.items():
        assert words[0].islower() and not words.endswith(".") and 10 < len(words) < 200, reason


def test_every_outcome_of_a_foreign_group_has_a_sentence_and_no_other() -> None:
    assert OUTCOMES.keys() == set(TRAINED_ON)
    assert OUTCOMES.keys() | CHOICE.keys() | FETCH.keys() | CHECK.keys() == set(ForeignOutcome)
    assert stage_of("used") == "outcome"


def test_every_error_of_the_protocol_has_a_sentence_and_no_other() -> None:
    assert {BadBlobError.reason, UnusableStreamError.reason} < MESSAGE.keys()
    assert MESSAGE.keys() == set(errors(ProtocolError))


def test_every_refusal_of_an_announcement_or_a_member_has_a_sentence_and_no_other() -> None:
    assert ANNOUNCEMENT.keys() == set(GossipRefusal) - MESSAGE.keys() - MEMBERSHIP.keys()
    refused = RefusedError("no reason given").reason
    assert MEMBERSHIP.keys() == {refused, *RefusalReason} - MESSAGE.keys()


def test_everything_that_a_peer_may_do_has_a_sentence_and_no_other() -> None:
    assert CONDUCT.keys() == set(Conduct) - OUTCOMES.keys() - CHECK.keys() - MESSAGE.keys()


def test_the_most_frequent_reason_comes_first_and_one_never_given_not_at_all() -> None:
    listed = why_not({"stale": 2, "false_reward": 5, "late": 0})
    assert [(each.reason, each.count) for each in listed] == [("false_reward", 5), ("stale", 2)]
    assert "recomputed" in listed[0].because and listed[0].stage == "check"


@given(st.dictionaries(st.text(max_size=300), st.integers(0, 2**63), max_size=100))
def test_reasons_of_another_version_are_told_as_such_bounded_and_escaped(counts: dict[str, int]) -> None:
    listed = why_not(counts)
    assert len(listed) <= 64
    for each in listed:
        assert all(character.isprintable() or character == "…" or ord(character) > 127 for character in each.because)
        assert len(each.reason) <= 64 * 10 + 1
        assert msgspec.json.decode(msgspec.json.encode(each), type=WhyNot) == each
    assert "\x1b" not in words_for("\x1b[31m") and "no words" in words_for("\x1b[31m")
