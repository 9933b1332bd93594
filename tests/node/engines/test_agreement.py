"""Which distance between engine and learner is rounding, and which a fault."""

from __future__ import annotations

import pytest

from node.engines.agreement import EXACT, FAULTY, ROUNDED, agreement_bound, disagreement


@pytest.mark.parametrize(
    ("engine", "dtype", "four_bit", "bound"),
    [
        ("torch", "float32", False, EXACT),
        ("process", "float32", False, EXACT),
        ("vllm", "bfloat16", False, EXACT),
        ("torch", "bfloat16", False, ROUNDED),
        ("torch", "float32", True, ROUNDED),
        ("torch with donors", "float32", False, ROUNDED),
    ],
)
def test_bound_is_of_the_engine_and_the_learners_precision(
    engine: str, dtype: str, four_bit: bool, bound: float
) -> None:
    assert agreement_bound(engine, dtype=dtype, four_bit=four_bit) == bound


def test_only_a_distance_far_above_the_bound_is_a_fault_and_the_engine_is_named() -> None:
    assert disagreement("process", None, EXACT) is None
    assert disagreement("process", FAULTY * EXACT, EXACT) is None
    assert "(process)" in str(disagreement("process", 1.01 * FAULTY * EXACT, EXACT))
    assert disagreement("process", float("nan"), EXACT) is not None
