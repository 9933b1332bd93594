"""Facts and judgements of the data directory: its key, its checkpoints, the node that may run in it and its engine."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from node.api.answers import engine_line
from node.api.types import NodeState, NodeStatus
from node.checkpoints.checkpoint_files import read_whole, rounds, set_aside_folders
from node.configuration import Config
from node.doctor.findings import Finding, error, ok, warning
from node.engines.agreement import agreement_line, disagreement
from node.engines.backend_choice import EngineFacts, choose_backend
from node.home import Home
from node.printable import one_line, printable
from protocol.errors import IdentityError, StorageError
from protocol.identity import NodeKey

SET_ASIDE_NAMED = 2
OTHER_USERS = stat.S_IRWXG | stat.S_IRWXO
OTHER_USERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    whole: tuple[Path, ...]  # oldest first
    damaged: tuple[str, ...]  # what is wrong with each of the others
    set_aside: tuple[Path, ...] = ()  # which an earlier start found damaged, and which nothing reads or deletes


@dataclass(frozen=True, slots=True)
class RunningFacts:
    locked: bool  # whether a process of a node uses the directory
    status: NodeStatus | None  # None: no node runs, or it does not answer
    failure: str | None


def checkpoint_facts(home: Home) -> CheckpointFacts:
    """Reads every checkpoint completely. A checkpoint that a running node deletes meanwhile is skipped."""
    whole, damaged = [], []
    for path in rounds(home.checkpoints):
        try:
            read_whole(path)
        except StorageError as failure:
            if path.exists():
                damaged.append(str(failure))
        else:
            whole.append(path)
    return CheckpointFacts(tuple(whole), tuple(damaged), tuple(set_aside_folders(home.checkpoints)))


def judge_key(home: Home) -> Finding:
    """Judges the key file, and who may write into the directory that holds it."""
    directory_mode = stat.S_IMODE(home.path.stat().st_mode) if home.path.exists() else 0
    if directory_mode & OTHER_USERS_WRITE:
        where = f"{home.path} (mode {directory_mode:03o})"
        return error("key", f"other users can write into {where}", f"chmod 700 {home.path}")
    if not home.key.exists():
        if not home.metrics.exists():
            return ok("key", f"the first start makes {home.key}")
        message = f"{home.key} is missing: the next start makes a new identity"
        return warning("key", message, "restore the former key from a backup, if you have one")
    mode = stat.S_IMODE(home.key.stat().st_mode)
    if mode & OTHER_USERS:
        return error("key", f"other users can read {home.key} (mode {mode:03o})", f"chmod 600 {home.key}")
    try:
        return ok("key", f"{NodeKey.load(home.key).peer_id}, mode {mode:03o}")
    except IdentityError as failure:
        remedy = "restore it from a backup, or move it away to start with a new identity"
        return error("key", printable(str(failure), 400), remedy)


def judge_checkpoints(facts: CheckpointFacts) -> Finding:
    newest = facts.whole[-1].name if facts.whole else None
    if not facts.damaged:
        kept = f"; set aside as damaged, and yours to delete: {_names(facts.set_aside)}" if facts.set_aside else ""
        return ok("checkpoints", (f"{len(facts.whole)} whole, newest {newest}" if newest else "none yet") + kept)
    damage = "; ".join(printable(text, 300) for text in facts.damaged)
    if newest is None:
        return error(
            "checkpoints",
            f"none is whole: {damage}",
            "restore one from a backup; otherwise the next start keeps these aside and begins from the weights of "
            "peers of the family (checkpoint.recover_from_peers), or from the first round where there are none",
        )
    return warning(
        "checkpoints",
        f"{damage}; {newest} is whole",
        f"check the disk for errors; the next start keeps the damaged ones aside and goes on from {newest}",
    )


def _names(folders: Sequence[Path]) -> str:
    more = len(folders) - SET_ASIDE_NAMED
    return ", ".join(str(path) for path in folders[:SET_ASIDE_NAMED]) + (f" and {more} more" if more > 0 else "")


def judge_running(facts: RunningFacts) -> Finding:
    if not facts.locked:
        return ok("node", "none runs in this directory; start one with starling up")
    if facts.status is None:
        return warning(
            "node",
            f"a node uses this directory and does not answer: {printable(facts.failure or '', 300)}",
            "it may be starting or stopping; if that lasts, stop it with starling down and see logs/learner.log",
        )
    status = facts.status
    ends = [child.last_end for child in (status.learner_process, status.swarm_process) if child.last_end]
    if status.state is NodeState.RECOVERING:
        return warning(
            "node", f"its learner ended: {_ends_text(ends)}", f"it restarts by itself; see {status.home}/logs"
        )
    if ends:
        return warning("node", f"{status.state}; a process ended before: {_ends_text(ends)}", f"see {status.home}/logs")
    return ok("node", f"{status.state} as {printable(status.name)}")


def judge_engine(config: Config, running: RunningFacts, facts: EngineFacts) -> Finding:
    """Returns which engine a start would use; where a node runs, which one it uses."""
    changed = running.status.engine if running.status is not None else None
    if changed is None:
        choice = choose_backend(config.engine, facts)
        if choice.backend == choice.wanted:
            return ok("engine", f"a start uses {choice.because}")
        remedy = "starling engine install vllm, or set engine.backend to torch or process"
        return warning("engine", f"a start uses the embedded engine: {choice.because}", remedy)
    message, differs = engine_line(changed), None
    done = running.status.round if running.status is not None else None
    if done is not None and done.engine_kl is not None and done.engine_bound is not None:
        message += f" {agreement_line(done.engine_kl, done.engine_gap or 0.0, done.engine_bound)}"
        differs = disagreement(changed.backend, done.engine_kl, done.engine_bound)
    if differs is None and changed.is_as_configured:
        return ok("engine", message)
    return warning("engine", message, differs or "look into HOME/logs/learner.log, and start the node again")


def _ends_text(ends: Sequence[str]) -> str:
    return "; ".join(one_line(end, 300) for end in ends)
