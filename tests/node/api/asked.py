"""The part of a made-up node that is asked to stop, to pause and to train again."""

from __future__ import annotations

from node.api.types import Paused
from node.trying.messages import TryRequest
from node.trying.tried import Answer, Tried
from protocol.errors import ConfigurationError


class Asked:
    """Remembers what it was asked."""

    def __init__(self) -> None:
        self.stops: list[str] = []

    def request_stop(self, because: str, *, typed: bool) -> None:
        self.stops.append(because)

    def pause(self, for_seconds: float | None, *, at_once: bool) -> Paused | None:
        self.stops.append(f"pause for {for_seconds}, at once {at_once}")
        return Paused(100.0, "asked by its owner", None if for_seconds is None else 100.0 + for_seconds)

    def resume(self, for_seconds: float | None) -> Paused | None:
        self.stops.append(f"resume for {for_seconds}")
        return None

    async def try_model(self, request: TryRequest) -> Tried:
        if request.of_task:
            raise ConfigurationError(f"there is no task {request.text}")
        answer = Answer("base", 0, None, "echo", 1, ended=True, judged=None, right=None)
        return Tried(request.text, None, None, None, (answer,))
