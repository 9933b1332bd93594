"""The engine's side of a connection: requests in, one answer each, while one thread generates or loads.

An error that a request can cause is answered by ``Refused``, and everything is as it was before. Any other error ends
the connection and, since nobody knows what the engine holds then, the process.
"""

from __future__ import annotations

import logging
import mmap
import os
import stat
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from node.engines.encoded_weights import EncodedWeights
from node.engines.process.channel import Channel
from node.engines.process.client_conversations import ClientConversations
from node.engines.process.hosted_engine import HostedEngine
from node.policy.device_faults import detail_of, is_out_of_memory
from protocol import limits
from protocol.errors import (
    ConfigurationError,
    MalformedError,
    OversizedError,
    ProtocolError,
    StaleBaseError,
    TransportError,
    VersionError,
)
from protocol.streams import engine_messages as messages
from protocol.streams.engine_batches import (
    Observation,
    Sampled,
    SamplingBatch,
    opened_batch,
    opened_observations,
    progress_message,
)
from protocol.streams.engine_messages import EngineAnswer, EnginePhase, EngineRefusal, EngineRequest

log = logging.getLogger(__name__)

NO_WEIGHTS: Final = bytes(32)  # in place of a hash: none were loaded
_SEND_SECONDS: Final = 60.0  # for a client to take an answer


