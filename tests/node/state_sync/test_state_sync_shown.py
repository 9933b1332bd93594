"""How the terminal shows state sync."""

from __future__ import annotations

import pytest

from node.cli.wording import state_sync_line
from node.events import Stage, StateSyncing, decode_event, encode_event


def event(stage: Stage, because: str = "", *, here_bytes: int = 0) -> StateSyncing:
    return StateSyncing(
        time_seconds=1.0,
        stage=stage,
        because=because,
        seconds=2.0,
        here_bytes=here_bytes,
        total_bytes=200_000_000,
        holders=2,
        weights="ab" * 32,
        policy_version=7,
    )


@pytest.mark.parametrize(
    ("said", "part"),
    [
        (event("looking", "no peer of our family announces a state"), "looking: no peer of our family"),
        (event("fetching", "the best of 3 announced"), "fetching 200"),
        (event("fetching", here_bytes=50_000_000), "25%"),
        (event("verifying", "3 blobs are here"), "verifying: 3 blobs"),
        (event("failed", "no space left"), "failed: no space left"),
        (event("done"), "starting from abababababababab, policy version 7"),
        (event("given_up", "nobody"), "nobody"),
    ],
)
def test_each_stage_has_its_line(said: StateSyncing, part: str) -> None:
    assert part in state_sync_line(said)
    assert decode_event(encode_event(said)) == said


def test_what_moves_the_cursor_is_escaped() -> None:
    assert "\x1b" not in state_sync_line(event("failed", "peer \x1b[2J\n says"))
