"""Conversations in the embedded engine: what is sampled does not depend on who else is there or how long replies take,
each token is computed once, and what was interrupted goes on."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from numpy.testing import assert_allclose

from node.engines.engine import Enough, GenerationProgress, GenerationRequest, Heard, Sample, Sampling
from node.engines.lean import attention, decoder, passes
from node.engines.lean.decoder import LeanDecoder
from node.engines.resumption import row_of
from node.engines.torch import TorchEngine
from node.engines.turns import in_step
from node.policy.policy import Policy
from tests.node.engines.test_torch_engine import logps_by_forward

Load = Callable[..., Policy]
CONTEXT = 64


class Said:
    """Replies with 0 to ``most`` tokens that follow from request and actions; the third request ends after two turns. A
    reply comes after as many looks as ``delay`` says, or once it is waited for."""

    rewrites = False

    def __init__(self, delay: Callable[[], int] = lambda: 0, turns: int = 4, most: int = 5) -> None:
        self._delay, self._turns, self._most = delay, turns, most
        self._awaited: list[list[Any]] = []
        self.waited = 0

    def acted(self, conversation: int, request: int, so_far: Sample) -> None:
        over = len(so_far.observed) + 1 == (2 if request == 2 else self._turns)
        draws = random.Random(f"{request} {so_far.token_ids.tolist()}")
        ids = [draws.randrange(2, 40) for _ in range(draws.randint(0, self._most))]
        self._awaited.append([self._delay(), conversation, None if over else Heard(ids)])

    def replies(self, *, wait: bool) -> list[tuple[int, Heard | None]]:
        self._awaited.sort(key=lambda each: each[0])
        self.waited += wait
        here = [each for each in self._awaited if each[0] <= 0]
        if wait and not here:
            here = self._awaited[:1]
        self._awaited = [[delay - 1, *rest] for delay, *rest in self._awaited if [delay, *rest] not in here]
        return [(conversation, ids) for _, conversation, ids in here]


def asked(most: int = 6) -> list[GenerationRequest]:
    """Five groups of one to three conversations, and one of single answers."""
    draws = random.Random(1)
    prompts = [[draws.randrange(2, 40) for _ in range(draws.randint(1, 9))] for _ in range(6)]
    return [
        GenerationRequest(prompt, 1 + index % 3, most, conversation_tokens=None if index == 3 else CONTEXT)
        for index, prompt in enumerate(prompts)
    ]


def anew(policy: Policy, requests: Sequence[GenerationRequest], turns: Said | None = None) -> list[GenerationProgress]:
    """Returns what comes of ``requests``, greedily, where every turn computes all rows anew."""
    engine = TorchEngine(policy, rows=64, seed=0, drafts=False)
    return in_step(engine.advance, requests, Sampling(0.0), None, None, turns or Said())


def written(reached: Sequence[GenerationProgress]) -> list[list[tuple[list[int], Any]]]:
    return [[(each.token_ids.tolist(), each.observed) for each in of_group.samples] for of_group in reached]


def by_row(reached: Sequence[GenerationProgress]) -> list[list[tuple[list[int], Sample]]]:
    return [sorted(((row_of((), each), each) for each in of_group.samples), key=lambda pair: pair[0])
            for of_group in reached]  # fmt: skip


def assert_alike(found: Sequence[GenerationProgress], expected: Sequence[GenerationProgress]) -> None:
    for ours, theirs in zip(by_row(found), by_row(expected), strict=True):
        assert [row for row, _ in ours] == [row for row, _ in theirs]
        for (_, one), (_, other) in zip(ours, theirs, strict=True):
            assert (one.observed, one.finish) == (other.observed, other.finish)
            assert_allclose(one.logps, other.logps, atol=1e-4)


@pytest.mark.parametrize("rows", [64, 3])
@pytest.mark.parametrize("options", [{"drafts": True}, {"shared_prompts": True}, {"look_every": 4}])
@pytest.mark.parametrize("name", ["qwen3", "llama-scaled", "neox", "gpt2"])
def test_conversations_are_those_that_prompting_anew_each_turn_gives(
    load_policy: Load, name: str, options: dict[str, Any], rows: int
) -> None:
    policy = load_policy(name)
    found = TorchEngine(policy, rows=rows, seed=0, **options).advance(asked(), Sampling(0.0), turns=Said())
    assert_alike(found, anew(policy, asked()))
    assert all(len(each.samples) == of.completions for each, of in zip(found, asked(), strict=True))


def test_a_conversation_that_is_read_anew_goes_on_after_what_is_read_and_nothing_else(load_policy: Load) -> None:
    class Rewriting(Said):
        rewrites = True

        def replies(self, *, wait: bool) -> list[tuple[int, Heard | None]]:
            return [
                (n, each and Heard([7, *each.ids], anew=len(each.ids) > 2)) for n, each in super().replies(wait=wait)
            ]

    policy = load_policy("qwen3")
    requests = asked()
    found = TorchEngine(policy, rows=64, seed=0).advance(requests, Sampling(1.0, 5), turns=Rewriting())
    samples = [(of, each) for of, group in zip(requests, found, strict=True) for each in group.samples]
    assert any(each.anew for _, each in samples)
    for request, each in samples:
        assert_sampled_after_what_was_read(policy, request, each)


def assert_sampled_after_what_was_read(policy: Policy, request: GenerationRequest, sample: Sample) -> None:
    """Each action has the log-probabilities of the model's own forward pass."""
    read, begin = list(request.prompt_ids), 0
    for end, heard in (*sample.observed, (len(sample.token_ids), ())):
        action = sample.token_ids[begin:end].tolist()
        assert_allclose(sample.logps[begin:end], logps_by_forward(policy, read, action, 1.0), atol=1e-4)
        read = list(heard) if end in sample.anew else [*read, *action, *heard]
        begin = end


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", ["qwen3", "llama-scaled", "neox"])
def test_what_is_read_gives_the_same_by_products_as_one_position_at_a_time(
    load_policy: Load, monkeypatch: pytest.MonkeyPatch, name: str, shared: bool
) -> None:
    policy = load_policy(name)
    monkeypatch.setattr(passes, "LEAST_RUN_QUERIES", 1)
    calls = list[int]()
    by_products = attention.by_causal_products

    def counted(*given: Any, **named: Any) -> Any:
        calls.append(given[3])
        return by_products(*given, **named)

    monkeypatch.setattr(decoder, "by_causal_products", counted)
    engine = TorchEngine(policy, rows=3, seed=0, shared_prompts=shared)
    found = engine.advance(asked(), Sampling(0.0), turns=Said(most=9))
    assert_alike(found, anew(policy, asked(), Said(most=9)))
    assert max(calls) > 5


