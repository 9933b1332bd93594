"""Steps that two processes take together, each with half of every weight, against those of one process."""

from __future__ import annotations

from typing import Any

import pytest

from tests.node.learner.sharding.two_processes import CASES, run_together

pytestmark = pytest.mark.processes

Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run_together(tmp_path_factory.mktemp("meeting") / "meeting")


@pytest.mark.parametrize("case", CASES)
def test_both_processes_take_the_steps_that_one_takes(found: Found, case: str) -> None:
    coarse = "bfloat16" in CASES[case].get("dtype", "")
    for of_rank in found:
        for alone, together in of_rank[case]["reports"]:
            for name in ("tokens", "completions", "taken"):
                assert together[name] == alone[name]
            for name in ("loss", "entropy", "norm"):
                expected = pytest.approx(alone[name], rel=2e-2 if coarse else 1e-4, abs=1e-6, nan_ok=True)
                assert together[name] == expected, name
        # AdamW moves a weight by the rate, whatever its gradient: where that is next to nothing, rounding says whither.
        assert of_rank[case]["apart"] <= (0.1 if coarse else 1e-3)


@pytest.mark.parametrize("case", CASES)
def test_what_is_decided_from_the_whole_batch_is_the_same_to_the_bit_on_both(found: Found, case: str) -> None:
    ours, theirs = ([str(together) for _, together in of_rank[case]["reports"]] for of_rank in found)
    assert ours == theirs


@pytest.mark.parametrize("case", CASES)
def test_each_process_holds_about_half_of_the_weights_and_none_twice(found: Found, case: str) -> None:
    held = [of_rank[case]["held"] for of_rank in found]
    assert sum(held) == found[0][case]["parameters"]
    assert max(held) <= 0.6 * sum(held)


def test_a_gradient_that_is_not_finite_is_skipped_by_both(found: Found) -> None:
    for of_rank in found:
        alone, together = of_rank["gradient not finite"]["skipped"]
        assert alone == together == 1
