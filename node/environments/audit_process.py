"""One of an audit's two processes: plays episodes as it is told to, in an unkind surrounding, and says what came of it.

    python -m node.environments.audit_process

Standard input: ``AuditJob`` as JSON. Standard output: a list of ``PlayedEpisode`` as JSON. What the environment prints
goes to standard error. The parent ends a process that takes too long.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import random
import signal
import sys
import time
from typing import Final, Self

import msgspec
import numpy as np

from node.configuration import TasksSection
from node.environments.conversation import ConversationTask, observation_fault
from node.tasks.catalogue import find_conversation
from node.tasks.own_file import place_of

OFFSET_SECONDS: Final = 123_456_789.0
_NETWORK: Final = frozenset({"socket.__new__", "socket.getaddrinfo", "socket.gethostbyname"})

ORPHAN_SECONDS: Final = 300  # the parent ends this process after less; without one it ends by itself


class AuditJob(msgspec.Struct):
    section_json: str  # ``TasksSection``
    task: str
    episodes: list[tuple[int, list[str]]]  # seed and actions
    # The global generators are drawn from in between, the clock is another, the order is the reverse, and this is the
    # working folder. None: none of it.
    unkind: str | None


class PlayedEpisode(msgspec.Struct):
    """What an episode said and gave, as far as it went."""

    turns: list[str]  # one digest of observation, done and reward after each action, the first text's before them
    texts: list[str]  # the observations, cut
    reward: float
    fault: str | None  # what was raised, or broke a bound
    most_seconds: float  # of a turn
    most_bytes: int  # of an observation


def played(task: ConversationTask, seed: int, actions: list[str], unkind: bool) -> PlayedEpisode:
    """Plays one episode. Whatever the environment raises is its fault."""
    episode = PlayedEpisode([], [], 0.0, None, 0.0, 0)
    began = time.perf_counter()

    def note(observation: str, done: bool, reward: float) -> bool:
        nonlocal began
        episode.most_seconds = max(episode.most_seconds, time.perf_counter() - began)
        episode.fault = observation_fault(task.environment, observation)
        if episode.fault is None and not (isinstance(reward, (int, float)) and 0 <= reward <= 1):
            episode.fault = f"a reward of {reward!r}, wanted 0 to 1"
        if episode.fault is not None:
            return False
        episode.reward = float(reward)
        episode.most_bytes = max(episode.most_bytes, len(observation.encode()))
        said = f"{observation}\0{done}\0{float(reward)!r}"
        episode.turns.append(hashlib.sha256(said.encode()).hexdigest()[:16])
        episode.texts.append(observation[:200])
        if unkind:
            random.random()
            np.random.random()
        began = time.perf_counter()
        return not done

    try:
        running = task.environment.begin(task.environment.ref(seed))
        going = note(running.observation(), False, running.reward())
        for action in actions[: task.environment.max_turns]:
            if not going:
                break
            turn = running.act(action)
            going = note(turn.observation, bool(turn.done), running.reward())
    except (Exception, SystemExit) as error:  # noqa: BLE001 - an environment may raise anything
        place = place_of(error)
        episode.fault = f"{type(error).__name__}: {error}"[:200] + (f" ({place})" if place else "")
    return episode


def _set_clock_forward() -> None:
    """Sets this process's clock forward, for what asks Python's modules for the time of day."""
    seconds, nanoseconds = time.time, time.time_ns
    time.time = lambda: seconds() + OFFSET_SECONDS
    time.time_ns = lambda: nanoseconds() + int(OFFSET_SECONDS * 1e9)

    class LaterDate(datetime.date):
        @classmethod
        def today(cls) -> Self:
            return cls.fromtimestamp(time.time())

    class LaterTime(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Self:
            return cls.fromtimestamp(time.time(), tz)

        @classmethod
        def utcnow(cls) -> Self:
            return cls.fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None)

    datetime.date, datetime.datetime = LaterDate, LaterTime  # type: ignore[misc]


def _refuse_network(event: str, _: object) -> None:
    if event in _NETWORK:
        raise PermissionError("an episode has no network")


def main() -> None:
    signal.alarm(ORPHAN_SECONDS)
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as output:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        job = msgspec.json.decode(sys.stdin.buffer.read(), type=AuditJob)
        if job.unkind is not None:
            _set_clock_forward()
        task = find_conversation(TasksSection.model_validate_json(job.section_json), job.task)
        order = list(enumerate(job.episodes))
        if job.unkind is not None:
            order.reverse()
            os.chdir(job.unkind)
        sys.addaudithook(_refuse_network)
        found = {number: played(task, seed, actions, job.unkind is not None) for number, (seed, actions) in order}
        output.write(msgspec.json.encode([found[number] for number in range(len(order))]))


if __name__ == "__main__":
    main()
