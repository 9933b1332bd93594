"""Asks a node, again and again, on a thread of its own: whoever reads what was last seen never waits.

Only what the view in front needs is asked for; what other views saw last is kept. Between the threads passes one
immutable ``Seen``, replaced as a whole. The thread ends with the process, or at ``stop``, also where a node has taken a
question and never answers it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from node.api.node_client import ask_history, ask_peers, ask_rollouts, ask_status, ask_swarm
from node.api.types import HistoryAnswer, NodeStatus, PeersAnswer, RolloutsAnswer, SwarmAnswer
from node.home import Home
from protocol.errors import TransportError, UnreachableError

EVERY_SECONDS = 1.0
HISTORY_SECONDS = 5.0  # a chart changes slowly, and is the largest answer
POINTS = 200  # a series: as many cells as a wide terminal has
NO_NODE = "no node answers; trying again"


class View(StrEnum):
    NODE = "node"
    PEERS = "peers"
    SWARM = "swarm"
    ROLLOUTS = "rollouts"


class Seen(Struct, frozen=True):
    """What the node last said, and when."""

    status: NodeStatus
    at_seconds: float  # by our clock, which is the node's
    peers: PeersAnswer | None = None
    swarm: SwarmAnswer | None = None
    rollouts: RolloutsAnswer | None = None
    history: HistoryAnswer | None = None
    history_at_seconds: float = 0.0
    away: str | None = None  # why the last look found nothing


def looked(home: Home, before: Seen, view: View, now_seconds: float) -> Seen:
    """``before``, with the node's answers for ``view``; or with the reason why there are none."""
    try:
        seen = replace(before, status=ask_status(home), at_seconds=now_seconds, away=None)
        match view:
            case View.PEERS:
                return replace(seen, peers=ask_peers(home))
            case View.SWARM:
                return replace(seen, swarm=ask_swarm(home))
            case View.ROLLOUTS:
                return replace(seen, rollouts=ask_rollouts(home))
            case View.NODE if now_seconds - before.history_at_seconds >= HISTORY_SECONDS or before.away:
                return replace(seen, history=ask_history(home, POINTS), history_at_seconds=now_seconds)
            case _:
                return seen
    except UnreachableError:
        return replace(before, away=NO_NODE)
    except TransportError as error:  # it answers, and not what this version understands
        return replace(before, away=str(error))


class Watch:
    """The thread, and what it saw last."""

    def __init__(self, home: Home, first: Seen, clock: Callable[[], float]) -> None:
        self.seen = first
        self._home = home
        self._clock = clock
        self._view = View.NODE
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def look_at(self, view: View) -> None:
        """Asks for what ``view`` shows, at once and from now on."""
        self._view = view
        self._wake.set()

    def stop(self) -> None:
        """No further question; waits for nothing."""
        self._stopped = True
        self._wake.set()

    def _run(self) -> None:
        while not self._stopped:
            self._wake.clear()
            self.seen = looked(self._home, self.seen, self._view, self._clock())
            self._wake.wait(EVERY_SECONDS)
