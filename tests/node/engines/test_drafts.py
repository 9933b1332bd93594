"""Guesses from earlier answers change no sample, and are made where they pay."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from node.engines.decoder import Drafts
from node.engines.drafting.answer_index import AnswerIndex, RowStates
from node.engines.drafting.pass_choice import (
    TRIAL_EVERY,
    PassSeconds,
    guesses_worth_verifying,
    may_pay,
    size_of,
)
from node.engines.drafting.row_drafts import verified
from node.engines.engine import GenerationRequest, Sampling
from node.engines.lean.decoder import LeanDecoder
from node.engines.torch import TorchEngine, decoder_for
from node.kernels.cpu_drafts import GREEDY, propose, take
from node.policy.policy import Policy
from tests.node.engines.test_batch import Samples, requests, same

Load = Callable[..., Policy]


def engine_of(policy: Policy, *, drafts: bool, rows: int = 64, **options: Any) -> TorchEngine:
    """Where it guesses, passes seem to take one second each, whatever their size: any guess pays."""
    engine = TorchEngine(policy, rows=rows, seed=0, drafts=drafts, **options)
    if engine.drafting is not None:
        ticks = itertools.count()
        engine.drafting.clock = lambda: float(next(ticks))
        engine.drafting.seconds = seconds_of(dict.fromkeys(range(1, 33), 1.0))
    return engine


def sampled(engine: TorchEngine, seed: int = 11) -> Samples:
    groups = engine.generate(requests(), Sampling(seed=seed))
    return [(sample.token_ids.tolist(), sample.logps) for group in groups for sample in group]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", ["qwen3", "neox"])
def test_samples_are_those_of_an_engine_that_guesses_nothing(load_policy: Load, name: str, shared: bool) -> None:
    policy = load_policy(name)
    plain = {seed: sampled(engine_of(policy, drafts=False, shared_prompts=shared), seed) for seed in (11, 12)}
    for rows in (64, 9):
        guessing = engine_of(policy, drafts=True, rows=rows, shared_prompts=shared)
        for seed in (11, 12, 11, 11):  # what is repeated can be guessed to its last token
            same(sampled(guessing, seed), plain[seed])
        assert guessing.drafting is not None
        counts = guessing.drafting.counts
        assert counts.held > 30
        assert counts.guesses > counts.held  # some were wrong, and taken back


def test_answers_that_were_seen_before_are_sampled_in_fewer_passes(load_policy: Load) -> None:
    policy = load_policy("qwen3")
    asked = [replace(request, completions=1) for request in requests()]
    first = engine_of(policy, drafts=True).generate(asked, Sampling(seed=3))
    passes = {}
    for knows in (False, True):
        engine = engine_of(policy, drafts=True)
        if knows:  # of a peer
            for request, samples in zip(asked, first, strict=True):
                engine.remember(request.prompt_ids, [samples[0].token_ids.tolist()])
        assert engine.drafting is not None
        calls = counted_steps(engine)
        again = engine.generate(asked, Sampling(seed=3))
        assert [s[0].token_ids.tolist() for s in again] == [s[0].token_ids.tolist() for s in first]
        passes[knows] = len(calls)
    assert passes[True] < passes[False] / 2


def test_answers_with_tokens_that_the_model_does_not_have_are_never_guessed(load_policy: Load) -> None:
    policy, prompt = load_policy("qwen3"), [5, 9, 7]
    engine = engine_of(policy, drafts=True)
    plain = engine_of(policy, drafts=False).generate([GenerationRequest(prompt, 8, 6)], Sampling(seed=3))
    for token in range(policy.vocabulary):
        engine.remember(prompt, [[token, 10**6, 3], [token, -1, 3]])
    given = engine.generate([GenerationRequest(prompt, 8, 6)], Sampling(seed=3))
    assert [s.token_ids.tolist() for s in given[0]] == [s.token_ids.tolist() for s in plain[0]]


def counted_steps(engine: TorchEngine) -> list[int]:
    calls: list[int] = []
    step = engine._decoder.step

    def counting(tokens: torch.Tensor, drafts: Drafts | None = None) -> torch.Tensor:
        calls.append(len(tokens))
        return step(tokens, drafts)

    engine._decoder.step = counting  # type: ignore[method-assign]
    return calls


def test_interrupted_and_resumed_completions_are_the_same_with_guesses(load_policy: Load) -> None:
    policy, asked = load_policy("llama"), requests()
    whole = engine_of(policy, drafts=False).generate(asked, Sampling(0.0))
    engine = engine_of(policy, drafts=True, rows=9)
    engine.generate(asked, Sampling(0.0))
    looks = iter(range(100))
    begun = engine.advance(asked, Sampling(0.0), lambda complete: next(looks) >= 3)
    assert any(progress.partials for progress in begun)
    resumed = engine.generate([replace(r, begun=b) for r, b in zip(asked, begun, strict=True)], Sampling(0.0))
    for ours, theirs in zip(resumed, whole, strict=True):
        assert sorted(s.token_ids.tolist() for s in ours) == sorted(s.token_ids.tolist() for s in theirs)


def test_distribution_of_what_is_sampled_stays_as_it_was(load_policy: Load) -> None:
    """4,000 completions by an engine that has seen, and guesses, what is likeliest."""
    policy, prompt = load_policy("qwen3"), [5, 9, 7]
    engine = engine_of(policy, drafts=True, rows=256)
    given = []
    for seed in range(40):
        given += engine.generate([GenerationRequest(prompt, 100, 4)], Sampling(0.25, seed))[0]
    assert engine.drafting is not None
    assert engine.drafting.counts.guesses > 4000
    assert 0.2 < engine.drafting.counts.held / engine.drafting.counts.guesses < 0.9
    sequences = [each.token_ids.tolist() for each in given]
    for _ in range(4):  # along the likeliest tokens, the later ones guessed
        with torch.no_grad():
            logits = policy.model(torch.tensor([prompt])).logits[0, -1].double()
        chances = (logits / 0.25).softmax(-1).numpy()
        check_frequencies([sequence[0] for sequence in sequences], chances)
        top = int(chances.argmax())
        prompt = [*prompt, top]
        sequences = [sequence[1:] for sequence in sequences if sequence[0] == top and len(sequence) > 1]


def check_frequencies(tokens: list[int], chances: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    """Every frequency is within five standard deviations of its probability."""
    expected = chances * len(tokens)
    counts = np.bincount(tokens, minlength=len(chances))
    assert len(tokens) > 100
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected) + 5).all()


def test_rows_with_unlike_numbers_of_guesses_get_the_logits_of_one_token_at_a_time(load_policy: Load) -> None:
    policy = load_policy("llama")
    for shared in (False, True):
        plain, drafted = (decoder_for(policy, shared_prompts=shared) for _ in range(2))
        prompts, texts = [[4, 9, 6], [7, 5]], np.array([[5, 8, 11, 6], [9, 10, 12, 13], [14, 3, 4, 5]])
        with torch.inference_mode():
            for decoder in (plain, drafted):
                decoder.begin(3, [2, 1], 3, 8)
                decoder.join(decoder.prefill(prompts, [2, 1]), [0, 0, 1])
            one_by_one = torch.stack([plain.step(torch.from_numpy(texts[:, at])) for at in range(4)])
            counts = np.array([2, 0, 1])
            first = drafted.step(torch.from_numpy(texts[:, 0]), Drafts(np.array([8, 11, 20]), counts))
            drafted.take_back(np.array([0, 0, 1]))  # 20 was wrong
            then = drafted.step(torch.tensor([6, 10, 3]))
        expected = [one_by_one[0, 0], one_by_one[1, 0], one_by_one[2, 0], one_by_one[0, 1], one_by_one[0, 2]]
        torch.testing.assert_close(first[:5], torch.stack(expected), atol=1e-4, rtol=0)
        expected = [one_by_one[3, 0], one_by_one[1, 1], one_by_one[1, 2]]
        torch.testing.assert_close(then, torch.stack(expected), atol=1e-4, rtol=0)


def test_guesses_count_up_to_the_first_that_was_not_drawn() -> None:
    drafts = Drafts(np.array([7, 8, 9, 5]), np.array([3, 0, 1]))
    drawn = np.array([7, 8, 1, 2, 4, 5, 6])  # after the newest token and after 7, 8, 9; alone; after the newest and 5
    logps = np.arange(7, dtype=np.float32)
    tokens, of_tokens, taken = verified(drafts, drawn, logps)
    assert taken.tolist() == [3, 1, 2]
    assert [tokens[: taken[row], row].tolist() for row in range(3)] == [[7, 8, 1], [4], [5, 6]]
    assert [of_tokens[: taken[row], row].tolist() for row in range(3)] == [[0, 1, 2], [4], [5, 6]]


END = 1


class Guesses:
    """What one row would be guessed, without an engine."""

    def __init__(self) -> None:
        self.index, self.states = AnswerIndex(), RowStates.of(1)

    def learn(self, prompt: list[int], answer: list[int]) -> None:
        self.index.remember(prompt, answer)
        self.index.look_at_waiting()

    def take(self, answer: list[int], uniforms: list[float]) -> None:
        index = self.index
        tokens, numbers = np.array(answer)[:, None], np.array(uniforms)[:, None]
        take(tokens, numbers, np.array([len(answer)]), *self.states.first(1), index.table, index.weights, index.counts)

    def after(self, prompt: list[int], uniforms: list[float], most: int = 8) -> list[int]:
        self.states.begin(0, prompt)
        return self.next(uniforms, most)

    def next(self, uniforms: list[float], most: int = 8) -> list[int]:
        index, room = self.index, np.zeros((1, 8), dtype=np.int64)
        numbers, chances = np.resize(np.array(uniforms), (8, 1)), np.zeros((1, 8))
        learnt = index.table, index.weights, index.counts
        propose(numbers, np.array([most]), np.array([END]), 0.05, *self.states.first(1), *learnt, room, chances)
        assert (np.diff(chances[0]) <= 0).all()
        tokens: list[int] = room[0, : np.count_nonzero(chances)].tolist()
        return tokens


def test_number_that_will_draw_a_token_tells_more_than_what_followed_most_often() -> None:
    guesses, prompt = Guesses(), [5, 9, 7]
    right = []
    for number in np.random.default_rng(3).random(900).tolist():  # one in two is 11, one in four 12 and 13
        drawn = 11 + (number >= 0.5) + (number >= 0.75)
        right.append(guesses.after(prompt, [number], most=1) == [drawn])
        guesses.states.begin(0, prompt)
        guesses.take([drawn], [number])
    assert np.mean(right[300:]) > 0.65, "11 is right half of the time"
    assert guesses.after(prompt, [GREEDY], most=1) == [11]


def test_answers_that_take_up_their_prompts_in_reverse_are_guessed_for_prompts_never_seen() -> None:
    guesses, random = Guesses(), np.random.default_rng(1)
    words = [random.choice(np.arange(20, 40), 4, replace=False).tolist() for _ in range(420)]
    for word in words[:400]:
        guesses.learn([3, 4, *word, 6], [*word[::-1], END])
    right = [guesses.after([3, 4, *word, 6], [GREEDY]) == word[::-1] for word in words[400:]]
    assert sum(right) >= 18


def test_answers_that_copy_a_part_of_their_prompts_are_guessed_once_the_part_has_begun() -> None:
    guesses, random = Guesses(), np.random.default_rng(4)
    texts = [random.integers(20, 1000, random.integers(12, 20)).tolist() for _ in range(320)]
    for text in texts[:300]:
        begins = random.integers(2, len(text) - 6)
        guesses.learn([3, 4, *text], [*text[begins : begins + 6], END])
    guessed = 0
    for text in texts[300:]:
        guesses.states.begin(0, [3, 4, *text])
        guesses.take(text[4:6], [GREEDY, GREEDY])
        guessed += guesses.next([GREEDY])[:2] == text[6:8]
    assert guessed >= 18


def test_random_answers_are_hardly_guessed() -> None:
    guesses, random = Guesses(), np.random.default_rng(2)
    numbers = random.random((500, 8))
    for row in numbers:
        guesses.states.begin(0, random.integers(2, 1000, 6).tolist())
        guesses.take(random.integers(2, 1000, 8).tolist(), row.tolist())
    made = [guesses.after(random.integers(2, 1000, 6).tolist(), row.tolist()) for row in numbers[:50]]
    assert sum(map(len, made)) < 10


def seconds_of(by_size: dict[int, float]) -> PassSeconds:
    seconds = PassSeconds()
    for size, duration in by_size.items():
        seconds.took(size * 8, duration)
    return seconds


def test_no_guess_is_verified_where_a_pass_takes_time_in_proportion_to_its_positions() -> None:
    seconds = seconds_of({size: 0.1 * size for size in range(1, 17)})
    assert not may_pay(32, 128, 0.9, seconds)
    assert guesses_worth_verifying(32, np.full(96, 0.9), 128, seconds) == 0


def test_guesses_fill_a_pass_whose_positions_are_free_and_unlikely_ones_are_left_out_where_they_cost() -> None:
    free = seconds_of(dict.fromkeys(range(1, 17), 0.4))
    assert may_pay(8, 64, 0.5, free)
    assert guesses_worth_verifying(8, np.full(56, 0.3), 64, free) == 56
    assert guesses_worth_verifying(8, np.full(56, 0.3), 32, free) == 24, "no more positions than memory was planned for"
    dear = seconds_of({size: 0.2 + 0.05 * size for size in range(1, 17)})
    chances = np.array([0.9] * 8 + [0.2] * 48)
    assert guesses_worth_verifying(8, chances, 64, dear) == 8
    assert guesses_worth_verifying(5, np.full(40, 0.1), 64, dear) == 3, "up to the next multiple they cost nothing"


def test_size_between_two_is_on_their_line_and_no_pass_is_taken_to_be_longer_than_a_larger_one() -> None:
    seconds = seconds_of({2: 0.2, 4: 0.4, 6: 0.3, 8: 0.0})
    assert seconds.of(8) > 0, "a clock that stands still"
    seconds = seconds_of({2: 0.2, 4: 0.4, 6: 0.3})
    assert [seconds.of(size) for size in (1, 2, 4, 6)] == [0.2, 0.2, 0.3, 0.3]
    assert seconds.of(3) == pytest.approx(0.3)
    assert seconds.of(12) == pytest.approx(0.6), "in proportion: nothing says that it is cheaper"


def test_costs_that_change_are_noticed_since_sizes_that_are_not_used_are_tried_now_and_then() -> None:
    seconds = seconds_of({1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4})  # no guess pays
    chosen = []
    for _ in range(40 * TRIAL_EVERY):  # and now positions are free
        guesses = guesses_worth_verifying(8, np.full(24, 0.8), 32, seconds)
        seconds.took(8 + guesses, 0.1)
        chosen.append(size_of(8 + guesses))
    assert chosen[:TRIAL_EVERY].count(1) > TRIAL_EVERY / 2
    assert chosen[-TRIAL_EVERY:].count(4) > TRIAL_EVERY - 4


def test_engine_guesses_by_itself_only_for_large_models_that_its_decoder_can_verify(load_policy: Load) -> None:
    assert TorchEngine(load_policy("qwen3"), rows=4, seed=0).drafting is None
    assert TorchEngine(load_policy("gpt2"), rows=4, seed=0, drafts=True).drafting is None
    assert TorchEngine(load_policy("qwen3", dtype="bfloat16"), rows=4, seed=0, drafts=True).drafting is None
    assert isinstance(decoder_for(load_policy("qwen3")), LeanDecoder)
    assert TorchEngine(load_policy("qwen3"), rows=4, seed=0, drafts=True).drafting is not None
