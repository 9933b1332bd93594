"""What the process of a stage tells of its work: each time that it gets layers, and what it computed, once a minute."""

from __future__ import annotations

import io
import json
from typing import Any

from node.stages.stage_events import COMPUTED_SECONDS, StageEvents
from protocol.streams.stage_messages import BeginRows, HoldLayers, StageBeat


class Held:
    held_bytes, layers_in_all = 412, 24


def test_layers_are_told_at_once_and_work_once_a_minute_also_of_a_session_after_another() -> None:
    out, now = io.StringIO(), 0.0
    told = StageEvents(out, Held(), clock=lambda: now)

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for line in out.getvalue().splitlines()]

    told(HoldLayers(2, 13))
    told(BeginRows())
    assert lines() == [{"event": "holding", "first": 2, "last": 13, "layers": 24, "bytes": 412}]
    for tokens, at in ((100, 10.0), (700, COMPUTED_SECONDS), (800, COMPUTED_SECONDS + 1), (50, 2 * COMPUTED_SECONDS)):
        now = at
        told(StageBeat(tokens / 100, tokens))
    assert [(each["tokens"], each["seconds"]) for each in lines()[1:]] == [(700, 7.0), (50, 0.5)]
    now = 4 * COMPUTED_SECONDS
    told(StageBeat(0.5, 50))
    assert len(lines()) == 3
