"""What a computing process is given before it imports its libraries."""

from __future__ import annotations

from node.compute_environment import (
    COMPUTE_DEFAULTS,
    compute_environment,
    thread_limit,
    without_compute_settings,
)


def test_variables_of_the_user_take_precedence() -> None:
    environment = compute_environment({"GOMP_SPINCOUNT": "7", "HOME": "/home/ann"})
    assert environment == COMPUTE_DEFAULTS | {"GOMP_SPINCOUNT": "7", "HOME": "/home/ann"}


def test_another_program_gets_what_the_user_set_and_limits_of_threads_and_nothing_of_ours() -> None:
    own = {"GOMP_SPINCOUNT": "7", "HOME": "/home/ann"}
    limited = own | thread_limit(1, own)
    assert without_compute_settings(compute_environment(own)) == own
    assert without_compute_settings(compute_environment(limited)) == limited
