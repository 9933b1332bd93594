"""Which environments passed their audit on this machine, in ``HOME/audits.json``: a node shares conversations of these
alone, since a peer takes an episode that plays differently there for a lie.

What is built in counts as audited, since the project's tests do that. A record counts for the configuration and the
version of Python that were audited. A file that is damaged, or cannot be read, counts as none.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Final

import msgspec

from node.environments.audit import Audit
from node.environments.built_in.all import CONVERSATIONS
from node.environments.conversation import ConversationTask
from node.tasks.task import Task
from swarm.atomic_file import write_atomically

MOST_RECORDS: Final = 1_000  # the oldest leave first
_BUILT_IN: Final = frozenset(task.config_hash for task in CONVERSATIONS)


class AuditRecord(msgspec.Struct, frozen=True):
    environment: str
    passed: bool
    python: str


def note_audit(path: Path, found: Audit) -> None:
    """Writes what ``found`` says into the file at ``path``. Raises ``StorageError``."""
    records = _records(path)
    records.pop(found.config_hash, None)
    records[found.config_hash] = AuditRecord(found.environment, found.passed, platform.python_version())
    newest = dict(list(records.items())[-MOST_RECORDS:])
    write_atomically(path, msgspec.json.format(msgspec.json.encode(newest)))


def is_replayable(path: Path, task: Task) -> bool:
    """Returns whether a peer that has ``task`` can be expected to find what this node found: in a question with one
    answer, in a conversation that is built in, and in one that passed its audit by the file at ``path``."""
    if not isinstance(task, ConversationTask) or task.config_hash in _BUILT_IN:
        return True
    record = _records(path).get(task.config_hash.hex())
    return record is not None and record.passed and record.python == platform.python_version()


def _records(path: Path) -> dict[str, AuditRecord]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, AuditRecord])
    except (OSError, ValueError):  # damaged is msgspec's error, or Python's for what is no UTF-8
        return {}
