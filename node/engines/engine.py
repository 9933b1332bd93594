"""The interface between learner and generation engine.

Generation can be interrupted and resumed (APRIL, arXiv 2509.18521). When ``advance`` stops, what has been sampled of a
group is its ``GenerationProgress``. Passed back as ``GenerationRequest.begun``, its ended completions are kept as they
are and its begun ones continue: prompt and tokens are computed again under the weights of that call, and only the
tokens after them are sampled. Each token of a completion has the log-probability under which it was sampled,

    μ(y_t | y_<t) = π_v(t)(y_t | y_<t),   v(t) the version of the segment that contains t,

so that the behaviour policy of a completion resumed under newer weights is known exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from node.engines.encoded_weights import EncodedWeights
from protocol.rollouts import FinishReason


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of one completion that were sampled from one version of the policy."""

    version: int
    tokens: int


Observed = tuple[tuple[int, tuple[int, ...]], ...]
"""What the model of a conversation did not sample: ids, each time with the number of sampled tokens before them."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One sampled completion in token space. Of a conversation it has the tokens of all actions."""

    token_ids: NDArray[np.int64]  # (T,), end-of-sequence included when sampled
    logps: NDArray[np.float32]  # (T,) in nats, under the distribution that was sampled from
    finish: FinishReason
    segments: tuple[Segment, ...]  # in order, at least one; T tokens together
    observed: Observed = ()  # between actions; nothing before the first token or after the last
    anew: tuple[int, ...] = ()  # of ``observed``, the places whose ids are all that the model read from there on

    @property
    def oldest_version(self) -> int:
        """The version that sampled its first token."""
        return self.segments[0].version


@dataclass(frozen=True, slots=True, eq=False)
class Partial:
    """A completion that was begun and has not ended."""

    token_ids: NDArray[np.int64]  # (T,), T >= 1; no end-of-sequence among them but where ``observed`` follows
    logps: NDArray[np.float32]  # (T,)
    segments: tuple[Segment, ...]
    observed: Observed = ()  # also after the last token, where an action has ended and the next one has not begun
    anew: tuple[int, ...] = ()  # as of ``Sample``


@dataclass(frozen=True, slots=True, eq=False)
class GenerationProgress:
    """The state of one prompt's completions. Those in neither list have not been begun."""

    samples: tuple[Sample, ...] = ()
    partials: tuple[Partial, ...] = ()

    @property
    def sequences(self) -> tuple[Sample | Partial, ...]:
        return (*self.samples, *self.partials)

    @property
    def tokens(self) -> int:
        return sum(len(each.token_ids) for each in self.sequences)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt and the number of completions to sample of it."""

    prompt_ids: Sequence[int]  # at least one
    completions: int  # those in ``begun`` included
    max_new_tokens: int  # of each completion, including those that a begun one already has; of conversations: an action
    begun: GenerationProgress | None = None
    # The most tokens, prompt included, of conversations: each completion is one. None: each is a single answer.
    conversation_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. ``temperature`` 0 means greedy, with the log-probabilities at temperature 1.

    With a ``seed``, a call's samples depend only on the seed, the weights and the requests, not on earlier draws: a
    round that is repeated after a restart is the same round.
    """

    temperature: float = 1.0
    seed: int | None = None


Weights = Mapping[str, torch.Tensor] | EncodedWeights  # the trained weights, by name or as bytes
# Whether so many complete groups suffice; once it says so, it says so for more. Called before the first token and after
# each, or by an engine elsewhere several times a second: that one asks beforehand for the least number that suffices.
Enough = Callable[[int], bool]
Ended = Callable[[int, GenerationProgress], None]  # takes a request's index and what was sampled of it, all ended


@dataclass(frozen=True, slots=True)
class Heard:
    """What the model reads after an action: ``ids``, after all that it has read and said, or ``anew`` instead of it."""

    ids: Sequence[int]
    anew: bool = False


class Turns(Protocol):
    """What answers the actions of conversations while others are sampled. An engine calls it from one thread."""

    @property
    def rewrites(self) -> bool:
        """Whether a reply may be ``anew``."""

    def acted(self, conversation: int, request: int, so_far: Sample) -> None:
        """Takes a conversation whose last action has ended, as far as it went. Returns at once. ``conversation``
        is a number of the engine's."""

    def replies(self, *, wait: bool) -> list[tuple[int, Heard | None]]:
        """Returns what has followed actions since the last call, in any order: each conversation with what the model
        reads next, None where nothing follows and it has ended. With ``wait`` at least one of those awaited."""


class Engine(Protocol):
    @property
    def label(self) -> str:
        """What samples now, for people: "torch", "process", "vllm", or one of these "with donors"."""

    @property
    def version(self) -> int:
        """The policy version whose weights the engine holds."""

    @property
    def owns_weights(self) -> bool:
        """Whether the engine may hold other weights than the learner, and run while the learner changes its own."""

    @property
    def in_process(self) -> bool:
        """Whether it accepts tensors; an engine in another process accepts ``EncodedWeights``."""

    @property
    def rows(self) -> int:
        """The most sequences that it holds at a time."""

    @rows.setter
    def rows(self, rows: int) -> None:
        """Sets it from the next call on. Raises ``ValueError`` below 1."""

    def remember(self, prompt_ids: Sequence[int], answers: Sequence[Sequence[int]]) -> None:
        """Takes answers of other nodes: later samples may be guessed from them, which changes no sample. Called from
        any thread; an engine that guesses nothing does nothing."""

    def restores_from(self, whole: Callable[[], EncodedWeights]) -> None:
        """Tells an engine that may lose its weights where it gets all of those that it has taken last."""

    def release(self) -> None:
        """Gives back the memory of keys and values, also after a call that failed; the next call takes it again.

        It allocates nothing, so it may be called where memory ran out.
        """

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, turns: Turns | None = None
    ) -> list[list[Sample]]:
        """Returns ``completions`` samples of each request, in the order of the requests."""

    def advance(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        enough: Enough | None = None,
        ended: Ended | None = None,
        turns: Turns | None = None,
    ) -> list[GenerationProgress]:
        """Samples until every completion has ended or ``enough`` returns True. Returns each request's progress.

        A conversation ends when ``turns``, which answers its actions, says so, or has no room for another action;
        without ``turns``, at the end of its action. Earlier requests are served first. The progress includes what
        ``begun`` held. An engine that the learner may compute beside calls ``ended`` while it goes on sampling, once
        for each request of single answers of which all completions have ended by then, in the order in which they do;
        what it told is what it returns. Other engines never call it.
        """

    def load_weights(self, version: int, weights: Weights) -> None:
        """Loads new weights; later samples have this ``version``, the learner's step at which they were published.

        Either all weights are loaded, or the call raises and weights and version are those before. Encoded weights are
        verified against their hash, and the base of a diff against the weights held here (``ProtocolError``).
        ``weights`` may be changed as soon as the call returns.
        """
