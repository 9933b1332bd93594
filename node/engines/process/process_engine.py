"""``Engine`` for the learner over an engine in a process of its own, which may die, hang or lie at any moment.

The work under way is then repeated: the process is started again, gets the whole weights that the learner last gave
it, and samples the same batch from the same seed. Groups that were told to have ended stay as they were told
(``told_requests``), and nothing else of a batch counts before it has ended well, so that a loss changes no round. After
``losses.MOST_LOSSES`` losses in a row the embedded engine generates instead, for as long as this process lives. Every
change is told to ``report``.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

from node.engines.encoded_weights import EncodedWeights
from node.engines.engine import (
    Ended,
    Engine,
    Enough,
    GenerationProgress,
    GenerationRequest,
    Sample,
    Sampling,
    Turns,
    Weights,
)
from node.engines.process.channel import Channel
from node.engines.process.losses import EngineLoss, StartAgain, after_loss
from node.engines.process.remote_engine import GroupSampled, ModelExpected, Patience, RemoteEngine, least_sufficient
from node.engines.process.told_requests import ToldRequests
from node.engines.resumption import Reached, SamplingStart, progress_of, starts_of, token_limit
from node.engines.turns import RunningConversations, asked_of, in_step
from node.policy.policy import Policy
from node.policy.weight_layout import layout_of
from protocol.errors import EngineLostError, ProtocolError
from protocol.streams.engine_batches import Sampled, SamplingBatch

log = logging.getLogger(__name__)

R = TypeVar("R")
USUAL_PATIENCE: Final = Patience()


class StartedEngine(Protocol):
    """A process that was started to be an engine: ``engine_child.EngineChild``."""

    def connect(self, seconds: float) -> Channel: ...

    def end(self) -> None: ...

    def kill(self) -> None: ...


@dataclass(frozen=True, slots=True)
class EngineChange:
    """Something happened to the engine."""

    embedded: bool  # whether the embedded engine generates from now on
    running: bool
    because: str
    losses: int  # so far
    retry_seconds: float | None = None


class ProcessEngine:
    """An engine elsewhere that is always there. Call it from one thread at a time."""

    def __init__(
        self,
        policy: Policy,
        start: Callable[[], StartedEngine],
        embedded: Callable[[], Engine],
        *,
        rows: int,
        seed: int,
        files: Path | None,
        report: Callable[[EngineChange], None],
        backend: str = "process",
        beside: bool = False,
        patience: Patience = USUAL_PATIENCE,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``start`` starts a process, or raises ``EngineLostError``; ``embedded`` makes the engine that takes over, one
        that owns its weights. ``files``: a directory that the process sees too. ``backend`` names what is in it, and
        ``beside``: the learner may compute while it samples. ``sleep`` and ``clock`` are of one time."""
        self._policy, self._start, self._make_embedded = policy, start, embedded
        self._expected = ModelExpected(
            policy.family, layout_of(policy.trainable()).digest, policy.tokens.vocabulary, policy.tokens.eos_ids
        )
        self.rows = rows
        self._random = random.Random(seed)  # of calls without a seed
        self._files, self._report, self._patience = files, report, patience
        self.beside, self._backend = beside, backend
        self._sleep, self._clock = sleep, clock
        self._version = 0
        self._whole: Callable[[], EncodedWeights] | None = None
        self._remote: RemoteEngine | None = None
        self._embedded: Engine | None = None
        self._up_to_date = False  # the engine that runs holds the weights of ``version``
        self._losses = self._losses_in_a_row = 0
        self._retry_seconds = 0.0
        self._child: StartedEngine | None = None
        with suppress(EngineLostError):  # the first use tries again, and counts it
            self._child = self._start()  # it loads while the learner does

    @property
    def label(self) -> str:
        return self._backend if self._embedded is None else self._embedded.label

    @property
    def version(self) -> int:
        return self._version

    @property
    def losses(self) -> int:
        """How many engines were lost so far."""
        return self._losses

    def measured_weights(self) -> tuple[int, bytes] | None:
        """Returns version and hash of the weights that the process holds, as it reads them now; None without one."""
        if self._remote is None:
            return None
        health = self._remote.health(measure=True)
        return health.version, health.weights or b""

    @property
    def owns_weights(self) -> bool:
        return True

    @property
    def in_process(self) -> bool:
        return False

    @property
    def rows(self) -> int:
        return self._rows

    @rows.setter
    def rows(self, rows: int) -> None:
        if rows < 1:
            raise ValueError(f"rows is {rows}: at least 1")
        self._rows = rows

    def restores_from(self, whole: Callable[[], EncodedWeights]) -> None:
        self._whole = whole

    def remember(self, prompt_ids: Sequence[int], answers: Sequence[Sequence[int]]) -> None:
        """An engine in another process guesses from its own answers alone."""
        if self._embedded is not None:
            self._embedded.remember(prompt_ids, answers)

    def load_weights(self, version: int, weights: Weights) -> None:
        """Raises ``ProtocolError`` for weights that the engine refuses. One that was started again refuses a diff
        (``StaleBaseError``), unless it is from the weights in the model's own files."""
        if not isinstance(weights, EncodedWeights):
            raise ValueError("an engine in another process takes encoded weights")
        if self._on_remote(lambda remote: _loaded(remote, version, weights)) is None:
            self._taken_over().load_weights(version, weights)
        self._version, self._up_to_date = version, True

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, turns: Turns | None = None
    ) -> list[list[Sample]]:
        return [list(progress.samples) for progress in self.advance(requests, sampling, turns=turns)]

    def advance(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        enough: Enough | None = None,
        ended: Ended | None = None,
        turns: Turns | None = None,
    ) -> list[GenerationProgress]:
        """Conversations go at their own pace where the engine takes them and no reply is ``anew``, and in step
        elsewhere."""
        if turns is not None and (turns.rewrites or self._on_remote(lambda remote: remote.converses) is False):
            return in_step(self._advance, requests, sampling, enough, ended, turns)
        return self._advance(requests, sampling, enough, ended, turns)

    def _advance(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        enough: Enough | None = None,
        ended: Ended | None = None,
        turns: Turns | None = None,
    ) -> list[GenerationProgress]:
        policy = self._policy
        limits = [token_limit(each, vocabulary=policy.vocabulary, context=policy.context) for each in requests]
        starts = starts_of(requests, limits)
        seed = self._random.getrandbits(63) if sampling.seed is None else sampling.seed
        told = ToldRequests(requests, starts, limits, self._version, policy.tokens.eos_ids, ended)
        found: tuple[list[Sampled], Reached] | None = [], {}
        if starts:
            tell = told.group_ended if self.beside and ended is not None else None
            seeded = Sampling(sampling.temperature, seed)
            found = self._on_remote(
                lambda remote: self._sampled(remote, requests, starts, limits, seeded, enough, tell, turns)
            )
        if found is None:
            self._bring_up_to_date(self._taken_over().load_weights)
            reached = self._taken_over().advance(requests, Sampling(sampling.temperature, seed), enough, turns=turns)
        else:
            sequences, conversed = found
            reached = progress_of(requests, starts, sequences, limits, self._version, policy.tokens.eos_ids, conversed)
        return told.in_place_of(reached)

    def release(self) -> None:
        if self._embedded is not None:
            self._embedded.release()
        elif self._remote is not None:
            try:
                self._remote.sleep()
            except EngineLostError as lost:
                self._lost(lost)  # what it held is free; the next call starts another

    def close(self) -> None:
        """Ends the process, if one runs."""
        if self._remote is not None:
            self._remote.close()
        if self._child is not None:
            self._child.end()
        self._remote = self._child = None

    def _sampled(
        self,
        remote: RemoteEngine,
        requests: Sequence[GenerationRequest],
        starts: Sequence[SamplingStart],
        limits: Sequence[int],
        sampling: Sampling,
        enough: Enough | None,
        ended: GroupSampled | None,
        turns: Turns | None,
    ) -> tuple[list[Sampled], Reached]:
        """Returns what was sampled of each completion, and what conversations had reached before."""
        self._bring_up_to_date(remote.load)
        conversations: RunningConversations | None = None
        if turns is not None:
            eos_ids = self._policy.tokens.eos_ids
            conversations = RunningConversations(requests, starts, limits, turns, self._version, eos_ids)
        batch = SamplingBatch(
            starts=asked_of(starts, requests, turns),
            groups=len(requests),
            temperature=sampling.temperature,
            seed=sampling.seed or 0,
            rows=self._rows,
            enough=None if enough is None else least_sufficient(enough, len(requests)),
        )
        sampled = remote.sample(batch, enough, ended, conversations)
        self._losses_in_a_row = 0
        return sampled, {} if conversations is None else conversations.reached

    def _bring_up_to_date(self, load: Callable[[int, EncodedWeights], None]) -> None:
        """Loads the weights of ``version`` where a new engine lacks them."""
        if self._up_to_date:
            return
        if self._whole is None:
            raise RuntimeError("generation before any weights were loaded")
        try:
            load(self._version, self._whole())
        except ProtocolError as error:
            raise EngineLostError(f"the engine refuses the weights that it had ({error})", EngineLoss.FALSE) from error
        self._up_to_date = True

    def _on_remote(self, use: Callable[[RemoteEngine], R]) -> R | None:
        """Returns what ``use`` returns, from the first engine that is not lost meanwhile; None once the embedded one
        has taken over."""
        while self._embedded is None:
            try:
                return use(self._running())
            except EngineLostError as lost:
                self._lost(lost)
        return None

    def _running(self) -> RemoteEngine:
        """Returns the engine; starts one and waits until it has said hello where there is none."""
        if self._remote is not None:
            return self._remote
        if self._retry_seconds:
            self._sleep(self._retry_seconds)
        if self._child is None:
            self._child = self._start()
        channel = self._child.connect(self._patience.start)
        try:
            self._remote = RemoteEngine(channel, self._expected, self._patience, files=self._files, clock=self._clock)
        except EngineLostError:
            channel.close()
            raise
        because = "the process was started again" if self._losses else "the process was started"
        self._report(EngineChange(embedded=False, running=True, because=because, losses=self._losses))
        return self._remote

    def _lost(self, lost: EngineLostError) -> None:
        """Ends what is left of the engine, and decides what follows."""
        if self._remote is not None:
            self._remote.close()
        if self._child is not None:
            self._child.kill()
        self._remote = self._child = None
        self._up_to_date = False
        self._losses += 1
        self._losses_in_a_row += 1
        decision = after_loss(self._losses_in_a_row)
        if isinstance(decision, StartAgain):
            self._retry_seconds = decision.after_seconds
            change = EngineChange(
                embedded=False, running=False, because=str(lost), losses=self._losses, retry_seconds=self._retry_seconds
            )
        else:
            self._embedded = self._make_embedded()
            because = f"lost {self._losses_in_a_row} times in a row; the last: {lost}"
            change = EngineChange(embedded=True, running=True, because=because, losses=self._losses)
        log.warning("%s", change.because)
        self._report(change)

    def _taken_over(self) -> Engine:
        assert self._embedded is not None
        self._embedded.rows = self._rows
        return self._embedded


def _loaded(remote: RemoteEngine, version: int, weights: EncodedWeights) -> bool:
    remote.load(version, weights)
    return True