class EngineSession:
    """One client's use of an engine, from its hello on."""

    def __init__(
        self, engine: HostedEngine, channel: Channel, *, files: Path | None, thread: ThreadPoolExecutor | None = None
    ) -> None:
        """``files``: the directory from which weights may be loaded. ``thread`` computes; by default one of its own."""
        self._engine, self._channel, self._files = engine, channel, files
        self._thread = thread or ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._generation: _Generation | None = None
        self._version, self._weights = 0, NO_WEIGHTS
        self._greeted = self._asleep = False
        self._last_steps = 0

    def serve(self) -> None:
        """Returns once the client asked the engine to stop, or is gone."""
        try:
            while True:
                request = self._request()
                answer = self._answer(request)
                self._channel.send(msgspec.msgpack.encode(answer), seconds=_SEND_SECONDS)
                if isinstance(request, messages.EndEngine):
                    return
        except TransportError as error:
            log.info("the engine's client is gone: %s", error)
        except (MalformedError, OversizedError) as error:
            log.error("the engine's client sent what is no request: %s", error)
            self._channel.send(msgspec.msgpack.encode(_refused(error.reason, error)), seconds=_SEND_SECONDS)
        finally:
            if self._generation is not None:
                self._generation.interrupt()
            self._thread.shutdown(wait=True)

    def _request(self) -> EngineRequest:
        body = self._channel.receive(max_bytes=limits.ENGINE_REQUEST_BYTES, seconds=None)
        return messages.decode_engine_request(body)

    def _answer(self, request: EngineRequest) -> EngineAnswer:
        if not self._greeted and not isinstance(request, messages.Hello | messages.EndEngine):
            return _refused(EngineRefusal.FIRST_HELLO, "the first request must be a hello")
        match request:
            case messages.Hello():
                return self._welcome(request)
            case messages.Load():
                blob = self._blob(request.size)  # also where it is refused, or its parts would be taken for requests
                return self._load(request.version, request.target, lambda: blob)
            case messages.LoadFile():
                return self._load(request.version, request.target, lambda: self._file(request.path))
            case messages.Generate():
                return self._generate(opened_batch(request))
            case messages.Poll():
                return self._poll(request.wait_milliseconds / 1000)
            case messages.Observe():
                return self._observe(opened_observations(request))
            case messages.Interrupt():
                if self._generation is not None:
                    self._generation.interrupt()
                return messages.EngineDone()
            case messages.Sleep():
                return self._idle_only(self._sleep)
            case messages.Wake():
                return self._idle_only(self._wake)
            case messages.AskHealth(measure=measure):
                return self._idle_only(lambda: self._health(measure=True)) if measure else self._health(measure=False)
            case messages.EndEngine():
                return messages.EngineDone()
            case messages.WeightsPart():
                raise MalformedError("a part of a blob without a load before it")

    def _welcome(self, hello: messages.Hello) -> EngineAnswer:
        try:
            messages.check_engine_version(hello)
        except VersionError as error:
            return _refused(EngineRefusal.VERSION, error)
        self._greeted = True
        engine = self._engine
        return messages.Welcome(
            messages.ENGINE_MAJOR,
            messages.ENGINE_MINOR,
            engine.backend,
            engine.family,
            engine.layout,
            engine.vocabulary,
            engine.context or 0,
            engine.converses,
        )

    def _idle_only(self, act: Callable[[], EngineAnswer]) -> EngineAnswer:
        if self._generation is not None:
            return _refused(EngineRefusal.BUSY, "a generation runs: poll it to its end, or interrupt it first")
        return act()

    def _sleep(self) -> EngineAnswer:
        self._thread.submit(self._engine.sleep).result()
        self._asleep = True
        return messages.EngineDone()

    def _wake(self) -> EngineAnswer:
        if (refused := self._without_memory(self._engine.wake)) is None:
            self._asleep = False
        return refused or messages.EngineDone()

    def _without_memory(self, work: Callable[..., None], *arguments: object) -> messages.Refused | None:
        """Returns why ``work`` came to nothing where memory ran out in it; what else it raises is raised."""
        try:
            self._thread.submit(work, *arguments).result()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return _refused(EngineRefusal.MEMORY, detail_of(error))
        return None

    def _health(self, *, measure: bool) -> EngineAnswer:
        weights = self._thread.submit(self._engine.measured_hash).result() if measure else self._weights
        busy, asleep = self._generation is not None, self._asleep
        phase = EnginePhase.GENERATING if busy else EnginePhase.ASLEEP if asleep else EnginePhase.IDLE
        steps = self._generation.steps if self._generation is not None else self._last_steps
        return messages.Health(self._version, None if weights == NO_WEIGHTS else weights, phase, steps)

    def _blob(self, size: int) -> bytearray:
        blob = bytearray()
        while len(blob) < size:
            part = self._request()
            if not isinstance(part, messages.WeightsPart) or len(part.content) > size - len(blob):
                raise MalformedError(f"not the next part of a blob of {size} bytes, of which {len(blob)} are here")
            blob += part.content
        return blob

    def _file(self, path: str) -> mmap.mmap:
        if self._files is None:
            raise FileNotFoundError("this engine takes no files: send the blob in parts")
        whole = Path(path).resolve(strict=True)
        if not whole.is_relative_to(self._files.resolve()):
            raise PermissionError(f"{whole} is not in {self._files}")
        descriptor = os.open(whole, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise PermissionError(f"{whole} is no file of this user")
            return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)

    def _load(self, version: int, target: bytes, blob: Callable[[], bytearray | mmap.mmap]) -> EngineAnswer:
        if self._generation is not None or self._asleep:
            reason = EngineRefusal.ASLEEP if self._asleep else EngineRefusal.BUSY
            return _refused(reason, "weights are loaded while the engine is awake and idle")
        try:
            encoded = EncodedWeights(target, memoryview(blob()))  # type: ignore[arg-type]  # read as bytes are
        except (OSError, ValueError) as error:  # a file of no bytes is a ValueError
            return _refused(EngineRefusal.NO_FILES, error)
        try:
            refused = self._without_memory(self._engine.load, version, encoded)
        except StaleBaseError as error:
            return _refused(EngineRefusal.STALE_BASE, error)
        except ProtocolError as error:
            return _refused(EngineRefusal.INTEGRITY, error)
        if refused is not None:
            self._weights = NO_WEIGHTS  # some of them may be in place
            return refused
        self._version, self._weights = version, target
        return messages.EngineDone()

    def _generate(self, batch: SamplingBatch) -> EngineAnswer:
        if self._asleep:
            return _refused(EngineRefusal.ASLEEP, "wake the engine first")
        if self._weights == NO_WEIGHTS:
            return _refused(EngineRefusal.NO_WEIGHTS, "load weights first: their version is part of every answer")
        return self._idle_only(lambda: self._begin(batch))

    def _begin(self, batch: SamplingBatch) -> EngineAnswer:
        if batch.converses and not self._engine.converses:
            return _refused(EngineRefusal.REQUEST, "this engine takes no conversations")
        self._generation = _Generation(self._engine, batch, self._thread)
        return messages.EngineDone()

    def _observe(self, observations: list[Observation]) -> EngineAnswer:
        if self._generation is None or self._generation.conversations is None:
            return _refused(EngineRefusal.IDLE, "no generation with conversations runs")
        try:
            self._generation.conversations.observe(observations)
        except ValueError as error:
            return _refused(EngineRefusal.REQUEST, error)
        return messages.EngineDone()

    def _poll(self, wait_seconds: float) -> EngineAnswer:
        generation = self._generation
        if generation is None:
            return _refused(EngineRefusal.IDLE, "there is no generation")
        running = not generation.wait(wait_seconds)
        if not running:
            refused = generation.refusal()
            if refused is not None:
                self._generation = None
                return refused
        handed, left = generation.handed_over()
        if not running and left == 0:
            self._generation, self._last_steps = None, generation.steps
        return progress_message(
            handed,
            version=self._version,
            weights=self._weights,
            running=running,
            steps=generation.steps,
            complete=generation.complete,
            left=left,
        )


