"""What the supervisor keeps of a run for the API: rollouts and history, filled by events as they arrive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from node.api.history import History
from node.api.rollout_history import RolloutHistory
from node.events import Evaluated, Event, ForeignGroups, RoundDone, Usage


class RunRecord:
    """Bounded in memory for a run of any length. For one thread."""

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        """``settings``: the resolved configuration that the run was started with, as JSON."""
        self.settings: Final = dict(settings or {})
        self.rollouts = RolloutHistory()
        self.history = History()

    def add(self, event: Event | Usage) -> None:
        match event:
            case RoundDone():
                self.rollouts.add_round(event)
                self.history.add_round(event)
            case ForeignGroups():
                self.rollouts.add_groups(event)
            case Evaluated():
                self.history.add_evaluation(event)
            case Usage():
                self.history.add_usage(event)
            case _:
                pass
