"""A learner without torch: every round it shares a small group, fetches and judges others', and saves its round.

It speaks the learner's protocol (``node/events``) as the real one does. Its checkpoint is one small file, written in
the order of ``node/checkpoints/checkpoints.py``: under a temporary name, flushed to disk, renamed, the folder flushed;
then it is reported.
"""

# ruff: noqa: E402  functions are replaced before anything keeps a reference to them
from __future__ import annotations

from scripts.chaos import conditions

conditions.install()

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from node.events import (
    PAUSE_LINE,
    STOP_LINE,
    CheckpointSaved,
    Event,
    Fault,
    LearnerReady,
    LearnerStart,
    Phases,
    RoundDone,
    Stopped,
    encode_event,
)
from protocol.errors import StarlingError, StorageError, TransportError
from protocol.messages import Heartbeat
from protocol.rollouts import check_against_advert, decode_group
from scripts.bench.common.swarm_processes import group
from scripts.chaos.command_lines import CommandLines
from swarm import api
from swarm.client import SwarmClient

ROUND_SECONDS_VARIABLE: Final = "CHAOS_ROUND_SECONDS"
CHECKPOINT: Final = "chaos-checkpoint.json"
CALL_SECONDS: Final = 5.0  # to wait for the swarm process, which may be stopped
FETCH_SECONDS: Final = 2.0
FETCHED_A_ROUND: Final = 2
COMPLETIONS: Final = 2
CHARACTERS: Final = 200
TASK: Final = "fraction_simplification"
FAMILY: Final = bytes(16)
WRONG_GROUP: Final = "wrong group"  # the kind of a fault: a peer's group is not what it announced


def saved_round(home: Path) -> int:
    """Returns the rounds in the checkpoint of ``home``; 0 without one. Raises ``ValueError`` for a damaged one."""
    try:
        content = json.loads((home / CHECKPOINT).read_text())
    except FileNotFoundError:
        return 0
    rounds = int(content["round"])
    if content["sha256"] != _digest(rounds):
        raise ValueError(f"the checkpoint in {home} is damaged: {content}")
    return rounds


