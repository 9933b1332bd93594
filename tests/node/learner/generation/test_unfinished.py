"""Interrupted groups, written to a checkpoint and restored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.engines.engine import GenerationProgress, Partial, Sample, Segment
from node.learner.generation.unfinished import LOGPS, UnfinishedGroup, restored_unfinished, snapshot_of_unfinished
from protocol.errors import StorageError
from protocol.messages import PromptRef
from protocol.rollouts import FinishReason

lengths = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), min_size=1, max_size=3)
finishes = st.sampled_from([None, "stop", "length"])


@given(st.lists(st.lists(st.tuples(finishes, lengths), max_size=4), max_size=4), st.randoms(use_true_random=False))
def test_unfinished_groups_survive_a_checkpoint(shape: list[list[tuple[Any, Any]]], random: Any) -> None:
    def sequence(finish: str | None, parts: list[tuple[int, int]]) -> Sample | Partial:
        segments = tuple(Segment(*part) for part in parts)
        count = sum(segment.tokens for segment in segments)
        ids = np.array([random.randrange(1 << 17) for _ in range(count)], np.int64)
        logps = np.array([-random.random() for _ in range(count)], np.float32)
        places = sorted({random.randint(1, count) for _ in range(random.randrange(3))})
        observed = tuple((place, tuple(random.sample(range(9), 2))) for place in places)
        heard = observed, tuple(place for place in places if random.random() < 0.5)
        if finish is None:
            return Partial(ids, logps, segments, *heard)
        return Sample(ids, logps, FinishReason(finish), segments, *heard)

    groups = []
    for number, sequences in enumerate(shape):
        made = [sequence(*each) for each in sequences]
        samples = tuple(s for s in made if isinstance(s, Sample))
        partials = tuple(s for s in made if isinstance(s, Partial))
        groups.append(
            UnfinishedGroup(PromptRef("even", 1, bytes(range(16)), number), 4, GenerationProgress(samples, partials))
        )
    tensors, records = snapshot_of_unfinished(groups)
    restored = restored_unfinished(tensors, records)
    assert [(g.ref, g.completions) for g in restored] == [(g.ref, g.completions) for g in groups]
    for ours, theirs in zip(groups, restored, strict=True):
        assert len(ours.progress.samples) == len(theirs.progress.samples)
        for one, other in zip(ours.progress.sequences, theirs.progress.sequences, strict=True):
            assert np.array_equal(one.token_ids, other.token_ids)
            assert np.array_equal(one.logps, other.logps)
            assert (one.segments, one.observed, one.anew) == (other.segments, other.observed, other.anew)
            assert getattr(one, "finish", None) == getattr(other, "finish", None)
    if tensors:
        with pytest.raises(StorageError, match="move the checkpoint away"):
            restored_unfinished({**tensors, LOGPS: tensors[LOGPS][:-1]}, records)
