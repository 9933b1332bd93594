"""Answers a person's questions for the web page, in a process of its own (``node.trying.try_process``).

There is one such process at most, and one question at a time. It is started by a question where the learner leaves
enough memory, and ended when nobody has asked for ``IDLE_SECONDS``, when the learner starts, and with the node.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from node.checkpoints.checkpoint_files import rounds
from node.compute_environment import thread_limit
from node.configuration import Config
from node.doctor.machine_facts import memory_facts
from node.fit.planning import sizes_of, trained_here
from node.home import Home
from node.policy.model_files import model_folder
from node.supervision import restarts
from node.supervision.children import Child, ChildSpec
from node.supervision.rolling_log import RollingLog
from node.trying.messages import Answered, Doing, NotAnswered, Said, TryRequest, TryStart
from node.trying.room import needed_bytes, no_room, room_bytes
from node.trying.tried import Tried
from protocol.errors import ConfigurationError, DeadlineError, EngineLostError, TooLittleMemoryError

COMMAND: Final = (sys.executable, "-P", "-m", "node.trying.try_process")
ANSWER_SECONDS: Final = 240.0  # of one question, loading included
IDLE_SECONDS: Final = 120.0


def try_spec(home: Home, config: dict[str, Any]) -> ChildSpec:
    """Returns how to start the process. It computes with one thread: the learner has the others."""
    start = msgspec.json.encode(TryStart(str(home.path), config))
    return ChildSpec("try", COMMAND, start, None, environment=tuple(thread_limit(1, os.environ).items()))


async def room_beside_learner(
    home: Home, config: Config, *, planned_bytes: int, held_bytes: int, others_bytes: int
) -> str | None:
    """Returns why the process is not started now; None where it fits. The learner, which holds ``held_bytes``, takes up
    to ``planned_bytes``; the node's other processes hold ``others_bytes``. Raises ``ConfigurationError``."""
    return await asyncio.to_thread(_no_room, home, config, planned_bytes, held_bytes, others_bytes)


def _no_room(home: Home, config: Config, planned_bytes: int, held_bytes: int, others_bytes: int) -> str | None:
    facts, most_bytes = memory_facts(), config.machine.max_memory_bytes
    free = [facts.total_bytes if facts.available_bytes is None else facts.available_bytes]
    free += [] if facts.group_room_bytes is None else [facts.group_room_bytes]
    free += [] if most_bytes is None else [most_bytes - held_bytes - others_bytes]
    newest = next(reversed(rounds(home.checkpoints)), None)
    on_disk = 0 if newest is None else sum(file.stat().st_size for file in newest.iterdir())
    needed = needed_bytes(sizes_of(model_folder(config.policy.model)), trained_here(home), on_disk)
    return no_room(needed, room_bytes(min(free), planned_bytes=planned_bytes, held_bytes=held_bytes))


class Trying:
    """For one event loop. ``ask`` may be called at any time; ``close`` once."""

    def __init__(self, spec: ChildSpec, log: RollingLog, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._spec, self._log, self._idle_seconds = spec, log, idle_seconds
        self._child: Child | None = None
        self._life: asyncio.Task[None] | None = None
        self._request: bytes | None = None  # not sent yet: the process starts
        self._answer: asyncio.Future[Tried] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._because: str | None = None  # why it was ended
        self.doing: str | None = None  # in words, while a question is open

    @property
    def pid(self) -> int | None:
        """None while the process does not run."""
        return None if self._child is None else self._child.pid

    async def ask(self, request: TryRequest, why_not: Callable[[], Awaitable[str | None]]) -> Tried:
        """Returns the answers. ``why_not`` says why the process cannot be started now, None where it can.

        Raises ``ConfigurationError`` for what cannot be asked, ``TooLittleMemoryError`` where the process has no room,
        ``DeadlineError`` where it takes over ``ANSWER_SECONDS``, ``EngineLostError`` where it ended meanwhile.
        """
        if self._answer is not None:
            raise ConfigurationError("another question is being answered: ask again when it is done")
        self._answer = asyncio.get_running_loop().create_future()
        self._request, self._because, self.doing = msgspec.json.encode(request), None, "looking for memory"
        if self._idle is not None:
            self._idle.cancel()
        try:
            if self._child is None:
                if because := await why_not():
                    raise TooLittleMemoryError(because)
                self._child = Child(self._spec, self._log, self._on_line)
                self._life = asyncio.create_task(self._live(self._child))
            else:
                self._send()
            return await asyncio.wait_for(self._answer, ANSWER_SECONDS)
        except TimeoutError:
            self.end("it took too long")
            raise DeadlineError(
                f"no answer came within {ANSWER_SECONDS:.0f} s: ask starling try, which has no such limit"
            ) from None
        finally:
            self._answer = self.doing = None
            self._idle = asyncio.get_running_loop().call_later(self._idle_seconds, self.end, "nobody asked")

    def end(self, because: str) -> None:
        """Ends the process, if it runs; an open question is answered with an error that says ``because``."""
        if self._child is not None:
            self._because = because
            self._child.kill()

    async def close(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self.end("the node stops")
        if self._life is not None:
            await self._life

    async def _live(self, child: Child) -> None:
        end = await child.live()
        self._child = None
        if self._answer is not None and not self._answer.done():
            why = self._because or restarts.describe("the process that answers", end)
            self._answer.set_exception(EngineLostError(f"the question was not answered: {why}; ask again", "ended"))

    def _send(self) -> None:
        if self._request is not None and self._child is not None:
            self._child.send_line(self._request)
            self._request = None

    def _on_line(self, line: bytes) -> bool:
        try:
            said = msgspec.json.decode(line, type=Said)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False  # a library printed it: it is logged
        self._send()  # it reads now
        if self._answer is None or self._answer.done():
            return True
        match said:
            case Doing(what):
                self.doing = what
            case Answered(tried):
                self._answer.set_result(tried)
            case NotAnswered(because):
                self._answer.set_exception(ConfigurationError(because))
        return True
