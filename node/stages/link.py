"""What an owner asks of a machine that holds some layers of its model, and what it must know of it to ask.

``StageWorker`` (``worker.py``) does it; a link over a channel has the same methods. All tensors here are on the CPU.
Hidden states are in the policy's dtype, (rows, tokens, width).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct
from torch import Tensor

from node.fit.stages.plan import USUAL_LINK, LinkSpeed, Pace


class Call(Struct, frozen=True):
    """One call of the body in the pass of one micro-batch; number 0 is that for its prompts, which comes first. The
    owner counts micro-batches upwards and uses no number twice while a stage holds layers."""

    micro_batch: int
    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """What a stage is told of a call of the learner's pass beside hidden states (B, T, D)."""

    mask: Tensor | None = None  # (B, S) bool, of prompts' columns and then the call's own; None: nothing is masked
    positions: Tensor | None = None  # (B, T) int64; None: from 0
    prompt_of: Tensor | None = None  # (B,) int64, 0 to K - 1; None in the call for the K prompts
    prompt_columns: int = 0  # of the longest prompt of these rows; 0 in the call for the prompts
    recompute: bool = False  # as in ``PassSettings``
    chunk_tokens: int | None = None  # likewise


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A call with what is told of it."""

    call: Call
    inputs: Inputs


Answer = Callable[[], Tensor]  # waits for it


def here(tensor: Tensor) -> Answer:
    """Returns an answer that is there."""
    return lambda: tensor


class StageLink(Protocol):
    """Calls wait for their answer, but for ``forward`` and ``backward``, whose answer may be waited for later, and for
    ``begin``, ``join`` and ``leave``, which need none. Any thread may call; calls are answered in the order in which
    they were made. Several batches of rows may be there, by numbers below ``limits.STAGE_BATCHES``.

    Raises ``StageLostError`` where the stage is gone, silent for too long, or sends what cannot be; from then on every
    call raises it, also those that wait.
    """

    def hold(self, layers: range) -> None:
        """Reads the base weights of ``layers`` from the stage's own folder of the model, and frees all else that it
        held: other layers, factors, gradients, calls and rows. The factors are arbitrary until ``load``."""

    def load(self, factors: Mapping[str, Tensor]) -> None:
        """Takes the adapter's factors of its layers, all of them, float32, by the names of ``Policy.trainable()``.
        No call that will go back may be under way."""

    def forward(self, call: Call, hidden: Tensor, inputs: Inputs, train: bool) -> Answer:
        """Gives the hidden states (B, T, D) that leave the last of its layers. With ``train`` the call is kept for
        ``backward``; prompts are kept until their own backward pass, or without ``train`` until the next call for
        prompts."""

    def backward(self, call: Call, gradient: Tensor) -> Answer:
        """Takes the gradient (B, T, D) of what ``forward`` gave, adds to the factors' gradients, and gives the
        gradient (B, T, D) of what it was given. The call for the prompts goes back last of its micro-batch."""

    def gradients(self) -> dict[str, Tensor]:
        """Returns the factors' gradients since the last time, summed, float32, by name, and forgets them. A factor
        that had none is left out."""

    def forget(self) -> None:
        """Drops calls of the learner's pass that are under way, and gradients."""

    def begin(self, batch: int = 0) -> None:
        """Empties a batch of rows that are sampled."""

    def prefill(self, hidden: Tensor, padding: Tensor, batch: int = 0) -> Tensor:
        """Computes P prompts, (P, L, D), right-aligned behind ``padding`` (P,) int64 columns each, without adding rows;
        they take the place of those of the batch's last ``prefill``. Returns the hidden states (P, L, D) that leave."""

    def join(self, which: Sequence[int], batch: int = 0) -> None:
        """Adds a row at the end of a batch for each entry, an index into the prompts of its last ``prefill``."""

    def leave(self, holes: Sequence[int], tails: Sequence[int], rows: int, batch: int = 0) -> None:
        """A batch shrinks to ``rows``: row ``tails[i]`` becomes ``holes[i]``."""

    def step(self, hidden: Tensor, batch: int = 0) -> Tensor:
        """Appends one token to each of a batch's n rows, (n, 1, D). Returns the hidden states (n, 1, D) that leave."""

    def release(self) -> None:
        """Gives back what rows and prompts of all batches take."""

    def close(self) -> None:
        """Ends the connection; the stage may be used again by a new one."""


class CountedLink(StageLink, Protocol):
    """A link that counts what it carries, by bytes, and knows what the stage says of its work so far."""

    @property
    def sent_bytes(self) -> int: ...
    @property
    def received_bytes(self) -> int: ...
    @property
    def computed_tokens(self) -> int:
        """Forward through its layers."""

    @property
    def computed_seconds(self) -> float: ...


@dataclass(frozen=True, slots=True)
class StageFacts:
    """What a stage says of itself when it is connected."""

    memory_bytes: int  # that its process may take in all
    pace: Pace  # in the policy's dtype, measured
    link: LinkSpeed = USUAL_LINK  # to it and back
