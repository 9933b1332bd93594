"""What a process that hosts an engine must offer. It imports no engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from node.engines.encoded_weights import EncodedWeights
from node.engines.resumption import SamplingStart
from node.engines.turns import BatchConversations
from protocol.errors import ConfigurationError
from protocol.streams.engine_batches import HandOver, Sampled, SamplingBatch


class HostedEngine(Protocol):
    """One engine, called from one thread at a time. An error that is not named here leaves it in an unknown state."""

    @property
    def backend(self) -> str: ...

    @property
    def family(self) -> bytes: ...

    @property
    def layout(self) -> bytes:
        """The digest of the trained weights' names and shapes."""

    @property
    def vocabulary(self) -> int:
        """The number of tokens that may be sampled."""

    @property
    def context(self) -> int | None:
        """The positions that the model has, where that is known."""

    @property
    def converses(self) -> bool:
        """Whether ``sample`` takes conversations."""

    def load(self, version: int, weights: EncodedWeights) -> None:
        """Raises ``ProtocolError`` for weights that it does not take, and then holds those that it held; and that
        memory has run out: it may then hold some of them, and takes whole ones alone."""

    def sample(
        self,
        batch: SamplingBatch,
        enough: Callable[[int], bool],
        hand_over: HandOver,
        conversations: BatchConversations | None = None,
    ) -> list[Sampled]:
        """Returns what was sampled of each completion. ``enough`` is called before the first and after each look at
        what was sampled, with the number of complete groups. ``hand_over`` gets all completions of a group as soon as
        it is complete; these are then empty in what is returned. So are actions that ``conversations`` has; only an
        engine that takes them gets any.

        Raises ``ValueError`` and ``ConfigurationError`` for a batch that does not suit the model, and that memory has
        run out."""

    def measured_hash(self) -> bytes:
        """Returns the hash of the weights that it holds, read from these."""

    def sleep(self) -> None: ...

    def wake(self) -> None:
        """Raises that memory has run out: it then sleeps on."""


def checked_starts(batch: SamplingBatch, *, vocabulary: int, context: int | None) -> list[SamplingStart]:
    """Returns what ``batch`` continues. Raises ``ValueError`` for tokens that the model lacks, ``ConfigurationError``
    where a start and its completions do not fit into ``context``."""
    for start in batch.starts:
        if max(start.prefix_ids) >= vocabulary:
            raise ValueError(f"a prompt has token ids outside the model's {vocabulary}")
        if context is not None and len(start.prefix_ids) + start.limit > context:
            raise ConfigurationError(
                f"a prompt of {len(start.prefix_ids)} tokens and {start.limit} new ones do not fit into the model's "
                f"context of {context}"
            )
    return [SamplingStart(each.group, each.prefix_ids, each.completions, each.limit, None) for each in batch.starts]
