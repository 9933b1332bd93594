"""The client's side of one connection to an engine, for as long as that lasts.

Nothing that the engine says is taken before it was checked: the version of the protocol and the model at the hello, and
with every answer of a generation the weights that it names, the number and length of completions, their tokens and
log-probabilities. What cannot be true ends the connection, as does silence: ``EngineLostError``.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final, TypeVar

import msgspec

from node.engines.batch import PREFILL_TOKENS
from node.engines.encoded_weights import EncodedWeights
from node.engines.engine import Enough
from node.engines.process.channel import Channel
from node.engines.process.losses import EngineLoss
from node.engines.turns import NextAction, RunningConversations
from node.printable import printable
from protocol import limits
from protocol.errors import (
    ConfigurationError,
    DeadlineError,
    EngineLostError,
    IntegrityError,
    ProtocolError,
    StaleBaseError,
    UnreachableError,
)
from protocol.streams import engine_messages as messages
from protocol.streams.engine_batches import (
    Observation,
    Received,
    Sampled,
    SamplingBatch,
    generate_message,
    observe_message,
)
from protocol.streams.engine_messages import EngineAnswer, EngineRefusal, EngineRequest

A = TypeVar("A", bound=EngineAnswer)
GroupSampled = Callable[[int, list[Sampled]], None]  # takes a group and what was sampled of its completions

SLOWEST_READING: Final = 50e6  # bytes a second
SLOWEST_OPERATIONS: Final = 10e9  # a second, of a CPU

_ERRORS: Final[dict[str, type[Exception]]] = {
    EngineRefusal.STALE_BASE: StaleBaseError,
    EngineRefusal.INTEGRITY: IntegrityError,
    EngineRefusal.CONFIGURATION: ConfigurationError,
    EngineRefusal.REQUEST: ValueError,
    EngineRefusal.MEMORY: MemoryError,  # ``is_out_of_memory`` knows it, and fewer rows are tried
}


@dataclass(frozen=True, slots=True)
class ModelExpected:
    """What the model of an engine must be, and what its samples are checked by."""

    family: bytes
    layout: bytes
    vocabulary: int
    end_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that an engine may take."""

    start: float = 180.0  # until it says hello: libraries and model from a cold disk
    answer: float = 60.0  # for anything that it does not compute for
    stall: float = 180.0  # between two looks at what was sampled: a long prompt is one step
    poll: float = 1.0  # before it says that nothing has ended yet
    poll_asked: float = 0.1  # likewise, where somebody may want the generation to end early
    poll_awaited: float = 0.005  # likewise, while it is not known what follows an action
    load: float = 60.0  # for weights, and besides
    load_bytes_a_second: float = 20e6  # at least


def patience_with(parameters: int, *, on_cpu: bool) -> Patience:
    """Returns the patience with an engine whose model has so many parameters: what a slow disk takes to read them, and
    a slow CPU to compute a pass over prompts, which is one step."""
    usual = Patience()
    prompt_seconds = 2 * parameters * PREFILL_TOKENS / SLOWEST_OPERATIONS if on_cpu else 0.0
    return replace(usual, start=usual.start + 4 * parameters / SLOWEST_READING, stall=usual.stall + prompt_seconds)


