"""Answers to this node's owner, errors, and messages."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from node.api.types.status import Paused


class SettingsAnswer(Struct, frozen=True):
    """Answer of GET /api/v1/settings: what the node runs with, as it was resolved when it started."""

    pid: int  # of the supervisor
    home: str
    config: dict[str, Any]  # ``node.configuration.Config`` as JSON; what is "auto" is chosen by the learner


class StopAnswer(Struct, frozen=True):
    """Answer of POST /api/v1/stop: the node finishes its step, checkpoints, says goodbye and stops."""

    stopping: bool


class PauseAnswer(Struct, frozen=True):
    """Answer of POST /api/v1/pause and /api/v1/resume: ``NodeStatus.paused`` from now on. After a resume it is not null
    where the schedule, or what the machine is used for, is still against training."""

    paused: Paused | None


class ErrorAnswer(Struct, frozen=True):
    """Why a request was not served, and the remedy."""

    error: str


class Note(Struct, frozen=True, tag_field="event", tag="note"):
    """A message of the supervisor to the user, as one of the events."""

    time_seconds: float
    text: str