@pytest.mark.parametrize("shared", [False, True])
def test_rows_become_longer_than_they_were_planned_and_the_next_call_begins_with_as_many_slots(
    load_policy: Load, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    policy = load_policy("qwen3")
    engine = TorchEngine(policy, rows=64, seed=0, shared_prompts=shared)
    of_engine: Any = engine._decoder
    lengthen, lengthened = of_engine._lengthen, list[int]()

    def noted(slots: int) -> None:
        lengthened.append(slots)
        lengthen(slots)

    monkeypatch.setattr(of_engine, "_lengthen", noted)
    requests = [replace(each, conversation_tokens=CONTEXT) for each in asked(2)]
    for calls in (2, 2):
        found = engine.advance(requests, Sampling(0.0), turns=Said(most=30))
        assert_alike(found, anew(policy, requests, Said(most=30)))
        assert 1 <= len(lengthened) <= calls


@pytest.mark.parametrize("options", [{"drafts": True}, {"shared_prompts": True}])
def test_what_is_sampled_does_not_depend_on_how_long_replies_take_or_how_many_rows_there_are(
    load_policy: Load, options: dict[str, Any]
) -> None:
    policy = load_policy("qwen3")
    first = TorchEngine(policy, rows=64, seed=0, **options).advance(asked(), Sampling(1.0, 5), turns=Said())
    for rows, most in ((64, 30), (4, 9), (1, 3)):
        turns = Said(partial_delay(rows, most))
        found = TorchEngine(policy, rows=rows, seed=1, **options).advance(asked(), Sampling(1.0, 5), turns=turns)
        assert written(found) == written(first)
        assert_alike(found, first)


def partial_delay(seed: int, most: int) -> Callable[[], int]:
    draws = random.Random(seed)
    return lambda: draws.randrange(most)


def test_single_answers_beside_conversations_are_those_without_them(load_policy: Load) -> None:
    policy = load_policy("qwen3")
    answers = [replace(each, conversation_tokens=None) for each in asked()]
    alone = TorchEngine(policy, rows=64, seed=0).advance(answers, Sampling(1.0, 5))
    beside = TorchEngine(policy, rows=64, seed=0).advance(asked(), Sampling(1.0, 5), turns=Said())
    assert written(beside)[3] == written(alone)[3]
    first_actions = [[row[: len(other)] for (row, _), (other, _) in zip(ours, theirs, strict=True)]
                     for ours, theirs in zip(written(beside), written(alone), strict=True)]  # fmt: skip
    assert first_actions == [[row for row, _ in of_group] for of_group in written(alone)]


@pytest.mark.parametrize("shared", [False, True])
def test_each_token_is_computed_once(load_policy: Load, monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    engine = TorchEngine(load_policy("qwen3"), rows=64, seed=0, shared_prompts=shared)
    of_engine: Any = engine._decoder
    assert isinstance(of_engine, LeanDecoder)
    computed = {"prompts": 0, "passes": 0}
    logits, step = of_engine._prompt_logits, of_engine.step

    def prompts_noted(prompts: Any, keep: Any) -> Any:
        computed["prompts"] += sum(map(len, prompts))
        return logits(prompts, keep)

    def pass_noted(tokens: Any, drafts: Any = None) -> Any:
        computed["passes"] += len(tokens) + (0 if drafts is None else len(drafts.tokens))
        return step(tokens, drafts)

    monkeypatch.setattr(of_engine, "_prompt_logits", prompts_noted)
    monkeypatch.setattr(of_engine, "step", pass_noted)
    found = engine.advance(asked(), Sampling(1.0, 5), turns=Said(partial_delay(0, 20)))
    assert computed["prompts"] == sum(len(each.prompt_ids) for each in asked())
    # The last token of a row is sampled, and nothing is computed after it.
    assert computed["passes"] == sum(len(row) - 1 for of_group in by_row(found) for row, _ in of_group)


def test_row_whose_reply_is_slow_keeps_no_other_from_ending(load_policy: Load) -> None:
    engine = TorchEngine(load_policy("qwen3"), rows=64, seed=0)
    ended: list[int] = []

    class Slow(Said):
        def acted(self, conversation: int, request: int, so_far: Sample) -> None:
            self._delay = lambda: 10**6 if conversation == 0 else 0
            super().acted(conversation, request, so_far)

        def replies(self, *, wait: bool) -> list[tuple[int, Heard | None]]:
            found = super().replies(wait=wait)
            ended.extend(conversation for conversation, ids in found if ids is None)
            return found

    turns = Slow()
    engine.advance(asked(), Sampling(1.0, 5), turns=turns)
    assert ended[-1] == 0
    assert turns.waited >= 4  # for each of its turns, once all others had ended


@pytest.mark.parametrize("shared", [False, True])
def test_conversation_that_is_interrupted_goes_on_as_if_it_had_not_been(load_policy: Load, shared: bool) -> None:
    policy = load_policy("qwen3")
    engine = TorchEngine(policy, rows=5, seed=0, shared_prompts=shared)
    whole = anew(policy, asked())
    within = between = 0
    for looks in range(1, 40, 3):
        begun = engine.advance(asked(), Sampling(0.0), stops_after(looks), turns=Said(partial_delay(looks, 4)))
        partials = [each for reached in begun for each in reached.partials if each.observed]
        between += sum(each.observed[-1][0] == len(each.token_ids) for each in partials)
        within += sum(each.observed[-1][0] < len(each.token_ids) for each in partials)
        resumed = [replace(each, begun=reached) for each, reached in zip(asked(), begun, strict=True)]
        assert_alike(engine.advance(resumed, Sampling(0.0), turns=Said()), whole)
        assert_alike(in_step(engine.advance, resumed, Sampling(0.0), None, None, Said()), whole)
    assert within > 0 and between > 0


def stops_after(looks: int) -> Enough:
    left = iter([False] * looks)
    return lambda _: next(left, True)


def test_engine_that_knows_single_answers_alone_stops_between_two_turns_once_there_is_enough(load_policy: Load) -> None:
    engine = TorchEngine(load_policy("qwen3"), rows=64, seed=0)
    found = in_step(engine.advance, asked(), Sampling(0.0), lambda complete: complete >= 2, None, Said())
    complete = [len(each.samples) == of.completions for each, of in zip(found, asked(), strict=True)]
    assert complete == [False, False, True, True, False, False]  # the answers, and the conversations of two turns
    assert all(len(each.observed) == 2 for reached in found for each in reached.partials)
    resumed = [replace(each, begun=reached) for each, reached in zip(asked(), found, strict=True)]
    whole = in_step(engine.advance, resumed, Sampling(0.0), None, None, Said())
    assert_alike(whole, in_step(engine.advance, asked(), Sampling(0.0), None, None, Said()))


def test_conversation_ends_where_a_reply_leaves_no_room_and_none_may_be_longer_than_the_context(
    load_policy: Load,
) -> None:
    policy = load_policy("qwen3")
    requests = [replace(each, conversation_tokens=20) for each in asked() if each.conversation_tokens is not None]
    found = TorchEngine(policy, rows=4, seed=0).advance(requests, Sampling(1.0, 5), turns=Said())
    rows = [row_of(each.prompt_ids, sample) for each, of in zip(requests, found, strict=True) for sample in of.samples]
    assert len(rows) == sum(each.completions for each in requests)
    assert all(10 < len(row) <= 20 for row in rows)
    assert any(len(row) == 20 for row in rows)
    assert policy.context is not None
    with pytest.raises(ValueError, match="context"):
        TorchEngine(policy, rows=4, seed=0).advance(
            [replace(requests[0], conversation_tokens=policy.context + 1)], Sampling(1.0, 5), turns=Said()
        )
