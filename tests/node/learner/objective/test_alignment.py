"""Byte-aligned spans, importance weights, the filter, and the objective made of them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from node.configuration import ObjectiveSection
from node.learner.objective.alignment import Alignment, align, divergences, keep_mask, span_sums
from node.learner.objective.batch import SELF, RaggedSpans, TrainingCompletion
from node.learner.objective.loss import BatchTotals, clipped_gain, objective_loss
from node.learner.objective.report import ObjectiveReport
from tests.node.learner.objective_sections import objective_section


def ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def floats(*values: float) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def aligned(own: NDArray[np.int64], theirs: NDArray[np.int64], logps: NDArray[np.float32], *, end: bool) -> Alignment:
    found = align(own, theirs, logps, end_of_sequence=end)
    assert found is not None
    return found


def test_spans_end_where_both_tokenizations_have_a_boundary() -> None:
    # own:    |ab|c|de|f|      theirs: |abc|d|ef|
    spans = aligned(ints(2, 1, 2, 1), ints(3, 1, 2), floats(-1, -2, -4), end=False)
    assert spans.span_of_token.tolist() == [0, 0, 1, 1]
    assert spans.behaviour_logps.tolist() == [-1, -6]
    assert spans.multi_token == 2


def test_equal_tokenizations_give_one_token_a_span() -> None:
    logps = floats(-0.1, -0.2, -0.3, -0.4)
    spans = aligned(ints(1, 0, 3, 0), ints(1, 0, 3, 0), logps, end=True)
    assert spans.span_of_token.tolist() == [0, 1, 2, 3]
    assert spans.behaviour_logps.tolist() == logps.tolist()
    assert spans.multi_token == 0


def test_end_of_sequence_is_a_span_of_its_own() -> None:
    spans = aligned(ints(1, 1, 0), ints(2, 0), floats(-3, -5), end=True)
    assert spans.span_of_token.tolist() == [0, 0, 1]
    assert spans.behaviour_logps.tolist() == [-3, -5]


def test_token_without_text_joins_the_span_before_it_and_the_first_one_when_it_opens() -> None:
    # theirs: <bos> |a| <pad> |b| <eos>
    spans = aligned(ints(1, 1, 0), ints(0, 1, 0, 1, 0), floats(-1, -2, -4, -8, -16), end=True)
    assert spans.span_of_token.tolist() == [0, 1, 2]
    assert spans.behaviour_logps.tolist() == [-7, -8, -16]


def test_answer_without_text_that_just_ends_is_one_span() -> None:
    spans = aligned(ints(0), ints(0, 0), floats(-1, -2), end=True)
    assert spans.span_of_token.tolist() == [0]
    assert spans.behaviour_logps.tolist() == [-3]


@pytest.mark.parametrize(("own", "theirs"), [(ints(), ints(0)), (ints(0), ints()), (ints(), ints())])
def test_nothing_to_align_gives_none(own: NDArray[np.int64], theirs: NDArray[np.int64]) -> None:
    assert align(own, theirs, np.zeros(len(theirs), np.float32), end_of_sequence=False) is None


def test_unequal_texts_are_our_own_bug() -> None:
    with pytest.raises(ValueError, match="3 and 4 bytes"):
        align(ints(3), ints(4), floats(-1), end_of_sequence=False)


@st.composite
def two_tokenizations(draw: st.DrawFn) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], bool]:
    """Two ways to cut one text, tokens without text among them, with or without an end-of-sequence token."""
    size, end = draw(st.integers(1, 20)), draw(st.booleans())

    def cut() -> list[int]:
        marks = sorted(draw(st.sets(st.integers(1, size - 1)))) if size > 1 else []
        lengths = np.diff([0, *marks, size]).tolist()
        for _ in range(draw(st.integers(0, 2))):
            lengths.insert(draw(st.integers(0, len(lengths))), 0)
        return [*lengths, 0] if end else lengths

    own, theirs = ints(*cut()), ints(*cut())
    logps = floats(*(-draw(st.integers(0, 64)) / 8 for _ in theirs))
    return own, theirs, logps, end


@given(two_tokenizations())
def test_spans_are_gapless_and_lose_no_behaviour_log_probability(
    case: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], bool],
) -> None:
    own, theirs, logps, end = case
    spans = aligned(own, theirs, logps, end=end)
    assert np.unique(spans.span_of_token).tolist() == list(range(spans.spans))
    assert (np.diff(spans.span_of_token) >= 0).all()
    assert float(spans.behaviour_logps.sum()) == float(logps.sum())  # eighths: exact in float32
    own_ends = {int(e) for e in np.cumsum(own)}
    their_ends = {int(e) for e in np.cumsum(theirs)}
    if own.tolist() != theirs.tolist():
        expected = len((own_ends & their_ends) - {0}) + end
        assert spans.spans == expected


def tokens(count: int) -> BatchTotals:
    return BatchTotals(count, completions=1, max_new_tokens=1)


def completion(
    alignment: Alignment, advantage: float, *, peer: str = SELF, ids: NDArray[np.int64] | None = None
) -> TrainingCompletion:
    length = len(alignment.span_of_token)
    return TrainingCompletion(np.zeros(length, np.int64) if ids is None else ids, alignment, advantage, peer)


def token_level(behaviour: NDArray[np.float32]) -> Alignment:
    return Alignment(np.arange(len(behaviour)), behaviour, 0)


def random_batch(seed: int, peer: str) -> tuple[list[TrainingCompletion], torch.Tensor]:
    rng = np.random.default_rng(seed)
    completions = []
    for _ in range(6):
        lengths = rng.integers(1, 4, rng.integers(1, 9))
        behaviour = -rng.random(len(lengths)).astype(np.float32) * 3
        alignment = aligned(lengths, lengths, behaviour, end=False)
        completions.append(completion(alignment, float(np.float32(rng.normal())), peer=peer))
    length = sum(len(c.token_ids) for c in completions)
    return completions, torch.tensor(-rng.random(length) * 3, dtype=torch.float32)


@pytest.mark.parametrize("peer", [SELF, "12D3peer"])
def test_equal_tokenizers_are_token_level_f_tis_bit_for_bit(peer: str) -> None:
    section = objective_section(ratio_cap=1.5, ratio_floor=0.4, filter_gamma=1.0, clip=0.2)
    completions, values = random_batch(0, peer)
    logps = values.clone().requires_grad_()
    loss, _ = objective_loss(logps, torch.zeros_like(values), RaggedSpans.of(completions), section, tokens(40))
    (gradient,) = torch.autograd.grad(loss, logps)

    reference = values.clone().requires_grad_()
    gain, start = [], 0
    for each in completions:
        span = slice(start, start + len(each.token_ids))
        start = span.stop
        log_ratio = reference[span].detach() - torch.from_numpy(each.alignment.behaviour_logps)
        weight = log_ratio.exp().clamp(max=1.5)
        if peer != SELF and each.advantage > 0:
            weight = weight.clamp(min=0.4)
        divergence = (log_ratio.exp() * (log_ratio - 1) + 1).sum()  # D(π_θ‖μ), from samples of μ
        advantage = each.advantage if each.advantage > 0 or divergence < 1.0 else 0.0
        r = torch.exp(reference[span] - reference[span].detach())
        gain.append(weight * torch.minimum(r * advantage, r.clamp(0.8, 1.2) * advantage))
    expected = -torch.cat(gain).sum() / 40
    (expected_gradient,) = torch.autograd.grad(expected, reference)
    assert torch.equal(loss, expected)
    assert torch.equal(gradient, expected_gradient)
    assert (gradient == 0).any()  # the filter took something out


def test_all_tokens_of_a_span_share_one_weight() -> None:
    spans = aligned(ints(1, 1, 2), ints(2, 2), floats(-2, -1), end=False)
    logps = torch.tensor([-0.5, -1.0, -1.25], requires_grad=True)
    section = ObjectiveSection(ratio_cap=100, ratio_floor=0)
    batch = RaggedSpans.of([completion(spans, 1.0, peer="p")])
    loss, report = objective_loss(logps, torch.zeros(3), batch, section, tokens(1))
    loss.backward()
    first, second = math.exp(-1.5 + 2), math.exp(-1.25 + 1)
    torch.testing.assert_close(logps.grad, -torch.tensor([first, first, second]))
    assert report.spans == 2
    assert report.tokens == 3


def test_floor_is_for_foreign_completions_with_positive_advantage_alone() -> None:
    rare = token_level(floats(-0.1))  # ours gives it e^-6: ratio about .003
    cases = [(1.0, "p", 1.0), (1.0, SELF, math.exp(-5.9)), (-1.0, "p", math.exp(-5.9))]
    for advantage, peer, weight in cases:
        logps = torch.tensor([-6.0], requires_grad=True)
        batch = RaggedSpans.of([completion(rare, advantage, peer=peer)])
        loss, report = objective_loss(logps, torch.zeros(1), batch, ObjectiveSection(), tokens(1))
        loss.backward()
        torch.testing.assert_close(logps.grad, torch.tensor([-advantage * weight]))
        assert report.floored_spans == (1 if peer == "p" and advantage > 0 else 0)


def test_filter_takes_out_only_bad_completions_far_from_their_sampler() -> None:
    advantages, divergence = torch.tensor([1.0, 1.0, -1.0, -1.0]), torch.tensor([99.0, 1.0, 99.0, 1.0])
    assert keep_mask(advantages, divergence, 50.0).tolist() == [True, True, False, True]
    assert keep_mask(torch.tensor([-1.0]), torch.tensor([math.inf]), 50.0).tolist() == [False]


def test_divergences_sum_over_the_spans_of_each_completion() -> None:
    log_ratios, owner = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([0, 0, 1])
    from_learner, from_generator = divergences(log_ratios, owner, 2)
    half, third = math.exp(0.5), math.exp(-1)
    torch.testing.assert_close(from_learner, torch.tensor([half * -0.5 + 1 + third * -2 + 1, math.exp(2) + 1]))
    torch.testing.assert_close(from_generator, torch.tensor([half - 0.5 - 1 + third, math.exp(2) - 3]))
    for ratio, both in ((500.0, [math.inf, math.inf]), (-500.0, [1.0, 499.0]), (0.0, [0.0, 0.0])):
        assert [float(found) for found in divergences(torch.tensor([ratio]), torch.tensor([0]), 1)] == both


@pytest.mark.parametrize("seed", range(3))
def test_divergences_estimated_from_samples_of_the_generator_are_the_two_kullback_leibler_divergences(
    seed: int,
) -> None:
    """D(p‖q) = Σ p log p/q. The two differ, so that one cannot be taken for the other."""
    rng = np.random.default_rng(seed)
    learner, generator = np.array([0.05, 0.15, 0.3, 0.5]), np.array([0.4, 0.3, 0.2, 0.1])
    drawn = rng.choice(4, 200_000, p=generator)
    log_ratios = torch.from_numpy(np.log(learner / generator)[drawn])
    estimated = [
        float(total) / len(drawn) for total in divergences(log_ratios, torch.zeros(len(drawn), dtype=torch.int64), 1)
    ]
    from_learner = float((learner * np.log(learner / generator)).sum())
    from_generator = float((generator * np.log(generator / learner)).sum())
    assert abs(from_learner - from_generator) > 0.09 * from_generator
    assert estimated == pytest.approx([from_learner, from_generator], rel=0.02)


def test_span_sums_add_up_by_span() -> None:
    sums = span_sums(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 0, 2]), 3)
    assert sums.tolist() == [3, 0, 4]


def test_clipped_gain_is_the_pessimistic_one() -> None:
    ratios, advantages = torch.tensor([1.5, 1.5, 0.5, 0.5]), torch.tensor([1.0, -1.0, 1.0, -1.0])
    torch.testing.assert_close(clipped_gain(ratios, advantages, 0.2, 0.2), torch.tensor([1.2, -1.5, 0.5, -0.8]))


def test_report_gives_shares_and_divergence_by_peer() -> None:
    near, far = token_level(floats(-1, -1)), token_level(floats(-9))
    batch = RaggedSpans.of([completion(near, 1.0), completion(far, -1.0, peer="p")])
    logps = torch.tensor([-1.0, -1.0, -0.5])
    section = objective_section(filter_gamma=3.0)
    _, report = objective_loss(logps, torch.tensor([0.5, 0.5, 2.0]), batch, section, tokens(3))
    assert report.divergence_by_peer()["self"] == 0
    assert report.divergence_by_peer()["p"] == pytest.approx(math.expm1(8.5) - 8.5, rel=1e-5)
    assert report.filter_share() == 0.5
    assert report.share_of_spans(report.capped_spans) == pytest.approx(1 / 3)
    assert report.mean_entropy() == 1.0
    assert report.effective_sample_share() == pytest.approx((1 + 1 + 2) ** 2 / (3 * (1 + 1 + 4)))


def test_reports_of_micro_batches_add_up_to_that_of_the_whole() -> None:
    completions, logps = random_batch(1, "p")
    cut = sum(len(c.token_ids) for c in completions[:3])
    total = ObjectiveReport()
    for each, values in ((completions[:3], logps[:cut]), (completions[3:], logps[cut:])):
        total.add(objective_loss(values, -values, RaggedSpans.of(each), ObjectiveSection(), tokens(30))[1])
    whole = objective_loss(logps, -logps, RaggedSpans.of(completions), ObjectiveSection(), tokens(30))[1]
    assert total.loss == pytest.approx(whole.loss, rel=1e-5)
    assert total.effective_sample_share() == pytest.approx(whole.effective_sample_share(), rel=1e-5)
    assert total.divergence_by_peer()["p"] == pytest.approx(whole.divergence_by_peer()["p"], rel=1e-5)
    assert (total.tokens, total.spans, total.completions) == (whole.tokens, whole.spans, whole.completions)


def test_completion_that_counts_three_times_is_three_equal_completions() -> None:
    completions, logps = random_batch(2, "p")
    first = len(completions[0].token_ids)
    section = objective_section(filter_gamma=1.0)
    merged = [replace(completions[0], count=3), *completions[1:]]
    repeated = [completions[0], completions[0], *completions]
    short, long = logps.clone().requires_grad_(), torch.cat([logps[:first], logps[:first], logps]).requires_grad_()
    loss, report = objective_loss(short, -short, RaggedSpans.of(merged), section, tokens(30))
    expected, expected_report = objective_loss(long, -long, RaggedSpans.of(repeated), section, tokens(30))
    torch.testing.assert_close(loss, expected)
    (gradient,), (expected_gradient,) = torch.autograd.grad(loss, short), torch.autograd.grad(expected, long)
    torch.testing.assert_close(gradient[:first], 3 * expected_gradient[:first])
    torch.testing.assert_close(gradient[first:], expected_gradient[3 * first :])
    for name in ("tokens", "spans", "completions", "capped_spans", "floored_spans", "filtered_completions"):
        assert getattr(report, name) == getattr(expected_report, name)
    for name in ("weights", "squared_weights", "entropy"):
        assert getattr(report, name) == pytest.approx(getattr(expected_report, name), rel=1e-5)
    assert report.divergence_by_peer()["p"] == pytest.approx(expected_report.divergence_by_peer()["p"], rel=1e-5)


def test_report_of_nothing_has_no_shares() -> None:
    empty = ObjectiveReport()
    assert empty.effective_sample_share() is None
    assert empty.filter_share() is None
    assert empty.mean_entropy() is None
    assert empty.share_of_spans(0) is None
