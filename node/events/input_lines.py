"""What the supervisor writes on the learner's standard input."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

STOP_LINE = "stop"  # on the learner's standard input: finish the round, checkpoint, exit 0
PAUSE_LINE = "pause"  # the same, because the node pauses: it will be started again


class LearnerStart(Struct, frozen=True):
    """The first line on the learner's standard input."""

    home: str  # the data directory: HOME/checkpoints, HOME/swarm.sock
    config: dict[str, Any]  # ``Config.model_dump(mode="json")``, resolved
