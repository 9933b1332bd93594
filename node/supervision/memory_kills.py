"""Learners that the system killed for their memory: how they are told from others, and with what the next one begins.

The kernel ends a process with SIGKILL when memory runs out, and so does a person with ``kill -9``. Linux counts the
former: ``oom_kill`` in ``memory.events`` of the control group, which counts kills by limits of groups and by the whole
machine, otherwise in ``/proc/vmstat``, which counts every process of the machine. A learner counts as killed for its
memory if the count rose during its life and it held at least a twentieth of the memory when last looked at. Without a
count, as on another system, it must have held half of it. A small learner that somebody kills keeps its plan.

``MemoryCap`` holds a node to ``machine.max_memory``. The kernel's own limits (a control group, systemd's MemoryMax)
hold at every moment; this one looks every few seconds at resident memory, and needs no privilege.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from node.events import LearnerReady, Usage
from node.fit.fitted import FLOORS, Fitted, Sizes, halved, read_fitted, write_fitted
from node.fit.host_memory import CONTROL_GROUPS, PROC, host_memory_bytes, own_control_groups
from node.printable import printable
from node.quantities import size
from protocol.errors import StorageError

COUNTED_SHARE: Final = 0.05  # of the memory, held by a learner that a counted kill may have been for
ASSUMED_SHARE: Final = 0.5  # the same where kills are not counted
LOOKS_ABOVE: Final = 3  # in a row above the owner's limit: a short peak, such as a checkpoint's copy, ends nothing


@dataclass(frozen=True, slots=True)
class KilledLearner:
    """What is known of a learner that ended."""

    returncode: int
    kills_before: int | None  # counted by the system when it started; None where it counts none
    kills_after: int | None
    resident_bytes: int | None  # when last looked at, its workers included
    memory_bytes: int  # of the machine, or of its control group


def killed_for_memory(learner: KilledLearner) -> bool:
    """Whether the system killed it because memory ran out."""
    if learner.returncode != -signal.SIGKILL or learner.resident_bytes is None:
        return False
    share = learner.resident_bytes / learner.memory_bytes
    if learner.kills_before is None or learner.kills_after is None:
        return share >= ASSUMED_SHARE
    return learner.kills_after > learner.kills_before and share >= COUNTED_SHARE


def smaller_plan(ready: LearnerReady, fitted: Fitted | None) -> Fitted | None:
    """Returns what the next learner begins with: half the rows and half the pass of the one that was killed.

    ``ready`` says what it began with, ``fitted`` what it had come to since. Returns None where both are at their floors
    or not known.
    """
    if ready.rows is None or ready.batch_tokens is None or ready.memory_bytes is None:
        return None
    present, kills = Sizes(ready.rows, ready.batch_tokens), 0
    if fitted is not None and fitted.holds_for(ready.model, ready.memory_bytes):
        present, kills = fitted.sizes, fitted.learner_killed  # it keeps the file up to date
    rows, batch_tokens = halved(present.rows, FLOORS.rows), halved(present.batch_tokens, FLOORS.batch_tokens)
    smaller = replace(present, rows=rows, batch_tokens=batch_tokens)
    if smaller == present:
        return None
    return Fitted(
        model=ready.model,
        memory_bytes=ready.memory_bytes,
        rows=smaller.rows,
        batch_tokens=smaller.batch_tokens,
        recompute=smaller.recompute,
        learner_killed=kills + 1,
    )


def counted_kills(control_groups: Path = CONTROL_GROUPS, proc: Path = PROC) -> int | None:
    """Returns how many processes the system has killed for memory; None where it does not count them."""
    files = [*(group / "memory.events" for group in own_control_groups(control_groups, proc)), proc / "vmstat"]
    for path in files:
        try:
            counts = dict(line.split(maxsplit=1) for line in path.read_text().splitlines())
        except (OSError, ValueError):
            continue
        if counts.get("oom_kill", "").strip().isdigit():
            return int(counts["oom_kill"])
    return None


class MemoryKills:
    """Watches the lives of a node's learners."""

    def __init__(self, fitted: Path, control_groups: Path = CONTROL_GROUPS, proc: Path = PROC) -> None:
        """``fitted`` is the path of ``fitted.json``."""
        self._fitted, self._control_groups, self._proc = fitted, control_groups, proc
        self._kills_before: int | None = None
        self._exceeded: str | None = None  # why we killed the learner that lives or has just ended

    def exceeds(self, because: str) -> None:
        """The learner is about to be killed by us, because the node is above the owner's limit."""
        self._exceeded = because

    def learner_starts(self) -> None:
        self._exceeded = None
        self._kills_before = counted_kills(self._control_groups, self._proc)

    def learner_ended(self, returncode: int, resident_bytes: int | None, ready: LearnerReady | None) -> str | None:
        """Writes a smaller plan if the learner was killed for its memory. Returns a note for the user, or None.

        ``ready`` is its own event, None if it never was ready.
        """
        memory_bytes = host_memory_bytes(self._control_groups, self._proc)
        kills_after = counted_kills(self._control_groups, self._proc)
        learner = KilledLearner(returncode, self._kills_before, kills_after, resident_bytes, memory_bytes)
        if self._exceeded is None and not killed_for_memory(learner):
            return None
        amounts = f"{size(resident_bytes or 0)} of {size(memory_bytes)}"
        held = f"The system killed the learner for its memory: it held {amounts}."
        if self._exceeded is not None:
            held = f"The learner was ended for its memory: {self._exceeded}."
        remedy = "`starling fit MODEL` prints what would fit"
        if ready is None:
            return f"{held} It was still loading, for which nothing can be halved: {remedy}."
        smaller = smaller_plan(ready, read_fitted(self._fitted))
        if smaller is None:
            return f"{held} Nothing is left to halve for {printable(ready.model, 200)}: {remedy}."
        try:
            write_fitted(self._fitted, smaller)
        except StorageError as error:
            return f"{held} The next one begins with the same settings: {error}."
        return (
            f"{held} The next one begins with engine.rows = {smaller.rows} and learner.batch_tokens = "
            f"{smaller.batch_tokens}; {remedy}."
        )


class MemoryCap:
    """Sees every ``Usage``. ``max_bytes`` None: no limit."""

    def __init__(self, max_bytes: int | None) -> None:
        self._max_bytes = max_bytes
        self._above = 0

    def exceeded_by(self, usage: Usage) -> str | None:
        """Returns what was exceeded, in words, once the node has been above its limit for ``LOOKS_ABOVE`` looks."""
        total = sum(part or 0 for part in (usage.supervisor_bytes, usage.learner_bytes, usage.swarm_bytes))
        if self._max_bytes is None or usage.learner_bytes is None or total <= self._max_bytes:
            self._above = 0
            return None
        self._above += 1
        if self._above < LOOKS_ABOVE:
            return None
        self._above = 0
        return f"the node held {size(total)}, above machine.max_memory = {size(self._max_bytes)}"