def save_round(home: Path, rounds: int) -> int:
    """Writes the checkpoint, flushed to disk; returns its bytes. Raises ``OSError``; the one before is then whole."""
    final, unfinished = home / CHECKPOINT, home / f"{CHECKPOINT}.unfinished"
    content = json.dumps({"round": rounds, "sha256": _digest(rounds)}).encode()
    with unfinished.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(final)
    folder = os.open(home, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return len(content)


class StubLearner:
    def __init__(self, start: LearnerStart) -> None:
        self._home = Path(start.home)
        self._name = str(start.config["name"])
        self._swarm = SwarmClient(self._home / "swarm.sock", timeout_seconds=CALL_SECONDS)
        self._random = Random()
        self._round = self._saved = saved_round(self._home)
        self._cursor = self._shared = self._used = 0

    def run(self, commands: CommandLines, round_seconds: float) -> None:
        """Runs rounds until a line or the end of ``commands``, then saves."""
        _report(self._ready())
        stop = None
        while stop is None:
            line = commands.line(round_seconds)
            if line is None:
                self._learn(round_seconds)
            elif line in (b"", STOP_LINE.encode(), PAUSE_LINE.encode()):
                stop = {b"": "supervisor gone", PAUSE_LINE.encode(): "paused"}.get(line, "asked")
        self._save()
        _report(
            Stopped(
                time_seconds=time.time(),
                round=self._round,
                because=stop,
                tokens_generated_total=self._round * CHARACTERS,
                checkpoint=str(self._home / CHECKPOINT),
            )
        )

    def _learn(self, seconds: float) -> None:
        self._round += 1
        used = shared = 0
        alone: str | None = None
        try:
            self._swarm.beat(self._heartbeat())
            used = self._use_foreign()
            self._swarm.share([group(self._random, CHARACTERS, COMPLETIONS, self._round)])
            shared = 1
        except StorageError as error:
            self._fault(error.reason, str(error))
        except TransportError as error:  # being started again, or stopped
            alone = str(error)
        self._shared, self._used = self._shared + shared, self._used + used
        _report(self._round_done(seconds, used, shared, alone))
        self._save()

    def _use_foreign(self) -> int:
        """Fetches some of the newest groups and judges them; returns how many were whole and as announced."""
        seen = self._swarm.seen_groups(self._cursor, 256)
        if not seen:
            return 0
        self._cursor = seen[-1].cursor
        chosen = seen[-FETCHED_A_ROUND:]
        wanted = [api.Wanted(each.advert.blob, each.advert.size, (each.peer,)) for each in chosen]
        used = 0
        for each, fetched in zip(chosen, self._swarm.fetch(wanted, deadline_seconds=FETCH_SECONDS), strict=True):
            if not fetched.is_here:
                continue
            try:
                theirs = decode_group(fetched.read())
                check_against_advert(theirs, each.advert)
            except FileNotFoundError:
                continue  # evicted since
            except StarlingError as error:
                self._fault(WRONG_GROUP, f"{each.peer}: {error}")
                continue
            self._swarm.judge(each.peer, each.advert.blob, api.Judgement.USED)
            used += 1
        return used

    def _save(self) -> None:
        began = time.monotonic()
        try:
            size = save_round(self._home, self._round)
        except OSError as error:
            self._fault("checkpoint", f"the checkpoint of round {self._round} was not written: {error.strerror}")
            return
        self._saved = self._round
        _report(
            CheckpointSaved(
                time_seconds=time.time(),
                round=self._round,
                path=str(self._home / CHECKPOINT),
                size_bytes=size,
                seconds=time.monotonic() - began,
            )
        )

    def _fault(self, kind: str, detail: str) -> None:
        _report(Fault(time_seconds=time.time(), kind=kind, detail=detail, round=self._round, fatal=False))

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(
            self._name, "starling", "stub", FAMILY, FAMILY, self._round, self._round, "learning", 1.0,
            self._shared, self._used, (),
        )  # fmt: skip

    def _ready(self) -> LearnerReady:
        return LearnerReady(
            time_seconds=time.time(),
            model="stub",
            family=FAMILY.hex(),
            tokenizer=FAMILY.hex(),
            parameters=1,
            trainable_parameters=1,
            device="cpu",
            dtype="float32",
            tasks=(TASK,),
            round=self._round,
            checkpoint=str(self._home / CHECKPOINT) if self._saved else None,
            seconds=0.0,
        )

    def _round_done(self, seconds: float, used: int, shared: int, alone: str | None) -> RoundDone:
        return RoundDone(
            time_seconds=time.time(),
            round=self._round,
            policy_version=self._round,
            seconds=seconds,
            phases=Phases(allocate=0.0, generate=seconds, collect=0.0, score=0.0, learn=0.0, publish=0.0),
            reward=0.5,
            reward_by_task={TASK: 0.5},
            success_by_task={TASK: 0.5},
            own_groups=1,
            own_groups_informative=1,
            foreign_groups_used=used,
            foreign_rejected={},
            groups_offered=shared,
            groups_offered_total=self._shared,
            foreign_groups_used_total=self._used,
            tokens_generated=CHARACTERS,
            tokens_generated_total=self._round * CHARACTERS,
            tokens_trained=CHARACTERS,
            tokens_per_second=CHARACTERS / seconds,
            bytes_fetched=0,
            scoring_failures=0,
            loss=None,
            gradient_norm=None,
            steps_skipped_total=0,
            effective_sample_share=None,
            clip_share=None,
            floor_share=None,
            filter_share=None,
            multi_token_span_share=None,
            entropy=None,
            divergence_by_peer={},
            alone_because=alone,
        )


def _digest(rounds: int) -> str:
    return hashlib.sha256(b"%d" % rounds).hexdigest()


def _report(event: Event) -> None:
    try:
        sys.stdout.buffer.write(encode_event(event) + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the supervisor is gone: the end of input ends this process


def main() -> None:
    commands = CommandLines()
    settings = commands.line(None)
    if settings:
        start = msgspec.json.decode(settings, type=LearnerStart)
        StubLearner(start).run(commands, float(os.environ[ROUND_SECONDS_VARIABLE]))


if __name__ == "__main__":
    main()
