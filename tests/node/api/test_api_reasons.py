"""Every reason that the sources can give has a sentence, and every sentence a reason that can be given."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from node.api.reasons import MESSAGE, OUTCOMES, STAGES, WORDS, stage_of, why_not, words_for
from node.api.types import WhyNot
from protocol.cluster.refusal import RefusalReason
from protocol.errors import ProtocolError
from swarm.blobs.fetch_job import UnusableStreamError
from swarm.peers.reputation import Conduct

ROOT = Path(__file__).parents[3]
COUNTERS = {"rejected", "foreign_rejected", "refused", "refusals"}  # by what name reasons are counted
DECIDERS = {  # functions that return a reason, or None
    "node/learner/foreign/foreign_choice.py": {"_unfit", "_use", "_spread"},
    "swarm/announcements/gossip.py": {"refusal"},
}


def sources() -> Iterator[tuple[str, ast.Module]]:
    for folder in ("node/learner", "swarm"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def literals(node: ast.AST) -> Iterator[str]:
    """Strings that an expression can be, not those that it is made from."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp(body=one, orelse=other):
            yield from literals(one)
            yield from literals(other)
        case ast.Tuple(elts=[first, *_]):
            yield from literals(first)
        case _:
            pass


def name_of(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def reasons_in(path: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=counter, slice=key) if name_of(counter) in COUNTERS:
                yield from literals(key)
            case ast.keyword(arg="rejected", value=ast.Call(func=ast.Name("Counter"), keywords=counted)):
                yield from (each.arg for each in counted if each.arg)
            case ast.Call(func=ast.Name("ForeignRefusal"), args=[_, reason, *_]):
                yield from literals(reason)
            case ast.Call(func=ast.Attribute(ast.Name("Decided"), _), args=[reason, *_]):
                yield from literals(reason)
            case ast.FunctionDef(name=name) if name in DECIDERS.get(path, ()):
                for inner in ast.walk(node):
                    if isinstance(inner, ast.Return) and inner.value is not None:
                        yield from literals(inner.value)
            case ast.Assign(targets=[target], value=value) if name_of(target) in {"outcome", "refusal"}:
                yield from literals(value)
            case ast.AnnAssign(target=target, value=ast.expr() as value) if name_of(target) in {"outcome", "refusal"}:
                yield from literals(value)
            case _:
                pass


def errors(kind: type[ProtocolError]) -> Iterator[str]:
    yield kind.reason
    for each in kind.__subclasses__():
        yield from errors(each)


def test_every_reason_that_the_sources_can_give_has_a_sentence_and_no_other() -> None:
    given_by_code = {reason for path, tree in sources() for reason in reasons_in(path, tree)}
    assert {"not_better", "false_reward", "late", "rate", "banned", "without_gradient"} <= given_by_code
    known = {"used", "replayed", "refused", "crowded_out"} | {*errors(ProtocolError), *RefusalReason, *Conduct}
    assert given_by_code | known == set(WORDS)


def test_each_reason_has_one_sentence_in_one_table() -> None:
    assert sum(map(len, STAGES.values())) == len(WORDS)
    for reason, words in WORDS.items():
        assert words[0].islower() and not words.endswith(".") and 10 < len(words) < 200, reason
    assert set(errors(ProtocolError)) == set(MESSAGE) and UnusableStreamError.reason in MESSAGE
    assert stage_of("used") == "outcome" and set(OUTCOMES) == {"used", "replayed"}


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
