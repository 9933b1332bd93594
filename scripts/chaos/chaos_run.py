"""One run: all nodes up, disturbances on schedule, calm, an orderly end, and nothing left behind in any case."""

from __future__ import annotations

import re
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Final

from protocol.identity import NodeKey
from scripts.chaos import marked_processes
from scripts.chaos.chaos_node import STORE_BYTES, ChaosNode
from scripts.chaos.disturbances import NEED_GROUPS, NEED_NAMESPACES, Disturbance, Kind, drawn
from scripts.chaos.disturbing import Disturbing
from scripts.chaos.meeting import bans, is_one_swarm, peers_of
from scripts.chaos.places import NodePlace, places
from scripts.chaos.process_watch import Growth, ProcessWatch
from swarm.api import PeerStatus

ROUND_SECONDS_A_NODE: Final = 0.4  # the nodes together announce this often, however many they are
LEAST_ROUND_SECONDS: Final = 1.0
KNOWN_PEERS: Final = 2  # addresses that a node is given
LOOK_SECONDS: Final = 1.0
START_SECONDS: Final = 420.0  # of two busy cores for 24 nodes
CALM_SECONDS: Final = 180.0  # after the last disturbance, until all are one swarm again and use each other's groups
STOP_SECONDS: Final = 180.0
DIRECTORY_BYTES: Final = STORE_BYTES + (8 << 20)  # the store, and logs and metrics of some hours
TRACEBACK: Final = "Traceback (most recent call last)"
TRACEBACK_CHARACTERS: Final = 6000  # that are read of one
WITHOUT_MEMORY: Final = re.compile(r"MemoryError|Cannot allocate memory|can't start new thread|failed to map segment")


