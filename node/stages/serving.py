"""The stage's side of a connection: one thread reads requests, this one computes and answers them in their order.

An owner may send what comes next while a request is computed. What cannot be carried out is answered by
``StageRefused``, which ends the connection; what was held is then given back, so that the next one begins anew. Any
other error ends the process too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from torch import Tensor

from node.engines.process.channel import Channel
from node.policy.device_faults import detail_of, is_out_of_memory
from node.stages.link import Call, Inputs, StageLink
from node.stages.tensor_frames import receive_message, send_message, shape_of
from protocol import limits
from protocol.errors import ConfigurationError, MalformedError, OversizedError, TransportError, VersionError
from protocol.streams import stage_messages as messages
from protocol.streams.stage_messages import BEAT_SECONDS, StageAnswer, StageRefusal, StageRequest

log = logging.getLogger(__name__)

_SEND_SECONDS: Final = 60.0  # for an owner to take the next frame of an answer
_WAITING_BYTES: Final = 256 << 20  # of requests that wait, unless there is one alone

Received = tuple[StageRequest, list[Tensor]]


class StageSession:
    """One owner's use of a stage, from its hello on. ``stage`` raises ``MalformedError`` for what cannot follow what it
    was asked before, ``ConfigurationError`` where it cannot read its layers, and that memory has run out; then the next
    session may ask it for anything. ``told`` hears of every request that was carried out and of every beat."""

    def __init__(
        self,
        stage: StageLink,
        channel: Channel,
        welcome: messages.StageWelcome,
        *,
        told: Callable[[StageRequest | messages.StageBeat], None] = lambda what: None,
        beat_seconds: float = BEAT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stage, self._channel, self._told = stage, channel, told
        self._welcome, self._beat_seconds, self._clock = welcome, beat_seconds, clock
        self._requests = _Requests()
        self._sending = threading.Lock()
        self._ended = threading.Event()
        self.computed_seconds, self.computed_tokens = 0.0, 0

    def serve(self) -> None:
        """Returns once the owner is gone, or was refused something."""
        threads = [threading.Thread(target=self._read, daemon=True)]
        try:
            self._greet()
            threads.append(threading.Thread(target=self._beat, daemon=True))
            for each in threads:
                each.start()
            while True:
                self._send(*self._answer(*self._requests.take()))
        except TransportError as error:
            log.info("the owner is gone: %s", error)
        except (MalformedError, OversizedError, ConfigurationError, VersionError) as error:
            log.error("a request of the owner cannot be carried out: %s", error)
            self._refuse(error.reason, str(error))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            log.error("memory ran out: %s", detail_of(error))
            self._refuse(StageRefusal.MEMORY, detail_of(error))
        finally:
            self._ended.set()
            self._channel.close()
            self._requests.put(TransportError("closed"))
            for each in threads:
                if each.ident is not None:
                    each.join()
            self._stage.forget()
            self._stage.release()

    def _greet(self) -> None:
        request, _, _ = receive_message(self._channel, messages.decode_stage_request, seconds=_SEND_SECONDS)
        if not isinstance(request, messages.StageHello):
            raise MalformedError("the first request must be a hello")
        messages.check_stage_version(request)
        self._send(self._welcome)

    def _read(self) -> None:
        try:
            while not self._ended.is_set():
                request, tensors, _ = receive_message(self._channel, messages.decode_stage_request, seconds=None)
                self._requests.put((request, tensors))
        except Exception as error:  # noqa: BLE001  it is raised where requests are taken
            self._requests.put(error)

    def _beat(self) -> None:
        while not self._ended.wait(self._beat_seconds):
            beat = messages.StageBeat(self.computed_seconds, self.computed_tokens)
            self._told(beat)
            try:
                self._send(beat)
            except TransportError as error:
                self._requests.put(error)
                return

    def _send(self, answer: StageAnswer, tensors: list[Tensor] | None = None) -> None:
        with self._sending:
            send_message(self._channel, answer, tensors or [], seconds=_SEND_SECONDS)

    def _refuse(self, reason: str, why: str) -> None:
        try:
            self._send(messages.StageRefused(reason, why[: limits.ENGINE_REASON_CHARACTERS]))
        except TransportError as error:
            log.info("the owner is gone: %s", error)

    def _answer(self, request: StageRequest, tensors: list[Tensor]) -> tuple[StageAnswer, list[Tensor]]:
        began = self._clock()
        answer, found = self._carried_out(request, tensors)
        self.computed_seconds += self._clock() - began
        self._told(request)
        return answer, found

    def _carried_out(self, request: StageRequest, tensors: list[Tensor]) -> tuple[StageAnswer, list[Tensor]]:
        stage, done = self._stage, (messages.StageDone(), list[Tensor]())
        match request:
            case messages.ProbeLink(probe=probe):
                return messages.StageTensor(probe), tensors
            case messages.HoldLayers(first=first, last=last):
                stage.hold(range(first, last))
            case messages.LoadFactors(names=names):
                stage.load(dict(zip(names, tensors, strict=True)))
            case messages.PassForward():
                return self._tensor(stage.forward(*_call_of(request, tensors), request.train)(), forward=True)
            case messages.PassBackward(micro_batch=micro_batch, number=number):
                return self._tensor(stage.backward(Call(micro_batch, number), tensors[0])())
            case messages.AskGradients():
                sums = stage.gradients()
                shapes = tuple(shape_of(each) for each in sums.values())
                return messages.StageGradients(tuple(sums), shapes), list(sums.values())
            case messages.ForgetCalls():
                stage.forget()
            case messages.BeginRows(batch=batch):
                stage.begin(batch)
            case messages.PrefillPrompts(batch=batch):
                hidden, padding = tensors
                return self._tensor(stage.prefill(hidden, padding, batch), forward=True)
            case messages.JoinRows(which=which, batch=batch):
                stage.join(which, batch)
            case messages.LeaveRows(holes=holes, tails=tails, rows=rows, batch=batch):
                stage.leave(holes, tails, rows, batch)
            case messages.StepRows(batch=batch):
                return self._tensor(stage.step(tensors[0], batch), forward=True)
            case messages.ReleaseRows():
                stage.release()
            case messages.StageHello():
                raise MalformedError("a second hello")
        return done

    def _tensor(self, result: Tensor, *, forward: bool = False) -> tuple[StageAnswer, list[Tensor]]:
        if forward:
            self.computed_tokens += result.shape[0] * result.shape[1]
        return messages.StageTensor(shape_of(result)), [result]


def _call_of(request: messages.PassForward, tensors: list[Tensor]) -> tuple[Call, Tensor, Inputs]:
    given = iter(tensors[1:])
    mask, positions, prompt_of = (
        None if shape is None else next(given) for shape in (request.mask, request.positions, request.prompt_of)
    )
    inputs = Inputs(mask, positions, prompt_of, request.prompt_columns, request.recompute, request.chunk_tokens)
    return Call(request.micro_batch, request.number), tensors[0], inputs


class _Requests:
    """Requests that were read and wait to be carried out, and the error that ends them. What waits is bounded."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Received, int]] = deque()
        self._bytes = 0
        self._error: Exception | None = None

    def put(self, received: Received | Exception) -> None:
        """Waits while there are too many."""
        with self._changed:
            if isinstance(received, Exception):
                self._error = self._error or received
            else:
                size_bytes = sum(each.nbytes for each in received[1])
                while self._waiting and self._bytes + size_bytes > _WAITING_BYTES and self._error is None:
                    self._changed.wait()
                self._waiting.append((received, size_bytes))
                self._bytes += size_bytes
            self._changed.notify_all()

    def take(self) -> Received:
        """Returns the next one; once all were returned, raises the error that ended them."""
        with self._changed:
            while not self._waiting and self._error is None:
                self._changed.wait()
            if not self._waiting:
                assert self._error is not None
                raise self._error
            received, size_bytes = self._waiting.popleft()
            self._bytes -= size_bytes
            self._changed.notify_all()
            return received
