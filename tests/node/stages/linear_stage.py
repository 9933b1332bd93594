"""A stage whose layers are products of matrices: real gradients and a real memory of rows, without a model."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from node.engines.process.channel import SocketChannel
from node.stages.link import Answer, Call, Inputs
from node.stages.remote_stage import RemoteStage, StageExpected, StagePatience
from node.stages.serving import StageSession
from protocol.errors import ConfigurationError, MalformedError
from protocol.streams import stage_messages as messages
from protocol.streams.stage_messages import StageRequest

FAMILY = bytes(range(16))
LAYERS, WIDTH = 6, 8
WELCOME = messages.StageWelcome(1, 2, FAMILY, LAYERS, WIDTH, 10**9, 1e9, 2e9)
EXPECTED = StageExpected(FAMILY, LAYERS, WIDTH, torch.float32)
QUICK = StagePatience(start=20.0, silence=20.0, answer=20.0)


class LinearStage:
    """A layer adds ``hidden @ A @ B`` to what enters it. Rows of a prompt also get the prompt's sum, and a row that is
    sampled the sum of what it read before."""

    def __init__(self) -> None:
        self.held = range(0)
        self.trained: dict[str, Tensor] = {}
        self._calls: dict[Call, tuple[Tensor, Tensor]] = {}
        self._prompts: dict[int, Tensor] = {}
        self.release()
        self.fails: Exception | None = None
        self.may_compute = threading.Event()
        self.may_compute.set()

    def factors(self) -> dict[str, tuple[int, ...]]:
        shapes = {"A": (WIDTH, 2), "B": (2, WIDTH)}
        return {f"{layer}.{name}": shape for layer in self.held for name, shape in shapes.items()}

    def hold(self, layers: range) -> None:
        if 5 in layers:
            raise ConfigurationError("layer 5 is not in this machine's files")
        self.held, self.trained = layers, {}

    def load(self, factors: Mapping[str, Tensor]) -> None:
        self.trained = {name: each.clone().requires_grad_() for name, each in factors.items()}

    def forward(self, call: Call, hidden: Tensor, inputs: Inputs, train: bool) -> Answer:
        self.may_compute.wait()
        if self.fails is not None:
            raise self.fails
        entered = hidden.detach().requires_grad_()
        left = self._through(entered)
        if inputs.prompt_of is None:
            self._prompts[call.micro_batch] = left.sum(1).detach()
        else:
            left = left + self._prompts[call.micro_batch][inputs.prompt_of][:, None]
        if inputs.mask is not None:
            left = left * inputs.mask[:, inputs.prompt_columns :, None]
        if inputs.positions is not None:
            left = left + inputs.positions[..., None]
        if train:
            self._calls[call] = entered, left
        return left.detach

    def backward(self, call: Call, gradient: Tensor) -> Answer:
        if call not in self._calls:
            raise MalformedError(f"{call} is not under way")
        entered, left = self._calls.pop(call)
        left.backward(gradient)
        found = entered.grad
        assert found is not None
        return found.clone

    def gradients(self) -> dict[str, Tensor]:
        found = {name: each.grad for name, each in self.trained.items() if each.grad is not None}
        for each in self.trained.values():
            each.grad = None
        return found

    def forget(self) -> None:
        self._calls.clear()
        for each in self.trained.values():
            each.grad = None

    def begin(self, batch: int = 0) -> None:
        self.rows[batch] = torch.zeros(0, WIDTH)

    def prefill(self, hidden: Tensor, padding: Tensor, batch: int = 0) -> Tensor:
        left = self._through(hidden).detach()
        seen = torch.arange(hidden.shape[1]) >= padding[:, None]
        self._prefilled[batch] = (left * seen[..., None]).sum(1)
        return left

    def join(self, which: Sequence[int], batch: int = 0) -> None:
        self.rows[batch] = torch.cat([self.rows[batch], self._prefilled[batch][list(which)]])

    def leave(self, holes: Sequence[int], tails: Sequence[int], rows: int, batch: int = 0) -> None:
        self.rows[batch][list(holes)] = self.rows[batch][list(tails)]
        self.rows[batch] = self.rows[batch][:rows]

    def step(self, hidden: Tensor, batch: int = 0) -> Tensor:
        left = self._through(hidden).detach() + self.rows[batch][:, None]
        self.rows[batch] = self.rows[batch] + left[:, 0]
        return left

    def release(self) -> None:
        self.rows, self._prefilled = dict[int, Tensor](), dict[int, Tensor]()  # by batch

    def close(self) -> None:
        """Nothing is open."""

    def _through(self, hidden: Tensor) -> Tensor:
        for layer in self.held:
            hidden = hidden + hidden @ self.trained[f"{layer}.A"] @ self.trained[f"{layer}.B"]
        return hidden


class StageHere:
    """A stage's session on a thread of its own, at one end of a pair of sockets."""

    def __init__(
        self,
        channel_of: Any = SocketChannel,
        beat_seconds: float = 0.05,
        welcome: messages.StageWelcome = WELCOME,
        owners_channel_of: Any = SocketChannel,
    ) -> None:
        ours, self._theirs = socket.socketpair()
        self.channel = owners_channel_of(ours)
        self.stage, self.told, self.raised = LinearStage(), list[StageRequest | messages.StageBeat](), list[Exception]()
        self.session = StageSession(
            self.stage,
            channel_of(self._theirs),
            welcome,
            told=self.told.append,
            beat_seconds=beat_seconds,
        )
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def link(self, expected: StageExpected = EXPECTED, patience: StagePatience = QUICK) -> RemoteStage:
        return RemoteStage(self.channel, expected, patience)

    def die(self) -> None:
        """As a process does that is killed."""
        with contextlib.suppress(OSError):
            self._theirs.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        self.stage.may_compute.set()
        self.channel.close()
        self.die()
        self.thread.join()

    def _serve(self) -> None:
        try:
            self.session.serve()
        except Exception as error:  # noqa: BLE001  the test judges it
            self.raised.append(error)


@contextmanager
def stage_here(**settings: Any) -> Iterator[StageHere]:
    here = StageHere(**settings)
    try:
        yield here
    finally:
        here.end()


def factors_of(layers: range, seed: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    stage = LinearStage()
    stage.hold(layers)
    return {name: torch.randn(shape, generator=generator) for name, shape in stage.factors().items()}


def ready(link: Any, layers: range = range(1, 4)) -> None:
    """``link`` holds layers and their factors."""
    link.hold(layers)
    link.load(factors_of(layers))
