from __future__ import annotations

import numpy as np
import pytest

from node.engines.resumption import SamplingStart
from node.engines.vllm_backend.requests import Completions
from protocol.streams.engine_batches import Sampled

STARTS = [SamplingStart(0, [1, 2], 2, 4, None), SamplingStart(2, [3], 1, 2, None)]


def nobody(number: int, sampled: Sampled) -> None:
    raise AssertionError("nothing is complete")


def test_completions_begin_in_order_and_no_more_than_fit() -> None:
    completions = Completions(STARTS, 3, nobody)
    assert [number for number, _ in completions.begin(2)] == [0, 1]
    assert list(completions.begin(2)) == [] and completions.running == {0, 1}
    completions.sampled(0, [5, 6], [-0.5, -1.0], ended=True)
    assert list(completions.begin(2)) == [(2, STARTS[1])]
    assert not completions.done


def test_a_group_is_complete_and_handed_over_once_all_its_completions_have_ended() -> None:
    handed: list[tuple[int, list[int]]] = []
    completions = Completions(STARTS, 3, lambda number, sampled: handed.append((number, sampled[0].tolist())))
    assert completions.complete_groups == 1  # the one without a start
    list(completions.begin(8))
    completions.sampled(1, [7], [-0.1], ended=True)
    assert completions.complete_groups == 1
    assert handed == []
    completions.sampled(2, [8], [-0.2], ended=True)
    assert completions.complete_groups == 2 and handed == [(2, [8])]
    completions.sampled(0, [9], [-0.3], ended=True)
    assert completions.complete_groups == 3 and completions.done
    assert handed == [(2, [8]), (0, [9]), (1, [7])]
    assert [len(token_ids) for token_ids, _ in completions.rest()] == [0, 0, 0]


def test_what_was_sampled_piece_by_piece_is_one_sequence_and_what_was_not_begun_is_empty() -> None:
    completions = Completions(STARTS, 3, nobody)
    list(completions.begin(1))
    completions.sampled(0, [5], [-0.5], ended=False)
    completions.sampled(0, [6, 7], [-1.0, -2.0], ended=False)
    (token_ids, logps), *others = completions.rest()
    assert token_ids.tolist() == [5, 6, 7] and logps.dtype == np.float32
    assert logps.tolist() == pytest.approx([-0.5, -1.0, -2.0])
    assert [len(token_ids) for token_ids, _ in others] == [0, 0]
