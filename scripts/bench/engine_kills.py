"""Kills an engine process in the middle of updates of its weights; prints what it held and sampled afterwards, by hash.

    python -m scripts.bench.engine_kills [--kills 1000] [--started 5] [--json]

Each trial takes one optimizer step, sends the update, and kills the engine (SIGKILL) at a moment drawn evenly from a
span that is adjusted until it ends a little after most updates do. Whatever the moment, ``ProcessEngine`` brings it
back. Then the hash of the weights that the engine holds is computed *by the engine, from its weights*, and compared: it
must be that of the new weights, for which the learner was told "done". Then it samples a batch, which must be the one
that an embedded engine samples from these weights: no round is lost, and none is sampled from others.

The process, its socket, its session and its engine are those of a node. Of the ``--kills``, all start by a fork of this
program, which has imported the libraries already: a start costs a twentieth of a second instead of five. ``--started``
kills more are done to processes that are started as a node starts them.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import Final

import numpy as np
import torch

from node.configuration import LearnerSection, PolicySection
from node.engines.engine import GenerationProgress, GenerationRequest, Sampling, Weights
from node.engines.process.channel import SocketChannel
from node.engines.process.engine_child import EngineChild, connected
from node.engines.process.engine_process import accepted
from node.engines.process.engine_setup import EngineSetup
from node.engines.process.hosted_torch import HostedTorchEngine
from node.engines.process.process_engine import EngineChange, ProcessEngine, StartedEngine
from node.engines.process.serving import EngineSession
from node.engines.torch import TorchEngine
from node.learner.generation.engine_weights import EngineWeights
from node.learner.steps.optimizer import MasterAdamW
from node.policy.policy import Policy
from protocol.errors import EngineLostError
from scripts.bench.common.reporting import Figure, add_json_flag, report

MODEL: Final = PolicySection(model="builtin:wren", device="cpu", dtype="float32", adapter_rank=0, four_bit=False)
FIRST_SPAN_SECONDS: Final = 0.02  # in which the kill comes, after an update was begun; it is adjusted:
LATER, EARLIER = 1.05, 0.8  # so that one kill in five comes after the update
REQUESTS: Final = 2
TOKENS: Final = 6


class ForkedEngine:
    """A process that is a copy of this one and hosts the engine from there on: ``StartedEngine``."""

    def __init__(self, setup: EngineSetup, stored: Policy) -> None:
        self._path = Path(setup.socket)
        self._path.unlink(missing_ok=True)
        self._process = get_context("fork").Process(target=host, args=(setup, stored, os.getpid()))
        self._process.start()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def connect(self, seconds: float) -> SocketChannel:
        return connected(self._path, self.pid, self._ended, seconds)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def end(self) -> None:
        self.kill()

    def _ended(self) -> str | None:
        return None if self._process.exitcode is None else f"exit code {self._process.exitcode}"


def host(setup: EngineSetup, stored: Policy, client: int) -> None:
    channel = SocketChannel(accepted(Path(setup.socket), client))
    engine = HostedTorchEngine(stored, merge_adapters=setup.merge_adapters)
    EngineSession(engine, channel, files=Path(setup.files)).serve()


class KilledEngine(ProcessEngine):
    """Kills its process ``after_seconds`` after an update was begun, once."""

    after_seconds: float | None = None

    def load_weights(self, version: int, weights: Weights) -> None:
        after_seconds, self.after_seconds = self.after_seconds, None
        if after_seconds is not None and isinstance(self._child, ForkedEngine | EngineChild):
            victim = self._child.pid

            def kill(number: int, frame: FrameType | None) -> None:
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)

            signal.signal(signal.SIGALRM, kill)
            signal.setitimer(signal.ITIMER_REAL, after_seconds)
        super().load_weights(version, weights)


@dataclass
class Tally:
    """What was seen after each kill."""

    kills: int = 0
    in_the_update: int = 0  # before the engine had said that it holds the new weights
    new_by_hash: int = 0
    batches_equal: int = 0
    embedded: int = 0  # losses that ended in the embedded engine
    seconds: list[float] = field(default_factory=list)  # from the update's begin to the batch's end

    @property
    def wrong(self) -> int:
        return 2 * self.kills - self.new_by_hash - self.batches_equal + self.embedded


class Bench:
    def __init__(self, folder: Path, seed: int) -> None:
        self.policy = Policy.load(MODEL)
        self.stored = self.policy.separate()
        self.setup = EngineSetup(
            socket=str(folder / "engine.sock"),
            files=str(folder),
            policy=MODEL.model_dump(mode="json"),
            seed=0,
            merge_adapters=True,
            log_level="ERROR",
        )
        self._near = TorchEngine(self.policy, rows=8, seed=0, owns_weights=True)
        self._optimizer = MasterAdamW(self.policy.trainable(), LearnerSection(learning_rate=1e-4))
        self._random = random.Random(seed)
        self._generator = torch.Generator().manual_seed(seed)
        self._version = 0
        self._most_seconds = FIRST_SPAN_SECONDS
        self._requests = [
            GenerationRequest(self.policy.tokens.prompt_ids(f"{i}+{i}="), 2, TOKENS) for i in range(REQUESTS)
        ]

    def run(self, kills: int, seconds: float, start: Callable[[], StartedEngine]) -> Tally:
        """Kills as often as asked, or as ``seconds`` allow."""
        until = time.monotonic() + seconds
        tally, changes = Tally(), list[EngineChange]()
        engine = KilledEngine(
            self.policy,
            start,
            lambda: TorchEngine(self.policy, rows=8, seed=0, owns_weights=True),
            rows=8,
            seed=0,
            files=Path(self.setup.files),
            report=changes.append,
            sleep=lambda seconds: None,
        )
        weights = EngineWeights(engine)
        try:
            weights.load(self._version, self.policy.trainable())
            engine.advance(self._requests, Sampling(seed=0))
            while tally.kills < kills and not tally.embedded and time.monotonic() < until:
                self._trial(engine, weights, tally)
                if tally.kills % 50 == 0:
                    print(f"{tally.kills} kills, {tally.wrong} wrong", file=sys.stderr, flush=True)
                tally.embedded += changes[-1].embedded
        finally:
            engine.close()
        return tally

    def _trial(self, engine: KilledEngine, weights: EngineWeights, tally: Tally) -> None:
        self._step()
        tally.kills += 1
        before = engine.losses
        engine.after_seconds = self._random.uniform(1e-6, self._most_seconds)
        began = time.perf_counter()
        weights.load(self._version, self.policy.trainable())
        in_the_update = engine.losses > before
        self._most_seconds *= LATER if in_the_update else EARLIER
        sampling = Sampling(seed=self._version)
        sampled = engine.advance(self._requests, sampling)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        tally.seconds.append(time.perf_counter() - began)
        tally.in_the_update += in_the_update
        whole = weights.whole()
        try:
            held = engine.measured_weights()
        except EngineLostError:  # killed after the batch
            sampled = engine.advance(self._requests, sampling)
            held = engine.measured_weights()
        tally.new_by_hash += held == (self._version, whole.target)
        self._near.load_weights(self._version, whole)
        tally.batches_equal += equal(sampled, self._near.advance(self._requests, sampling))

    def _step(self) -> None:
        for parameter in self.policy.trainable().values():
            parameter.grad = torch.randn(parameter.shape, generator=self._generator)
        self._optimizer.step()
        self._version += 1


def equal(one: Sequence[GenerationProgress], other: Sequence[GenerationProgress]) -> bool:
    pairs = [pair for a, b in zip(one, other, strict=True) for pair in zip(a.samples, b.samples, strict=True)]
    return len(pairs) == sum(len(a.samples) for a in one) and all(
        x.segments == y.segments
        and np.array_equal(x.token_ids, y.token_ids)
        and np.allclose(x.logps, y.logps, atol=1e-5)
        for x, y in pairs
    )


def figures_of(name: str, tally: Tally) -> list[Figure]:
    milliseconds = 1e3 * statistics.median(tally.seconds)
    return [
        Figure(f"{name}: kills", tally.kills, "", "higher"),
        Figure(f"{name}: of these before the engine had taken the update", tally.in_the_update, "", "higher"),
        Figure(f"{name}: afterwards exactly the new weights, by hash", tally.new_by_hash, "", "higher", "every one"),
        Figure(f"{name}: next batch as by an engine left alone", tally.batches_equal, "", "higher", "every one"),
        Figure(f"{name}: ended in the embedded engine", tally.embedded, "", "lower", "0"),
        Figure(f"{name}: update, kill, start, weights, batch", milliseconds, "ms", "lower"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="of processes that were forked")
    parser.add_argument("--started", type=int, default=5, help="kills of processes that were started as a node does")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no further one is forked")
    parser.add_argument("--seed", type=int, default=0)
    add_json_flag(parser)
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)  # each kill is a warning
    torch.set_num_threads(1)  # also because a process with threads cannot be forked
    tallies: dict[str, Tally] = {}
    with tempfile.TemporaryDirectory(prefix="engine-kills-") as folder:
        bench = Bench(Path(folder), options.seed)
        if options.kills:
            tallies["forked"] = bench.run(
                options.kills, options.seconds, lambda: ForkedEngine(bench.setup, bench.stored)
            )
        if options.started:
            tallies["started"] = bench.run(options.started, math.inf, lambda: EngineChild(bench.setup))
    figures = [figure for name, tally in tallies.items() for figure in figures_of(name, tally)]
    report("engine_kills", figures, as_json=options.json)
    return 1 if any(tally.wrong for tally in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
