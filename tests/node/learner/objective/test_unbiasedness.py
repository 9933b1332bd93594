"""What byte-aligned importance sampling estimates, on a language so small that every text can be written down.

Nothing is sampled: the mean of the estimator is the sum over all texts of the generator, so equality is exact.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from node.learner.objective.alignment import Alignment, align
from node.learner.objective.batch import RaggedSpans, TrainingCompletion
from node.learner.objective.loss import BatchTotals, objective_loss
from tests.node.learner.objective_sections import objective_section

LETTERS = ("a", "b")
PAIRS = ("aa", "ab", "ba", "bb")
PREFIX_CODE = ("a", "ba", "bb")  # a text has one way at most to be written in these
STEPS = 7


class TabularPolicy:
    """A policy over sequences of ``tokens`` that end with end-of-sequence; its next token depends on step and last."""

    def __init__(self, tokens: tuple[str, ...], seed: int, lengths: tuple[int, ...] | None = None) -> None:
        """With ``lengths`` it writes exactly so many tokens; else it may end anywhere up to ``STEPS``."""
        self.tokens, self.lengths = tokens, lengths
        seeded = torch.Generator().manual_seed(seed)
        shape = (STEPS + 1, len(tokens) + 1, len(tokens) + 1)  # step, last token or none, next token or end
        self.logits = (torch.randn(shape, generator=seeded, dtype=torch.float64) * 0.7).requires_grad_()

    def logps(self, sequence: tuple[int, ...]) -> Tensor:
        """(T + 1,) of the sequence and its end."""
        end, rows = len(self.tokens), []
        for step, token in enumerate((*sequence, end)):
            last = sequence[step - 1] if step else end
            allowed = torch.ones(end + 1, dtype=torch.bool)
            if self.lengths is not None:
                allowed[end] = step in self.lengths
                allowed[:end] = step < max(self.lengths)
            scores = self.logits[step, last].masked_fill(~allowed, -torch.inf)
            rows.append(scores.log_softmax(0)[token])
        return torch.stack(rows)

    def sequences(self) -> list[tuple[int, ...]]:
        assert self.lengths is not None
        return [s for n in self.lengths for s in itertools.product(range(len(self.tokens)), repeat=n)]

    def text(self, sequence: tuple[int, ...]) -> str:
        return "".join(self.tokens[i] for i in sequence)

    def tokenized(self, text: str) -> tuple[int, ...] | None:
        """The one way to write ``text``, None where there is none."""
        if not text:
            return ()
        for index, token in enumerate(self.tokens):
            if text.startswith(token):
                rest = self.tokenized(text[len(token) :])
                if rest is not None:
                    return (index, *rest)
        return None

    def byte_lengths(self, sequence: tuple[int, ...]) -> np.ndarray:
        return np.array([*(len(self.tokens[i]) for i in sequence), 0])


def reward(text: str) -> float:
    return text.count("ab") + 0.5 * text.endswith("a") - 0.3 * text.startswith("bb")


def aligned(
    learner: TabularPolicy, own: tuple[int, ...], generator: TabularPolicy, theirs: tuple[int, ...]
) -> Alignment:
    logps = generator.logps(theirs).detach().numpy()
    found = align(learner.byte_lengths(own), generator.byte_lengths(theirs), logps, end_of_sequence=True)
    assert found is not None
    sums: Any = np.bincount(spans_of(learner, own, generator, theirs), weights=logps, minlength=found.spans)
    return Alignment(found.span_of_token, sums, found.multi_token)  # in float64, which the wire does not carry


def spans_of(
    learner: TabularPolicy, own: tuple[int, ...], generator: TabularPolicy, theirs: tuple[int, ...]
) -> np.ndarray:
    """The span of each of the generator's tokens, worked out anew: by the own boundaries at or before its start."""
    ends = set(np.cumsum(learner.byte_lengths(own)).tolist())
    starts = np.cumsum([0, *generator.byte_lengths(theirs)[:-1]])
    common = [e for e in np.cumsum(generator.byte_lengths(theirs)[:-1]).tolist() if e in ends]
    return np.array([*(sum(e <= s for e in common) for s in starts[:-1]), len(common)])


def mean_gradient(learner: TabularPolicy, generator: TabularPolicy, correction: str) -> Tensor:
    """Σ over the generator's texts of μ(y) · the gradient that the objective makes of y."""
    section = objective_section(correction=correction, ratio_cap=1e12, ratio_floor=0.0, filter_gamma=1e12)
    total = torch.zeros_like(learner.logits)
    for theirs in generator.sequences():
        text = generator.text(theirs)
        own = learner.tokenized(text)
        if own is None:
            continue  # what the learner cannot write is left out, as in training
        spans = aligned(learner, own, generator, theirs)
        completion = TrainingCompletion(np.zeros(len(own) + 1, np.int64), spans, reward(text), "peer")
        logps = learner.logps(own)
        batch = RaggedSpans.of([completion], dtype=torch.float64)
        loss, _ = objective_loss(logps, torch.zeros_like(logps), batch, section, BatchTotals(1, 1, 1))
        (gradient,) = torch.autograd.grad(-loss, learner.logits)
        total += torch.exp(generator.logps(theirs).sum()).detach() * gradient
    return total


