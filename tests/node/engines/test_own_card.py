"""The GPU of an engine whose learner has several."""

from __future__ import annotations

import pytest

from node.engines.backends import card_after


@pytest.mark.parametrize(
    ("devices", "visible", "card"), [(2, None, "2"), (2, "", "2"), (2, "4,5,6,7", "6"), (1, "GPU-a,GPU-b", "GPU-b")]
)
def test_the_engine_has_the_card_after_those_of_the_learner(devices: int, visible: str | None, card: str) -> None:
    assert card_after(devices, visible) == card
