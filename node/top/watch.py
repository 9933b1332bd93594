"""Polls a node on a thread of its own, so that the user interface never waits for an answer.

It requests only what the current view needs; the last answers for other views are kept. The threads share one immutable
``Seen``, which is replaced as a whole. The thread ends with the process, or after ``stop``, even where a node accepts a
request and never answers it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from node.api.node_client import ask_gains, ask_history, ask_peers, ask_rollouts, ask_status, ask_swarm
from node.api.types import GainsAnswer, HistoryAnswer, NodeStatus, PeersAnswer, RolloutsAnswer, SwarmAnswer
from node.home import Home
from protocol.errors import TransportError, UnreachableError

POLL_SECONDS = 1.0
HISTORY_SECONDS = 5.0  # between two requests for charts, which change slowly and are the largest answer
MAX_POINTS = 200  # of a series: as many as a wide terminal has cells
NO_NODE = "no node answers; trying again"


class View(StrEnum):
    REWARDS = "rewards"
    NODE = "node"
    PEERS = "peers"
    SWARM = "swarm"
    ROLLOUTS = "rollouts"


class Seen(Struct, frozen=True):
    """The node's last answers."""

    status: NodeStatus
    at_seconds: float  # Unix time of ``status``, by the clock of this machine, which is also the node's
    gains: GainsAnswer | None = None
    peers: PeersAnswer | None = None
    swarm: SwarmAnswer | None = None
    rollouts: RolloutsAnswer | None = None
    history: HistoryAnswer | None = None
    history_at_seconds: float = 0.0
    away: str | None = None  # why the last poll got no answer


def polled(home: Home, before: Seen, view: View, now_seconds: float) -> Seen:
    """Returns ``before`` with the node's answers for ``view``, or with the reason why there are none."""
    try:
        seen = replace(before, status=ask_status(home), at_seconds=now_seconds, away=None)
        match view:
            case View.REWARDS:
                return replace(seen, gains=ask_gains(home))
            case View.PEERS:
                return replace(seen, peers=ask_peers(home))
            case View.SWARM:
                return replace(seen, swarm=ask_swarm(home))
            case View.ROLLOUTS:
                return replace(seen, rollouts=ask_rollouts(home))
            case View.NODE if now_seconds - before.history_at_seconds >= HISTORY_SECONDS or before.away:
                return replace(seen, history=ask_history(home, MAX_POINTS), history_at_seconds=now_seconds)
            case _:
                return seen
    except UnreachableError:
        return replace(before, away=NO_NODE)
    except TransportError as error:  # this version does not understand the answer
        return replace(before, away=str(error))


class Watch:
    """The polling thread and the last answers."""

    def __init__(self, home: Home, first: Seen, clock: Callable[[], float]) -> None:
        self.seen = first
        self._home = home
        self._clock = clock
        self._view = View.REWARDS
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def show(self, view: View) -> None:
        """Requests what ``view`` needs, at once and from now on."""
        self._view = view
        self._wake.set()

    def stop(self) -> None:
        """Ends polling. Returns at once, without waiting for the thread."""
        self._stopped = True
        self._wake.set()

    def _run(self) -> None:
        while not self._stopped:
            self._wake.clear()
            self.seen = polled(self._home, self.seen, self._view, self._clock())
            self._wake.wait(POLL_SECONDS)