class ChaosRun:
    """``nodes`` nodes under disturbances drawn from ``seed``; ``run`` may be called once.

    Every process that it starts has ended when ``run`` returns or raises. ``violations`` then says in words what must
    not be; ``missing`` what this machine or user does not allow.
    """

    def __init__(self, nodes: int, seed: int, *, aloud: bool, kinds: frozenset[Kind] = frozenset(Kind)) -> None:
        """Of ``kinds`` disturbances are drawn."""
        self.nodes, self._seed, self._aloud, self._kinds = nodes, seed, aloud, kinds
        self._mark = uuid.uuid4().hex
        self._began = time.monotonic()
        self.watch = ProcessWatch()
        self.members: list[ChaosNode] = []
        self.violations: list[str] = []
        self.missing: list[str] = []
        self.done: Counter[str] = Counter()  # disturbances
        self.due_to_be_told = 0
        self.killed_for_memory = 0  # processes, by the kernel
        self.start_seconds = self.reconnect_seconds = 0.0
        self.most_directory_bytes = 0
        self.growth: list[Growth] = []

    def run(
        self, minutes: float, disturbances: Sequence[Disturbance] | None = None, *, asleep_minutes: float = 0.0
    ) -> None:
        """Raises ``RuntimeError`` where the nodes do not even come up. ``disturbances`` instead of drawn ones; once
        they are over, all processes are stopped for ``asleep_minutes``."""
        with (
            tempfile.TemporaryDirectory(prefix="st-", ignore_cleanup_errors=True) as root,  # short, for sockets in it
            places(self.nodes, Path(root)) as (found, self.missing),
        ):
            for text in self.missing:
                self._say(text)
            peers = _peers_of(found, Random(self._seed))
            seconds = max(LEAST_ROUND_SECONDS, ROUND_SECONDS_A_NODE * self.nodes)
            names = {place.name: place.address for place in found}
            self.members = [
                ChaosNode(p, peers[p.number], names, self._mark, seconds, self._on_violation) for p in found
            ]
            try:
                self._start()
                disturbing = Disturbing(
                    self.members, self.watch, lambda: marked_processes.look(self._mark)[0], self._say
                )
                self._disturb(disturbing, minutes * 60.0, disturbances)
                self._calm()
                if asleep_minutes:
                    self._sleep(60.0 * asleep_minutes)
                    self._calm()
                self._stop()
                self._judge(disturbing)
            finally:
                self._end_everything()

    def _start(self) -> None:
        began = time.monotonic()
        if not self._until(self._all_meet, START_SECONDS):
            raise RuntimeError(f"the nodes were not one swarm within {START_SECONDS:.0f} s: {self.violations}")
        self.start_seconds = time.monotonic() - began
        self._say(f"all nodes are one swarm after {self.start_seconds:.0f} s")

    def _disturb(self, disturbing: Disturbing, seconds: float, given: Sequence[Disturbance] | None) -> None:
        ahead = list(self._drawn(seconds) if given is None else given)
        began = time.monotonic()
        while (now := time.monotonic() - began) < seconds:
            disturbing.undo_due(now)
            disturbing.keep_disks_full()
            while ahead and ahead[0].at_seconds <= now:
                disturbing.begin(ahead.pop(0))
            self._look()
            time.sleep(LOOK_SECONDS)
        disturbing.undo_due(seconds)
        self.done = disturbing.done

    def _drawn(self, seconds: float) -> list[Disturbance]:
        disks = frozenset(node.number for node in self.members if node.place.small_disk)
        place = self.members[0].place
        allowed = self._kinds if place.peer is not None else self._kinds - NEED_NAMESPACES
        allowed -= frozenset() if place.memory is not None else NEED_GROUPS
        allowed -= frozenset() if place.can_swap else {Kind.SWAPPING}
        return drawn(self._seed, self.nodes, seconds, allowed, disks)

    def _calm(self) -> None:
        began = time.monotonic()
        if not self._until(self._all_meet, CALM_SECONDS):
            self._on_violation(f"the nodes were not one swarm {CALM_SECONDS:.0f} s after the last disturbance")
        self.reconnect_seconds = time.monotonic() - began
        self._say(f"all nodes are one swarm {self.reconnect_seconds:.0f} s after the last disturbance")
        before = [node.foreign_used for node in self.members]

        def all_use_groups() -> bool:
            return all(node.foreign_used > b for node, b in zip(self.members, before, strict=True))

        if not self._until(all_use_groups, CALM_SECONDS):
            without = [n.number for n, b in zip(self.members, before, strict=True) if n.foreign_used == b]
            self._on_violation(f"nodes {without} used no group of others in {CALM_SECONDS:.0f} s of calm")
        for text in bans(self._known() or {}):
            self._on_violation(text)

    def _sleep(self, seconds: float) -> None:
        """Stops every process, as a machine that sleeps does, and lets them go on."""
        processes = marked_processes.look(self._mark)[0]
        for each in processes:
            marked_processes.send(each.identity, signal.SIGSTOP)
        self._say(f"{len(processes)} processes are stopped for {seconds:.0f} s")
        time.sleep(seconds)
        for each in processes:
            marked_processes.send(each.identity, signal.SIGCONT)

    def _stop(self) -> None:
        self.growth = self.watch.growth()
        for node in self.members:
            node.ask_to_stop()
        until = time.monotonic() + STOP_SECONDS
        for node in self.members:
            code = node.wait(until)
            if code != 0:
                ended = f"has not ended after {STOP_SECONDS:.0f} s" if code is None else f"ended with {code}"
                self._on_violation(f"node {node.number}, asked to stop, {ended}: {node.last_words}")
        time.sleep(LOOK_SECONDS)  # for the last of a session that was killed
        self._look()
        for each in self.watch.seen:
            self._on_violation(f"{each.kind} {each.identity.pid} of node {each.node} is left after the end")

    def _judge(self, disturbing: Disturbing) -> None:
        self.due_to_be_told, not_told = disturbing.not_told()
        for text in not_told:
            self._on_violation(f"not told: {text}")
        self.killed_for_memory = sum(node.place.memory.kills for node in self.members if node.place.memory)
        for node in self.members:
            node.look_at_checkpoint()
            if found := tracebacks(node.logs(), lacked_memory=node.lacked_memory):
                self._on_violation(f"node {node.number} logged {len(found)} tracebacks:\n{found[0]}")

    def _until(self, condition: Callable[[], bool], at_most_seconds: float) -> bool:
        ends = time.monotonic() + at_most_seconds
        while time.monotonic() < ends:
            self._look()
            if condition():
                return True
            if any(node.is_over for node in self.members):
                return False
            time.sleep(LOOK_SECONDS)
        return False

    def _all_meet(self) -> bool:
        known = self._known()
        return known is not None and is_one_swarm(known)

    def _known(self) -> dict[str, list[PeerStatus]] | None:
        all_ready = all(node.ready for node in self.members)
        return peers_of([node.place.home for node in self.members]) if all_ready else None

    def _look(self) -> None:
        for node in self.members:
            node.tend()
            size = node.directory_bytes()
            if self.most_directory_bytes <= DIRECTORY_BYTES < size:
                self._on_violation(f"the data directory of node {node.number} has {size} bytes")
            self.most_directory_bytes = max(self.most_directory_bytes, size)
        for text in self.watch.judge(*marked_processes.look(self._mark), now=time.monotonic()):
            self._on_violation(text)

    def _end_everything(self) -> None:
        for node in self.members:
            node.kill()
        while left := marked_processes.look(self._mark)[0]:
            for each in left:
                marked_processes.send(each.identity, signal.SIGKILL)
            time.sleep(0.1)

    def _on_violation(self, text: str) -> None:
        self.violations.append(text)
        self._say(f"VIOLATION: {text}")

    def _say(self, text: str) -> None:
        if self._aloud:
            print(f"{time.monotonic() - self._began:7.1f} s  {text}", file=sys.stderr, flush=True)


def tracebacks(logs: str, *, lacked_memory: bool) -> list[str]:
    """Returns the tracebacks in ``logs``, but for those that a node logs which ``lacked_memory`` and that say so."""
    starts = [match.start() for match in re.finditer(re.escape(TRACEBACK), logs)]
    texts = [logs[start : start + TRACEBACK_CHARACTERS] for start in starts]
    return [text for text in texts if not (lacked_memory and WITHOUT_MEMORY.search(text))]


def _peers_of(found: Sequence[NodePlace], random: Random) -> list[list[str]]:
    """Makes the nodes' keys; returns which addresses each node is given: of some that came before it. Every second node
    is known by its name."""
    addresses = [
        f"{p.multiaddr if p.number % 2 else p.named_multiaddr}/p2p/"
        f"{NodeKey.load_or_create(p.home / 'identity.key').peer_id}"
        for p in found
    ]
    return [random.sample(addresses[:number], min(KNOWN_PEERS, number)) for number in range(len(found))]