class _Generation:
    """One batch, sampled on the engine's thread."""

    def __init__(self, engine: HostedEngine, batch: SamplingBatch, thread: ThreadPoolExecutor) -> None:
        self._batch = batch
        self._interrupted = threading.Event()
        self.conversations: ClientConversations | None = None
        if batch.converses:
            self.conversations = ClientConversations(
                batch, self._hand_over, vocabulary=engine.vocabulary, context=engine.context
            )
        self.steps = 0
        self.complete = 0
        self._waiting: deque[tuple[int, Sampled]] = deque()  # to be handed over; the engine's thread appends
        self._news = threading.Event()  # something waits, or it has ended
        self._sampled: Future[None] = thread.submit(self._sample, engine)
        self._sampled.add_done_callback(lambda _: self._news.set())

    def interrupt(self) -> None:
        """Ends it after the token that is being sampled."""
        self._interrupted.set()
        if self.conversations is not None:
            self.conversations.interrupt()

    def wait(self, seconds: float) -> bool:
        """Returns whether it has ended: at once when there is something to hand over, at the latest after so many
        seconds."""
        if not self._waiting and not self._sampled.done():
            self._news.wait(seconds)
        self._news.clear()
        return self._sampled.done()

    def _sample(self, engine: HostedEngine) -> None:
        rest = engine.sample(self._batch, self._looked, self._hand_over, self.conversations)
        self._waiting.extend((number, sampled) for number, sampled in enumerate(rest) if len(sampled[0]))

    def _hand_over(self, number: int, sampled: Sampled) -> None:
        self._waiting.append((number, sampled))
        self._news.set()

    def refusal(self) -> messages.Refused | None:
        """Returns why it came to nothing, once it has ended. Raises what is no fault of the request."""
        error = self._sampled.exception()
        if error is None:
            return None
        if is_out_of_memory(error):
            return _refused(EngineRefusal.MEMORY, detail_of(error))
        if isinstance(error, ConfigurationError):
            return _refused(EngineRefusal.CONFIGURATION, error)
        if isinstance(error, ValueError):
            return _refused(EngineRefusal.REQUEST, error)
        raise error

    def handed_over(self) -> tuple[list[tuple[int, Sampled]], int]:
        """Returns the next completions that fit into one answer, at least one if any wait, and how many are left."""
        handed: list[tuple[int, Sampled]] = []
        size_bytes = 0
        while self._waiting:
            size_bytes += 8 * len(self._waiting[0][1][0])
            if handed and size_bytes > limits.ENGINE_PROGRESS_BYTES:
                break
            handed.append(self._waiting.popleft())
        return handed, len(self._waiting)

    def _looked(self, complete: int) -> bool:
        self.steps += 1
        self.complete = complete
        enough = self._batch.enough
        return self._interrupted.is_set() or (enough is not None and complete >= enough)


def _refused(reason: str, why: object) -> messages.Refused:
    return messages.Refused(reason, str(why)[: limits.ENGINE_REASON_CHARACTERS])
