"""What a process that hosts an engine must offer, and the embedded torch engine in that form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from node.engines.encoded_weights import EncodedWeights
from node.engines.engine import Sampling
from node.engines.resumption import SamplingStart
from node.engines.torch import TorchEngine
from node.kernels.weight_diff_kernels import weights_hash_fast
from node.policy.policy import Policy
from node.policy.weight_layout import layout_of
from protocol.errors import ConfigurationError
from protocol.streams.engine_batches import Batch, Sampled


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

    def load(self, version: int, weights: EncodedWeights) -> None:
        """Raises ``ProtocolError`` for weights that it does not take, and then holds those that it held."""

    def sample(self, batch: Batch, enough: Callable[[int], bool]) -> list[Sampled]:
        """Returns what was sampled of each completion. ``enough`` is called before the first and after each look at
        what was sampled, with the number of complete groups.

        Raises ``ValueError`` and ``ConfigurationError`` for a batch that does not suit the model, and that memory has
        run out."""

    def measured_hash(self) -> bytes:
        """Returns the hash of the weights that it holds, read from these."""

    def sleep(self) -> None: ...

    def wake(self) -> None: ...


class HostedTorchEngine:
    """The embedded engine. Its policy is nobody else's, so that no second copy of the weights is made."""

    backend = "torch"

    def __init__(self, policy: Policy, *, merge_adapters: bool) -> None:
        self._policy = policy
        self._engine = TorchEngine(policy, rows=1, seed=0, takes_policy=True, merge_adapters=merge_adapters)
        self._trained = policy.trainable()
        self._layout = layout_of(self._trained)

    @property
    def family(self) -> bytes:
        return self._policy.family

    @property
    def layout(self) -> bytes:
        return self._layout.digest

    @property
    def vocabulary(self) -> int:
        return self._policy.tokens.vocabulary

    @property
    def context(self) -> int | None:
        return self._policy.context

    def load(self, version: int, weights: EncodedWeights) -> None:
        self._engine.load_weights(version, weights)

    def sample(self, batch: Batch, enough: Callable[[int], bool]) -> list[Sampled]:
        for start in batch.starts:
            if max(start.prefix_ids) >= self._policy.vocabulary:
                raise ValueError(f"a prompt has token ids outside the model's {self._policy.vocabulary}")
            if self.context is not None and len(start.prefix_ids) + start.limit > self.context:
                raise ConfigurationError(
                    f"a prompt of {len(start.prefix_ids)} tokens and {start.limit} new ones do not fit into the "
                    f"model's context of {self.context}"
                )
        self._engine.rows = batch.rows
        starts = [
            SamplingStart(each.group, each.prefix_ids, each.completions, each.limit, None) for each in batch.starts
        ]
        return self._engine.sample(starts, batch.groups, Sampling(batch.temperature, batch.seed), enough)

    def measured_hash(self) -> bytes:
        rounded = [self._trained[name].detach().to("cpu").bfloat16().contiguous() for name in self._layout.names]
        return weights_hash_fast(self._layout, rounded)

    def sleep(self) -> None:
        self._engine.release()

    def wake(self) -> None:
        """The next generation takes its memory by itself."""
