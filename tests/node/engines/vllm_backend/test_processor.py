"""What vLLM takes of a machine without a card."""

from __future__ import annotations

import pytest

from node.compute_environment import THREAD_VARIABLES
from node.engines.vllm_backend.processor import GIB, cache_bytes, thread_variables


@pytest.mark.parametrize(
    ("environment", "limit", "beside_learner", "threads"),
    [
        ({}, None, False, None),  # all: the learner waits
        ({}, None, True, 4),
        ({}, 8, True, 8),  # the owner's word
        ({}, 3, False, 3),
        ({"OMP_NUM_THREADS": "2"}, 3, False, 2),
        ({"OMP_NUM_THREADS": "2"}, None, True, 2),
        ({"OMP_NUM_THREADS": "6"}, None, True, 4),
    ],
)
def test_vllm_leaves_cores_to_a_learner_that_computes_beside_it_unless_the_machines_settings_say_otherwise(
    environment: dict[str, str], limit: int | None, beside_learner: bool, threads: int | None
) -> None:
    found = thread_variables(environment, cores=8, limit=limit, beside_learner=beside_learner)
    assert found.get("OMP_NUM_THREADS") == (None if threads is None else str(threads))
    assert not found or set(found) == set(THREAD_VARIABLES)


def test_one_core_is_used_by_both() -> None:
    assert thread_variables({}, cores=1, limit=None, beside_learner=True)["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("environment", "gib"),
    [({}, 1), ({"VLLM_CPU_KVCACHE_SPACE": "4"}, 4), ({"VLLM_CPU_KVCACHE_SPACE": "lots"}, 1)],
)
def test_keys_and_values_are_as_many_as_vllm_is_told(environment: dict[str, str], gib: int) -> None:
    assert cache_bytes(environment) == gib * GIB