class RemoteEngine:
    """An engine that has said hello."""

    def __init__(
        self,
        channel: Channel,
        expected: ModelExpected,
        patience: Patience,
        *,
        files: Path | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``files``: a directory that the engine sees too; whole weights are handed over there. Raises
        ``EngineLostError`` unless the engine has the model expected."""
        self._channel, self._expected, self._patience = channel, expected, patience
        self._files, self._clock = files, clock
        self._asleep = False
        self._holds: tuple[int, bytes] | None = None  # version and hash of what was loaded here
        hello = messages.Hello(messages.ENGINE_MAJOR, messages.ENGINE_MINOR)
        welcome = self._ask(hello, messages.Welcome, patience.start)
        found = ModelExpected(welcome.family, welcome.layout, welcome.vocabulary, expected.end_ids)
        if welcome.major != messages.ENGINE_MAJOR or found != expected:
            raise EngineLostError(
                f"the engine has another model or protocol than asked for: {welcome}", EngineLoss.UNLIKE
            )
        self.backend = printable(welcome.backend)
        self.converses: Final = welcome.converses

    def load(self, version: int, weights: EncodedWeights) -> None:
        """Loads weights. Raises ``ProtocolError`` where the engine refuses them: it then holds those from before; and
        ``MemoryError`` where memory ran out: it then holds none, and takes whole ones alone."""
        self._wake()
        seconds = self._patience.load + len(weights.blob) / self._patience.load_bytes_a_second
        if self._files is not None and not weights.is_diff:
            with NamedTemporaryFile(dir=self._files) as file:
                file.write(weights.blob)
                file.flush()
                self._ask(messages.LoadFile(version, weights.target, file.name), messages.EngineDone, seconds)
        else:
            self._tell(messages.Load(version, weights.target, len(weights.blob)))
            parts = memoryview(weights.blob)
            for at in range(0, len(parts), limits.ENGINE_PART_BYTES):
                self._tell(messages.WeightsPart(bytes(parts[at : at + limits.ENGINE_PART_BYTES])))
            self._answer(messages.EngineDone, seconds)
        self._holds = version, weights.target

    def sample(
        self,
        batch: SamplingBatch,
        enough: Enough | None,
        ended: GroupSampled | None = None,
        conversations: RunningConversations | None = None,
    ) -> list[Sampled]:
        """Returns what was sampled of each completion of ``batch``. ``enough`` is asked several times a second; the
        engine itself stops at ``batch.enough``. ``ended`` gets each group of single answers as soon as it has come
        whole; the engine goes on meanwhile, however long that takes. Of ``conversations``, which an engine takes that
        ``converses``, each action goes there, and what is returned is of actions that were interrupted. Afterwards
        they are settled, also where this raises.

        Raises ``ValueError``, ``ConfigurationError`` or ``MemoryError`` where the engine refuses the batch.
        """
        try:
            return self._polled(batch, enough, ended, conversations)
        finally:  # also where the engine is lost: these replies are not for the actions of the next one
            if conversations is not None:
                conversations.settle()

    def sleep(self) -> None:
        """Lets the engine give back its keys and values; the next request that needs them wakes it."""
        if not self._asleep:
            self._ask(messages.Sleep(), messages.EngineDone)
            self._asleep = True

    def health(self, *, measure: bool = False) -> messages.Health:
        """Returns what the engine holds; with ``measure`` the hash is computed from its weights."""
        return self._ask(messages.AskHealth(measure), messages.Health, self._patience.load)

    def stop(self, *, seconds: float) -> None:
        """Asks the engine to end."""
        with suppress(EngineLostError):
            self._ask(messages.EndEngine(), messages.EngineDone, seconds)

    def close(self) -> None:
        self._channel.close()

    def _polled(
        self,
        batch: SamplingBatch,
        enough: Enough | None,
        ended: GroupSampled | None,
        conversations: RunningConversations | None,
    ) -> list[Sampled]:
        self._wake()
        self._ask(generate_message(batch), messages.EngineDone)
        received = Received(batch, vocabulary=self._expected.vocabulary, end_ids=self._expected.end_ids)
        wait_seconds = self._patience.poll if enough is None else self._patience.poll_asked
        steps, moved_at, interrupted = -1, self._clock(), False
        while True:
            awaited = conversations is not None and conversations.awaited > 0
            seconds = min(wait_seconds, self._patience.poll_awaited) if awaited else wait_seconds
            poll = messages.Poll(round(1000 * seconds))
            progress = self._ask(poll, messages.EngineProgress, self._patience.answer + seconds)
            self._check_weights(progress)
            with _false_if_refused():
                taken = received.take(progress)
            if ended is not None:
                for group in taken.groups:
                    ended(group, received.group(group))
            if conversations is not None:
                for number, action in taken.actions:
                    conversations.acted(number, *action)
            if not progress.running and progress.left == 0:
                break
            if conversations is not None and (observed := _observed(conversations)):
                received.observed(observed)
                self._ask(observe_message(observed), messages.EngineDone)
            if progress.steps != steps or awaited:
                steps, moved_at = progress.steps, self._clock()
            elif progress.running and self._clock() - moved_at > self._patience.stall:
                raise EngineLostError(f"the engine sampled nothing for {self._patience.stall:g} s", EngineLoss.STALLED)
            if not interrupted and enough is not None and enough(progress.complete):
                self._ask(messages.Interrupt(), messages.EngineDone)
                interrupted = True
        with _false_if_refused():
            return received.all(interrupted=interrupted)

    def _wake(self) -> None:
        if self._asleep:
            self._ask(messages.Wake(), messages.EngineDone)
            self._asleep = False

    def _check_weights(self, progress: messages.EngineProgress) -> None:
        if (progress.version, progress.weights) != self._holds:
            version, weights = self._holds or (None, b"")
            raise EngineLostError(
                f"the engine samples from version {progress.version} ({progress.weights.hex()[:16]}); it was given "
                f"version {version} ({weights.hex()[:16]})",
                EngineLoss.FALSE,
            )

    def _ask(self, request: EngineRequest, expected: type[A], seconds: float | None = None) -> A:
        self._tell(request)
        return self._answer(expected, seconds)

    def _tell(self, request: EngineRequest) -> None:
        with _lost_if_gone():
            self._channel.send(msgspec.msgpack.encode(request), seconds=self._patience.answer)

    def _answer(self, expected: type[A], seconds: float | None = None) -> A:
        wait_seconds = self._patience.answer if seconds is None else seconds
        with _lost_if_gone(), _false_if_refused():
            body = self._channel.receive(max_bytes=limits.ENGINE_ANSWER_BYTES, seconds=wait_seconds)
            answer = messages.decode_engine_answer(body)
        if isinstance(answer, messages.Refused):
            message = printable(answer.message, limits.ENGINE_REASON_CHARACTERS)
            kind = _ERRORS.get(answer.reason)
            if kind is not None:
                raise kind(message)
            unlike = answer.reason == EngineRefusal.VERSION
            raise EngineLostError(
                f"the engine refused ({printable(answer.reason)}): {message}",
                EngineLoss.UNLIKE if unlike else EngineLoss.FALSE,
            )
        if not isinstance(answer, expected):
            raise EngineLostError(f"asked for {expected.__name__}, the engine sent {answer}", EngineLoss.FALSE)
        return answer


def _observed(conversations: RunningConversations) -> list[Observation]:
    """Returns what has followed actions by now."""

    def observation(number: int, follows: NextAction | None) -> Observation:
        return Observation(number, tuple(follows.said), follows.limit) if follows else Observation(number, (), 0)

    return [observation(*each) for each in conversations.replies(wait=False)]


def least_sufficient(enough: Enough, groups: int) -> int | None:
    """Returns the least number of complete groups that ``enough`` calls enough; None where none of ``groups`` is."""
    least = bisect_left(range(groups + 1), True, key=enough)
    return least if least <= groups else None


@contextmanager
def _lost_if_gone() -> Iterator[None]:
    try:
        yield
    except UnreachableError as error:
        raise EngineLostError(f"the engine is gone: {error}", EngineLoss.ENDED) from error
    except DeadlineError as error:
        raise EngineLostError(f"the engine hangs: {error}", EngineLoss.SILENT) from error


@contextmanager
def _false_if_refused() -> Iterator[None]:
    try:
        yield
    except ProtocolError as error:
        raise EngineLostError(f"the engine sent what cannot be ({error.reason}): {error}", EngineLoss.FALSE) from error