def on_policy_gradient(learner: TabularPolicy, texts: set[str]) -> Tensor:
    """∇ E_π[R], rewards being zero outside ``texts``."""
    value = torch.zeros((), dtype=torch.float64)
    for text in sorted(texts):
        own = learner.tokenized(text)
        if own is not None:
            value = value + torch.exp(learner.logps(own).sum()) * reward(text)
    return torch.autograd.grad(value, learner.logits)[0]


def one_span_gradient(learner: TabularPolicy, generator: TabularPolicy) -> Tensor:
    """∇ Σ_s J_s, in J_s span s alone written by the learner, all other spans by the generator."""
    value = torch.zeros((), dtype=torch.float64)
    for theirs in generator.sequences():
        text = generator.text(theirs)
        own = learner.tokenized(text)
        if own is None:
            continue
        spans = aligned(learner, own, generator, theirs)
        behaviour = generator.logps(theirs).detach()
        for span in range(spans.spans):
            others = behaviour[torch.from_numpy(spans_of(learner, own, generator, theirs) != span)].sum()
            here = learner.logps(own)[torch.from_numpy(spans.span_of_token == span)].sum()
            value = value + torch.exp(others + here) * reward(text)
    return torch.autograd.grad(value, learner.logits)[0]


def policies(case: str) -> tuple[TabularPolicy, TabularPolicy]:
    """(learner, generator)"""
    return {
        "letters learn from pairs": (TabularPolicy(LETTERS, 0), TabularPolicy(PAIRS, 1, (2,))),
        "letters learn from a prefix code": (TabularPolicy(LETTERS, 2), TabularPolicy(PREFIX_CODE, 3, (1, 3))),
        "a prefix code learns from letters": (TabularPolicy(PREFIX_CODE, 4), TabularPolicy(LETTERS, 5, (3, 4))),
        "a prefix code learns from pairs": (TabularPolicy(PREFIX_CODE, 6), TabularPolicy(PAIRS, 7, (1, 2, 3))),
        "equal tokenizers": (TabularPolicy(PREFIX_CODE, 8), TabularPolicy(PREFIX_CODE, 9, (2, 3))),
    }[case]


CASES = (
    "letters learn from pairs",
    "letters learn from a prefix code",
    "a prefix code learns from letters",
    "a prefix code learns from pairs",
    "equal tokenizers",
)


@pytest.mark.parametrize("case", CASES)
def test_ratio_of_whole_completions_gives_exactly_the_on_policy_gradient(case: str) -> None:
    learner, generator = policies(case)
    expected = on_policy_gradient(learner, {generator.text(s) for s in generator.sequences()})
    torch.testing.assert_close(mean_gradient(learner, generator, "sequence_tis"), expected, rtol=0, atol=1e-12)
    assert float(expected.abs().max()) > 1e-2


@pytest.mark.parametrize("case", CASES)
def test_ratio_of_spans_gives_exactly_the_gradient_of_one_span_by_the_learner_among_the_generators(case: str) -> None:
    learner, generator = policies(case)
    expected = one_span_gradient(learner, generator)
    torch.testing.assert_close(mean_gradient(learner, generator, "byte_aligned"), expected, rtol=0, atol=1e-12)
    on_policy = on_policy_gradient(learner, {generator.text(s) for s in generator.sequences()})
    assert float((expected - on_policy).abs().max()) > 1e-2  # and that is not the on-policy gradient


def test_ratio_of_spans_is_the_on_policy_one_where_a_text_is_one_span() -> None:
    """The end is forced and has no ratio, so a single pair in letters is a single span that matters."""
    learner, generator = TabularPolicy(LETTERS, 0, (2,)), TabularPolicy(PAIRS, 1, (1,))
    expected = on_policy_gradient(learner, set(PAIRS))
    torch.testing.assert_close(mean_gradient(learner, generator, "byte_aligned"), expected, rtol=0, atol=1e-12)
    assert float(expected.abs().max()) > 1e-2


def test_a_text_that_the_generator_writes_in_two_ways_counts_twice() -> None:
    """Why the on-policy gradient needs one way to write each text: μ must be the probability of the text itself."""
    learner, generator = TabularPolicy(LETTERS, 0), TabularPolicy(("a", "b", "aa"), 1, (1, 2))
    texts = [generator.text(sequence) for sequence in generator.sequences()]
    assert texts.count("aa") == 2
    value = torch.zeros((), dtype=torch.float64)
    for text in texts:
        own = learner.tokenized(text)
        assert own is not None
        value = value + torch.exp(learner.logps(own).sum()) * reward(text)
    (expected,) = torch.autograd.grad(value, learner.logits)
    torch.testing.assert_close(mean_gradient(learner, generator, "sequence_tis"), expected, rtol=0, atol=1e-12)
    assert float((expected - on_policy_gradient(learner, set(texts))).abs().max()) > 1e-2
