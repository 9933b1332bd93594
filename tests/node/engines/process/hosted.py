"""An engine behind its protocol within the test's process: the real session and engine on one end of a socket pair."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import torch

from node.engines.engine import GenerationProgress, GenerationRequest
from node.engines.process.channel import SocketChannel
from node.engines.process.hosted_torch import HostedTorchEngine
from node.engines.process.process_engine import EngineChange, ProcessEngine
from node.engines.process.remote_engine import Patience
from node.engines.process.serving import EngineSession
from node.engines.torch import TorchEngine
from node.engines.turns import BatchConversations
from node.learner.generation.engine_weights import EngineWeights
from node.policy.policy import Policy
from protocol.streams.engine_batches import HandOver, Sampled, SamplingBatch
from protocol.streams.engine_messages import EngineAnswer, decode_engine_answer

QUICK = Patience(start=20.0, answer=20.0, stall=20.0, poll=0.05, poll_asked=0.002, load=20.0)
Load = Callable[..., Policy]
ASKED = [GenerationRequest([5, 6, 7], 4, 30), GenerationRequest([9, 8], 3, 12)]
Alter = Callable[[EngineAnswer], EngineAnswer]
Sample = Callable[[SamplingBatch, Callable[[int], bool]], list[Sampled]]


class AlteredChannel(SocketChannel):
    """An engine's end of a connection that sends other answers than the engine gives."""

    def __init__(self, connection: socket.socket, alter: Alter) -> None:
        super().__init__(connection)
        self._alter = alter

    def send(self, body: bytes, *, seconds: float | None) -> None:
        super().send(msgspec.msgpack.encode(self._alter(decode_engine_answer(body))), seconds=seconds)


class Hosted(HostedTorchEngine):
    """The real engine; ``samples`` replaces what it samples."""

    samples: Sample | None = None

    def sample(
        self,
        batch: SamplingBatch,
        enough: Callable[[int], bool],
        hand_over: HandOver | None = None,
        conversations: BatchConversations | None = None,
    ) -> list[Sampled]:
        if self.samples is not None:
            return self.samples(batch, enough)
        return super().sample(batch, enough, hand_over, conversations)


class HostedHere:
    """One "process": a thread that serves one connection, until that is closed."""

    def __init__(self, policy: Policy, *, files: Path | None = None, alter: Alter = lambda answer: answer) -> None:
        self.engine = Hosted(policy.separate(), merge_adapters=True)
        self._ours, theirs = socket.socketpair()
        self._theirs = theirs
        self.computing = ThreadPoolExecutor(1)
        self.session = EngineSession(self.engine, AlteredChannel(theirs, alter), files=files, thread=self.computing)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def connect(self, seconds: float) -> SocketChannel:
        self._thread.start()
        return SocketChannel(self._ours)

    def die(self) -> None:
        """Ends the connection from the engine's side, as a process does that is killed."""
        self._theirs.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self.die()
        self._ours.close()
        if self._thread.ident is None:  # nobody connected; otherwise the thread closes its end
            self._theirs.close()

    def end(self) -> None:
        self.kill()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            self.session.serve()
        self._theirs.close()


class Runs:
    """Starts engines one after another, and remembers them and what was told of them."""

    def __init__(self, policy: Policy, *, files: Path | None = None, patience: Patience = QUICK) -> None:
        self.policy, self.files, self.patience = policy, files, patience
        self._stored = policy.separate()  # the model as its files have it, which each process loads
        self.started: list[HostedHere] = []
        self.told: list[EngineChange] = []
        self.slept: list[float] = []
        self.now = 0.0
        self.before_start: Callable[[], None] = lambda: None
        self.on_start: Callable[[HostedHere], None] = lambda run: None
        self.alter: Alter = lambda answer: answer

    def engine(self, rows: int = 16) -> ProcessEngine:
        return ProcessEngine(
            self.policy,
            self._start,
            lambda: TorchEngine(self.policy, rows=rows, seed=0, owns_weights=True),
            rows=rows,
            seed=0,
            files=self.files,
            report=self.told.append,
            patience=self.patience,
            sleep=self.slept.append,
            clock=lambda: self.now,
        )

    def _start(self) -> HostedHere:
        self.before_start()
        run = HostedHere(self._stored, files=self.files, alter=lambda answer: self.alter(answer))
        self.on_start(run)
        self.started.append(run)
        return run

    @property
    def reasons(self) -> list[str]:
        return [change.because for change in self.told if not change.running or change.embedded]


@contextmanager
def learner_with(runs: Runs) -> Iterator[tuple[ProcessEngine, EngineWeights]]:
    """An engine that holds version 1, and what brings it to the learner's weights."""
    engine = runs.engine()
    try:
        weights = EngineWeights(engine)
        weights.load(1, runs.policy.trainable())
        yield engine, weights
    finally:
        engine.close()


def move(policy: Policy, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter.dtype), alpha=0.02)


def embedded(policy: Policy, version: int) -> TorchEngine:
    """The embedded engine, with the policy's weights rounded as those of an engine elsewhere are."""
    engine = TorchEngine(policy, rows=16, seed=0, owns_weights=True)
    engine.load_weights(version, {n: p.detach().bfloat16().to(p.dtype) for n, p in policy.trainable().items()})
    return engine


def assert_equal(one: Sequence[GenerationProgress], other: Sequence[GenerationProgress]) -> None:
    for a, b in zip(one, other, strict=True):
        assert len(a.samples) == len(b.samples) and len(a.partials) == len(b.partials)
        for x, y in zip(a.sequences, b.sequences, strict=True):
            assert x.segments == y.segments
            np.testing.assert_array_equal(x.token_ids, y.token_ids)
            np.testing.assert_allclose(x.logps, y.logps, atol=1e-6)
