"""Environments are shared once they have passed their audit here, which runs beside the first rounds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from node.configuration import TasksSection
from node.environments.audit import audit
from node.environments.audited import is_replayable, note_audit
from node.environments.conversation import ConversationTask, single_answers
from node.events import Event, Fault
from node.tasks.task import Task
from protocol.errors import StorageError

log = logging.getLogger(__name__)
CLOSE_SECONDS: Final = 10.0  # an audit takes a few as a rule, and its process ends by itself in any case


class EnvironmentAudits:
    """``shared`` has the tasks of which groups go to other nodes and come from them: single answers from the beginning,
    and each environment once it has passed. ``fault_of`` returns why one has not, or None; it is called on a thread of
    its own, for one environment at a time."""

    def __init__(
        self,
        tasks: Mapping[str, Task],
        fault_of: Callable[[ConversationTask], str | None],
        report: Callable[[Event], None],
        clock: Callable[[], float],
        round_number: Callable[[], int],
    ) -> None:
        self.shared: Final[dict[str, Task]] = single_answers(tasks)
        self._environments = [task for task in tasks.values() if isinstance(task, ConversationTask)]
        self._fault_of, self._report, self._clock, self._round = fault_of, report, clock, round_number
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="audits", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends after the audit that is under way; waits for it for at most ``CLOSE_SECONDS``."""
        self._closing = True
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        for task in self._environments:
            if self._closing:
                return
            fault = self._fault_of(task)
            if fault is None:
                self.shared[task.name] = task
                continue
            detail = f"{task.name} has not passed its audit, and its conversations are not shared: {fault}"
            log.warning("%s", detail)
            now_seconds, kind = self._clock(), "environment_not_shared"
            self._report(Fault(time_seconds=now_seconds, kind=kind, detail=detail, round=self._round(), fatal=False))


def audit_fault(task: ConversationTask, section: TasksSection, records: Path) -> str | None:
    """Returns what an audit of ``task`` finds first, or None. What passed before, by the file of ``records``, is not
    played again; where that file cannot be written, the next start plays it once more."""
    if is_replayable(records, task):
        return None
    found = audit(section, task.name)
    try:
        note_audit(records, found)
    except StorageError as error:
        log.warning("the audit of %s is not kept: %s", task.name, error)
    return next(iter((*found.differs, *found.faults)), None)
