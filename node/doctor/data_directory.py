"""The data directory: its key, its checkpoints, the node that may run in it. Facts above, judgements below them."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from node.api.types import NodeState, NodeStatus
from node.checkpoints.checkpoint_files import read_whole, rounds
from node.doctor.findings import Finding, error, ok, warning
from node.home import Home
from node.printable import printable
from protocol.errors import IdentityError, StorageError
from protocol.identity import NodeKey

OTHERS = stat.S_IRWXG | stat.S_IRWXO
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class KeyFacts:
    path: Path
    mode: int | None  # permission bits; None: there is no key
    peer: str | None  # None: it cannot be read as a key
    failure: str | None  # in words, with the remedy
    used_before: bool  # a node ran in this directory
    directory_mode: int | None  # None: there is no directory yet


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    whole: tuple[Path, ...]  # oldest first
    damaged: tuple[str, ...]  # what is wrong with each that is not


@dataclass(frozen=True, slots=True)
class RunningFacts:
    locked: bool  # some process of a node has the directory
    status: NodeStatus | None  # None: it does not answer
    failure: str | None


def key_facts(home: Home) -> KeyFacts:
    directory = stat.S_IMODE(home.path.stat().st_mode) if home.path.exists() else None
    used = home.metrics.exists()
    if not home.key.exists():
        return KeyFacts(home.key, None, None, None, used, directory)
    mode = stat.S_IMODE(home.key.stat().st_mode)
    try:
        return KeyFacts(home.key, mode, NodeKey.load(home.key).peer_id, None, used, directory)
    except IdentityError as failure:
        return KeyFacts(home.key, mode, None, str(failure), used, directory)


def checkpoint_facts(home: Home) -> CheckpointFacts:
    """Reads every checkpoint through; a running node may meanwhile delete the oldest, which then counts nothing."""
    whole, damaged = [], []
    for path in rounds(home.checkpoints):
        try:
            read_whole(path)
        except StorageError as failure:
            if path.exists():
                damaged.append(str(failure))
        else:
            whole.append(path)
    return CheckpointFacts(tuple(whole), tuple(damaged))


def judge_key(facts: KeyFacts) -> Finding:
    if facts.directory_mode is not None and facts.directory_mode & OTHERS_WRITE:
        return error(
            "key",
            f"others may write into {facts.path.parent} (mode {facts.directory_mode:03o})",
            f"chmod 700 {facts.path.parent}",
        )
    if facts.mode is None and facts.used_before:
        return warning(
            "key",
            f"{facts.path} is gone: the next start makes a new identity",
            "put the former key back there, if you have it",
        )
    if facts.mode is None:
        return ok("key", f"{facts.path} is made by the first start")
    if facts.mode & OTHERS:
        return error("key", f"others may read {facts.path} (mode {facts.mode:03o})", f"chmod 600 {facts.path}")
    if facts.peer is None:
        return error(
            "key", printable(facts.failure or "unreadable", 400), "restore it, or move it away to start as somebody new"
        )
    return ok("key", f"{facts.peer}, mode {facts.mode:03o}")


def judge_checkpoints(facts: CheckpointFacts) -> Finding:
    newest = facts.whole[-1].name if facts.whole else None
    if not facts.damaged:
        return ok("checkpoints", f"{len(facts.whole)} whole, newest {newest}" if newest else "none yet")
    said = "; ".join(printable(text, 300) for text in facts.damaged)
    if newest is None:
        return error("checkpoints", f"none is whole: {said}", "restore one from a backup; else the node starts anew")
    return warning(
        "checkpoints",
        f"{said}; {newest} is whole",
        "look for a failing disk; the node passes damaged checkpoints over",
    )


def judge_running(facts: RunningFacts) -> Finding:
    if not facts.locked:
        return ok("node", "none runs in this directory; start one with: starling up")
    if facts.status is None:
        return warning(
            "node",
            f"one has this directory and does not answer: {printable(facts.failure or '', 300)}",
            "it may be starting or ending; if that lasts, end it with starling down and see logs/learner.log",
        )
    status = facts.status
    ends = [child.last_end for child in (status.learner_process, status.swarm_process) if child.last_end]
    if status.state is NodeState.RECOVERING:
        return warning(
            "node", f"its learner ended: {_told(ends)}", f"it starts again by itself; see {status.home}/logs"
        )
    if ends:
        return warning("node", f"{status.state}; a process ended before: {_told(ends)}", f"see {status.home}/logs")
    return ok("node", f"{status.state} as {printable(status.name)}")


def _told(ends: Sequence[str]) -> str:
    return "; ".join(printable(end, 300) for end in ends)
