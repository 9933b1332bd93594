"""``StageLink`` over a ``Channel``: a stage in another process or on another machine, from its welcome on."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, TypeVar

import torch
from torch import Tensor

from node.engines.process.channel import Channel
from node.fit.stages.plan import LinkSpeed, Pace
from node.printable import printable
from node.stages.link import Answer, Call, Inputs, StageFacts
from node.stages.message_work import process_seconds, thread_seconds
from node.stages.tensor_frames import receive_message, send_message, shape_of
from protocol import limits
from protocol.errors import MalformedError, ProtocolError, StageLostError, TransportError, VersionError
from protocol.streams import stage_messages as messages
from protocol.streams.stage_messages import StageAnswer, StageRequest

A = TypeVar("A", bound=StageAnswer)


@dataclass(frozen=True, slots=True)
class StagePatience:
    """Seconds that a stage may take."""

    start: float = 1800.0  # until its welcome: a model may come from the hub first
    silence: float = 30.0  # between two frames, of which it sends one every ``BEAT_SECONDS`` at least
    answer: float = 1800.0  # for one request, while it says that it lives


@dataclass(frozen=True, slots=True)
class StageExpected:
    """What the model of a stage must be."""

    family: bytes
    layers: int
    width: int
    dtype: torch.dtype  # of hidden states


USUAL_PATIENCE: Final = StagePatience()
LEAST_MINOR: Final = 2  # of the protocol: before, a stage knew no probes, and one batch of rows
REFUSAL_SECONDS: Final = 1.0
DELAY_PROBES: Final = 5
LEAST_PROBE: Final = 1 << 14  # float32 numbers
MOST_PROBE: Final = 1 << 22
PROBE_SECONDS: Final = 0.2  # of one that measures a rate, after the delay
LEAST_SECONDS: Final = 1e-6


class _Waiting:
    """A request whose answer has not come."""

    __slots__ = ("answer", "come", "is_told", "since_seconds", "tensors")

    def __init__(self, since_seconds: float, is_told: bool) -> None:
        self.since_seconds = since_seconds
        self.is_told = is_told  # nobody waits for the answer, which is ``StageDone``
        self.come = threading.Event()
        self.answer: StageAnswer | None = None  # None once it has come: the stage is lost
        self.tensors: list[Tensor] = []


class RemoteStage:
    """Guarantees of ``StageLink``. ``lost_because`` says why it can be used no more, once it cannot."""

    def __init__(
        self,
        channel: Channel,
        expected: StageExpected,
        patience: StagePatience = USUAL_PATIENCE,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ``StageLostError`` unless the stage has the model expected."""
        self._channel, self._expected, self._patience, self._clock = channel, expected, patience, clock
        self._sending = threading.Lock()  # the order of requests is that of those that wait
        self._state = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._factors: dict[str, messages.TensorShape] = {}
        self.lost_because: str | None = None
        self._ran_out = False
        self.sent_bytes = self.received_bytes = 0
        self._beat = messages.StageBeat(0.0, 0)  # the newest
        welcome = self._welcomed()
        self._reader = threading.Thread(target=self._read, name="stage", daemon=True)
        self._reader.start()
        pace = Pace(welcome.flops_a_second, welcome.bytes_a_second)
        self.facts = StageFacts(welcome.memory_bytes, pace, self._probed())

    @property
    def computed_tokens(self) -> int:
        return self._beat.computed_tokens

    @property
    def computed_seconds(self) -> float:
        return self._beat.computed_seconds

    def hold(self, layers: range) -> None:
        self._ask(messages.HoldLayers(layers.start, layers.stop), [], messages.StageDone)
        self._factors = {}

    def load(self, factors: Mapping[str, Tensor]) -> None:
        shapes = {name: shape_of(each) for name, each in factors.items()}
        self._ask(messages.LoadFactors(tuple(shapes), tuple(shapes.values())), [*factors.values()], messages.StageDone)
        self._factors = shapes

    def forward(self, call: Call, hidden: Tensor, inputs: Inputs, train: bool) -> Answer:
        given = [inputs.mask, inputs.positions, inputs.prompt_of]
        request = messages.PassForward(
            call.micro_batch,
            call.number,
            train,
            inputs.recompute,
            inputs.chunk_tokens,
            inputs.prompt_columns,
            shape_of(hidden),
            *(None if each is None else shape_of(each) for each in given),
        )
        return self._hidden_asked(request, [hidden, *(each for each in given if each is not None)])

    def backward(self, call: Call, gradient: Tensor) -> Answer:
        return self._hidden_asked(messages.PassBackward(call.micro_batch, call.number, shape_of(gradient)), [gradient])

    def gradients(self) -> dict[str, Tensor]:
        answer, tensors = self._ask(messages.AskGradients(), [], messages.StageGradients)
        for name, shape in zip(answer.names, answer.gradients, strict=True):
            if self._factors.get(name) != shape:
                self._lose(f"it sent a gradient of {printable(name)} in {shape}, which it was not given so")
        return dict(zip(answer.names, tensors, strict=True))

    def forget(self) -> None:
        self._ask(messages.ForgetCalls(), [], messages.StageDone)

    def begin(self, batch: int = 0) -> None:
        self._sent(messages.BeginRows(batch), [], is_told=True)

    def prefill(self, hidden: Tensor, padding: Tensor, batch: int = 0) -> Tensor:
        return self._hidden(messages.PrefillPrompts(shape_of(hidden), shape_of(padding), batch), [hidden, padding])

    def join(self, which: Sequence[int], batch: int = 0) -> None:
        self._sent(messages.JoinRows(tuple(which), batch), [], is_told=True)

    def leave(self, holes: Sequence[int], tails: Sequence[int], rows: int, batch: int = 0) -> None:
        self._sent(messages.LeaveRows(tuple(holes), tuple(tails), rows, batch), [], is_told=True)

    def step(self, hidden: Tensor, batch: int = 0) -> Tensor:
        return self._hidden(messages.StepRows(shape_of(hidden), batch), [hidden])

    def release(self) -> None:
        self._ask(messages.ReleaseRows(), [], messages.StageDone)

    def close(self) -> None:
        self._end("closed here")

    def _welcomed(self) -> messages.StageWelcome:
        hello = messages.StageHello(messages.STAGE_MAJOR, messages.STAGE_MINOR)
        try:
            self.sent_bytes += send_message(self._channel, hello, [], seconds=self._patience.silence)
            answer, _, received = receive_message(
                self._channel, messages.decode_stage_answer, seconds=self._patience.start
            )
            self.received_bytes += received
            if isinstance(answer, messages.StageRefused):
                self._lose(_refusal_of(answer))
            if not isinstance(answer, messages.StageWelcome):
                raise MalformedError(f"the first answer is {type(answer).__name__}")
            messages.check_stage_version(answer, least_minor=LEAST_MINOR)
        except (TransportError, ProtocolError, VersionError) as error:
            self._lose(str(error), error)
        expected, found = self._expected, (answer.family, answer.layers, answer.width)
        if found != (expected.family, expected.layers, expected.width):
            self._lose(
                f"its model has family {answer.family.hex()} and {answer.layers} layers of width {answer.width}, ours "
                f"{expected.family.hex()}, {expected.layers}, {expected.width}: copy the model's folder to that "
                "machine, and name it there with starling lend --model"
            )
        return answer

    def _probed(self) -> LinkSpeed:
        """Measures what the link carries, there and back, by tensors that become longer until one takes long enough."""
        small = [self._probe(1) for _ in range(DELAY_PROBES)]
        delay, work = min(each for each, _ in small), statistics.fmean(each for _, each in small)
        numbers = LEAST_PROBE
        while (large := self._probe(numbers))[0] < delay + PROBE_SECONDS and numbers < MOST_PROBE:
            numbers *= 4
        # The first one is slower, while TCP finds out what the path carries.
        every = [large, self._probe(numbers), self._probe(numbers)]
        seconds, worked = min(each for each, _ in every), statistics.fmean(each for _, each in every)
        carried = 2 * 4 * numbers  # bytes, there and back
        return LinkSpeed(
            carried / max(seconds - delay, LEAST_SECONDS),
            delay / 2,
            work_seconds=work / 2,
            work_seconds_a_byte=max(0.0, worked - work) / carried,
        )

    def _probe(self, numbers: int) -> tuple[float, float]:
        """Returns how long a tensor takes there and back, and the processor time that this machine has worked on it."""
        probe, began, before = torch.zeros(numbers), self._clock(), self._worked()
        self._hidden(messages.ProbeLink(shape_of(probe)), [probe])
        return self._clock() - began, self._worked() - before

    def _worked(self) -> float:
        """Returns the processor time of this thread, of the one that reads, and of the process that carries frames."""
        return time.thread_time() + thread_seconds(self._reader) + process_seconds(self._channel.carried_by)

    def _hidden(self, request: StageRequest, tensors: list[Tensor]) -> Tensor:
        return self._hidden_asked(request, tensors)()

    def _hidden_asked(self, request: StageRequest, tensors: list[Tensor]) -> Answer:
        """Asks for a tensor of the shape of the one that is sent first: hidden states, or their gradient."""
        waiting, expected = self._sent(request, tensors), shape_of(tensors[0])

        def answer() -> Tensor:
            found, (result,) = self._answered(waiting, messages.StageTensor)
            if found.result != expected:
                self._lose(f"it answered {expected} with {found.result}")
            return result

        return answer

    def _ask(self, request: StageRequest, tensors: Sequence[Tensor], expected: type[A]) -> tuple[A, list[Tensor]]:
        return self._answered(self._sent(request, tensors), expected)

    def _sent(self, request: StageRequest, tensors: Sequence[Tensor], *, is_told: bool = False) -> _Waiting:
        waiting = _Waiting(self._clock(), is_told)
        with self._sending:
            with self._state:
                if self.lost_because is None:
                    self._waiting.append(waiting)
            if self.lost_because is not None:
                self._raise()
            try:
                self.sent_bytes += send_message(self._channel, request, tensors, seconds=self._patience.silence)
            except TransportError as error:
                self._reader.join(REFUSAL_SECONDS)  # it may be about to read why the stage has ended the connection
                self._lose(str(error), error)
        return waiting

    def _answered(self, waiting: _Waiting, expected: type[A]) -> tuple[A, list[Tensor]]:
        waiting.come.wait()
        if waiting.answer is None:
            self._raise()
        if not isinstance(waiting.answer, expected):
            self._lose(f"asked for {expected.__name__}, it sent {type(waiting.answer).__name__}")
        return waiting.answer, waiting.tensors

    def _read(self) -> None:
        """Gives each answer to the request that has waited longest."""
        try:
            while self.lost_because is None:
                answer, tensors, received = receive_message(
                    self._channel, messages.decode_stage_answer, seconds=self._patience.silence
                )
                self.received_bytes += received
                if isinstance(answer, messages.StageBeat):
                    self._beat = answer
                    self._check_progress()
                    continue
                if isinstance(answer, messages.StageRefused):
                    self._ran_out = answer.reason == messages.StageRefusal.MEMORY
                    self._end(_refusal_of(answer))
                    return
                with self._state:
                    waiting = self._waiting.popleft() if self._waiting else None
                if waiting is None:
                    raise MalformedError("an answer that nobody asked for")
                if waiting.is_told and not isinstance(answer, messages.StageDone):
                    raise MalformedError(f"told something, it sent {type(answer).__name__}")
                waiting.tensors, waiting.answer = tensors, answer
                waiting.come.set()
        except (TransportError, ProtocolError) as error:
            self._end(str(error))
        finally:  # nobody may wait for ever, whatever ended this thread
            self._end("its answers cannot be read any more")

    def _check_progress(self) -> None:
        with self._state:
            oldest = self._waiting[0].since_seconds if self._waiting else None
        if oldest is not None and self._clock() - oldest > self._patience.answer:
            self._end(f"a request has waited for {self._patience.answer:g} s")

    def _end(self, because: str) -> None:
        """Lets every request that waits, and all that come, find the stage lost. The first reason counts."""
        with self._state:
            if self.lost_because is None:
                self.lost_because = because
            waiting, self._waiting = list(self._waiting), deque()
        self._channel.close()
        for each in waiting:
            each.come.set()

    def _lose(self, because: str, cause: Exception | None = None) -> NoReturn:
        self._end(because)
        self._raise(cause)

    def _raise(self, cause: Exception | None = None) -> NoReturn:
        raise StageLostError(f"a machine with layers is lost: {self.lost_because}", ran_out=self._ran_out) from cause


def _refusal_of(answer: messages.StageRefused) -> str:
    message = printable(answer.message, limits.ENGINE_REASON_CHARACTERS)
    return f"it refused ({printable(answer.reason)}): {message}"
