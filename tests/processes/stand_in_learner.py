"""A learner that learns nothing, for tests in which training is not the subject.

It speaks the learner's protocol (``node/events.py``): its settings on standard input, its events on standard output,
its heartbeat to the swarm process, checkpoints after which the next start continues, and an orderly end. It starts in a
fifth of a second, where the real one imports torch for three. The supervisor and the swarm process around it are real.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from node.events import (
    PAUSE_LINE,
    STOP_LINE,
    CheckpointSaved,
    Event,
    LearnerReady,
    LearnerStart,
    Loading,
    Stopped,
    encode_event,
)
from node.policy.model_name import model_name
from node.printable import printable
from protocol.errors import TransportError
from protocol.messages import Heartbeat
from scripts.chaos.command_lines import CommandLines
from swarm.client import SwarmClient
from tests.factories import round_done

ROUND_SECONDS = 0.1
FAMILY, TOKENIZER = bytes(16), bytes(range(16))
TASK, TOKENS = "spell_backward", 100


def report(event: Event) -> None:
    sys.stdout.buffer.write(encode_event(event) + b"\n")
    sys.stdout.buffer.flush()


class Learner:
    def __init__(self, start: LearnerStart) -> None:
        self._config = start.config
        self._swarm = SwarmClient(Path(start.home) / "swarm.sock")
        self._saved = Path(start.home) / "stand-in-learner"
        self._name = model_name(self._config["policy"]["model"])
        self._round = int(self._saved.read_text()) if self._saved.exists() else 0
        self._newest = str(self._saved) if self._saved.exists() else None

    def run(self, commands: CommandLines) -> None:
        report(Loading(time_seconds=time.time(), what="policy", seconds=0.1))
        report(self._ready())
        stop = None
        while stop is None and (line := commands.line(ROUND_SECONDS)) != STOP_LINE.encode():
            stop = None if line is None else {b"": "supervisor gone", PAUSE_LINE.encode(): "paused"}.get(line)
            self._learn()
        self._save()
        report(
            Stopped(
                time_seconds=time.time(),
                round=self._round,
                because=stop or "asked",
                tokens_generated_total=self._round * TOKENS,
                checkpoint=self._newest,
            )
        )

    def _ready(self) -> LearnerReady:
        return LearnerReady(
            time_seconds=time.time(),
            model=self._config["policy"]["model"],
            name=self._name,
            family=FAMILY.hex(),
            tokenizer=TOKENIZER.hex(),
            parameters=1,
            trainable_parameters=1,
            device="cpu",
            dtype="float32",
            tasks=(TASK,),
            round=self._round,
            checkpoint=self._newest,
            seconds=0.1,
        )

    def _learn(self) -> None:
        self._round += 1
        report(
            round_done(
                self._round,
                time_seconds=time.time(),
                reward_by_task={TASK: 0.25},
                completions_by_task={TASK: 8},
                success_by_task={TASK: 0.25},
                tokens_generated=TOKENS,
                tokens_generated_total=self._round * TOKENS,
                alone_because="no peer is connected",
            )
        )
        with suppress(TransportError):  # not up yet, or being started again
            self._swarm.beat(self._heartbeat())
        if self._round % self._config["checkpoint"]["every_rounds"] == 0:
            self._save()

    def _heartbeat(self) -> Heartbeat:
        name, model = (printable(text)[:64] for text in (self._config["name"], self._name))
        return Heartbeat(
            name, "starling", model, FAMILY, TOKENIZER, self._round, self._round, "learning", 1000.0, 0, 0, ()
        )

    def _save(self) -> None:
        self._saved.write_text(str(self._round))
        self._newest = str(self._saved)
        report(
            CheckpointSaved(time_seconds=time.time(), round=self._round, path=self._newest, size_bytes=0, seconds=0.0)
        )


if __name__ == "__main__":
    commands = CommandLines()
    settings = commands.line(None)
    if settings:
        Learner(msgspec.json.decode(settings, type=LearnerStart)).run(commands)
