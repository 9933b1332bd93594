"""Does what the schedule says to the nodes, and undoes it. What was not possible is counted: a killed process that had
just ended, for one."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from scripts.bench.common.slow_network import APART, TOGETHER
from scripts.chaos import conditions, marked_processes
from scripts.chaos.chaos_node import ChaosNode, Incarnation
from scripts.chaos.conditions import Condition
from scripts.chaos.disturbances import NEED_GROUPS, NO_MEMORY, Disturbance, Kind
from scripts.chaos.marked_processes import LEARNER, SUPERVISOR, SWARM, Identity, SeenProcess
from scripts.chaos.places import FULL_SPEED_MEGABITS
from scripts.chaos.process_watch import ProcessWatch

VICTIMS: Final = {
    Kind.KILL_LEARNER: LEARNER,
    Kind.KILL_SWARM: SWARM,
    Kind.KILL_SUPERVISOR: SUPERVISOR,
    Kind.STOP_LEARNER: LEARNER,
    Kind.STOP_SWARM: SWARM,
    Kind.STOP_SUPERVISOR: SUPERVISOR,
    Kind.NO_MEMORY_LEARNER: LEARNER,
    Kind.NO_MEMORY_SWARM: SWARM,
    Kind.NO_MEMORY_SUPERVISOR: SUPERVISOR,
    Kind.OUT_OF_MEMORY: LEARNER,
}
SEEN: Final = {Kind.CLOCK: Condition.CLOCK, Kind.SLOW_DISK: Condition.DISK, Kind.NAMES: Condition.NAMES}
TELLING_SECONDS: Final = 20.0  # a supervisor that is killed sooner may not have told of what happened before
FREED_SECONDS: Final = 0.2  # after a process was killed, until the kernel has its memory back
TOLD_WITHIN_SECONDS: Final = 90.0  # a supervisor may be stopped meanwhile


@dataclass
class Expectation:
    """What a supervisor must tell of, unless it is killed soon after."""

    node: int
    incarnation: Incarnation
    what: str
    at: float


class Disturbing:
    def __init__(
        self,
        nodes: Sequence[ChaosNode],
        watch: ProcessWatch,
        look: Callable[[], Sequence[SeenProcess]],
        say: Callable[[str], None],
    ) -> None:
        """``look`` returns the processes of all nodes as they are now."""
        self._nodes, self._watch, self._look, self._say = nodes, watch, look, say
        self._active: list[Disturbance] = []
        self._stopped: dict[Disturbance, Identity] = {}
        self._expected: list[Expectation] = []
        self.done: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()

    def begin(self, what: Disturbance) -> None:
        node = self._nodes[what.nodes[0]]
        done = True
        if what.kind in NO_MEMORY:
            done = self._bound_memory(what, node)
        elif what.kind is Kind.OUT_OF_MEMORY:
            done = self._take_memory(what, node)
        elif what.kind is Kind.SWAPPING:
            assert node.place.memory is not None
            node.lacked_memory = True
            node.place.memory.squeeze(what.amount)
        elif what.kind in VICTIMS:
            done = self._signal(what, node)
        elif what.kind is Kind.FULL_DISK:
            node.place.fill_disk()
            self._expect(node, "disk")
        elif what.kind in SEEN:
            conditions.put(node.place.conditions, SEEN[what.kind], what.amount)
        elif what.kind is Kind.SLOW:
            assert node.place.peer is not None
            node.place.peer.set_rate(what.amount)
        elif what.kind is Kind.DOWN:
            assert node.place.peer is not None
            node.place.peer.set_up(False)
        (self.done if done else self.missed)[what.kind] += 1
        self._say(f"{what}{'' if done else ': no such process now'}")
        if done and what.until_seconds > what.at_seconds:
            self._active.append(what)
        self._plug(what)

    def keep_disks_full(self) -> None:
        """Fills again what eviction has freed."""
        for what in self._active:
            if what.kind is Kind.FULL_DISK:
                self._nodes[what.nodes[0]].place.fill_disk()

    def undo_due(self, now_seconds: float) -> None:
        """Undoes everything whose time is over."""
        for what in [each for each in self._active if each.until_seconds <= now_seconds]:
            self._active.remove(what)
            node = self._nodes[what.nodes[0]]
            if what in self._stopped:
                marked_processes.send(self._stopped.pop(what), signal.SIGCONT)
            elif what.kind is Kind.FULL_DISK:
                node.place.empty_disk()
            elif what.kind in SEEN:
                conditions.put(node.place.conditions, SEEN[what.kind], 0.0)
            elif what.kind in NO_MEMORY:
                self._free_memory(node)
            elif what.kind in NEED_GROUPS:
                assert node.place.memory is not None
                node.place.memory.free()
            elif what.kind is Kind.SLOW:
                assert node.place.peer is not None
                node.place.peer.set_rate(FULL_SPEED_MEGABITS)
            elif what.kind is Kind.DOWN:
                assert node.place.peer is not None
                node.place.peer.set_up(True)
            self._plug(what)

    def not_told(self) -> tuple[int, list[str]]:
        """Returns how much had to be told, and what was not. To be asked once all nodes have ended."""
        due, missing = 0, []
        for each in self._expected:
            run = each.incarnation
            if run.killed_at is not None and run.killed_at < each.at + TELLING_SECONDS:
                continue
            due += 1
            until = each.at + TOLD_WITHIN_SECONDS
            told = next((t for t in run.told if t.what == each.what and each.at <= t.at <= until), None)
            if told is None:
                missing.append(f"{each.what}, by supervisor {run.process.pid} of node {each.node}")
            else:
                run.told.remove(told)
        return due, missing

    def _signal(self, what: Disturbance, node: ChaosNode) -> bool:
        kind = VICTIMS[what.kind]
        seen = self._watch.of(node.number, kind)
        stops = what.kind.startswith("stop")
        if seen is None or not marked_processes.send(seen.identity, signal.SIGSTOP if stops else signal.SIGKILL):
            return False
        if stops:
            self._stopped[what] = seen.identity
        elif kind == SUPERVISOR:
            if node.incarnation is not None:
                node.incarnation.killed_at = time.monotonic()
        else:
            self._expect(node, kind)
        return True

    def _bound_memory(self, what: Disturbance, node: ChaosNode) -> bool:
        seen = self._watch.of(node.number, VICTIMS[what.kind])
        if seen is None or not marked_processes.bound_memory(seen.identity, bounded=True):
            return False
        node.lacked_memory = True
        return True

    def _take_memory(self, what: Disturbance, node: ChaosNode) -> bool:
        """Ends the learner, as the kernel ends what is large, and leaves the node as little as the others have then."""
        assert node.place.memory is not None
        if not self._signal(what, node):
            return False
        node.lacked_memory = True
        time.sleep(FREED_SECONDS)
        node.place.memory.bound()
        return True

    def _free_memory(self, node: ChaosNode) -> None:
        """Also for what the process has started meanwhile, which has its bound."""
        for _ in range(2):  # again for a process that was started in between
            for each in self._look():
                if each.node == node.number:
                    marked_processes.bound_memory(each.identity, bounded=False)

    def _expect(self, node: ChaosNode, what: str) -> None:
        if node.incarnation is not None and node.ready:
            self._expected.append(Expectation(node.number, node.incarnation, what, time.monotonic()))

    def _plug(self, what: Disturbance) -> None:
        """Plugs the cables of the nodes as all partitions that are under way want it."""
        if what.kind not in (Kind.CUT_OFF, Kind.PARTITION):
            return
        for number in what.nodes:
            peer = self._nodes[number].place.peer
            assert peer is not None
            around = {each.kind for each in self._active if number in each.nodes}
            if Kind.CUT_OFF in around:
                peer.unplug()
            else:
                peer.join(APART if Kind.PARTITION in around else TOGETHER)
