"""The embedded torch engine as a process hosts it."""

from __future__ import annotations

from collections.abc import Callable

from node.engines.encoded_weights import EncodedWeights
from node.engines.engine import Sampling
from node.engines.process.hosted_engine import checked_starts
from node.engines.torch import TorchEngine
from node.engines.turns import BatchConversations
from node.kernels.weight_diff_kernels import weights_hash_fast
from node.policy.device import free_cached_blocks
from node.policy.policy import Policy
from node.policy.weight_layout import layout_of
from protocol.streams.engine_batches import HandOver, Sampled, SamplingBatch


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

    @property
    def converses(self) -> bool:
        return self._engine.converses

    def load(self, version: int, weights: EncodedWeights) -> None:
        self._engine.load_weights(version, weights)

    def sample(
        self,
        batch: SamplingBatch,
        enough: Callable[[int], bool],
        hand_over: HandOver | None = None,
        conversations: BatchConversations | None = None,
    ) -> list[Sampled]:
        starts = checked_starts(batch, vocabulary=self._policy.vocabulary, context=self.context)
        self._engine.rows = batch.rows
        sampling = Sampling(batch.temperature, batch.seed)
        return self._engine.sample(starts, batch.groups, sampling, enough, hand_over, conversations)

    def measured_hash(self) -> bytes:
        rounded = [self._trained[name].detach().to("cpu").bfloat16().contiguous() for name in self._layout.names]
        return weights_hash_fast(self._layout, rounded)

    def sleep(self) -> None:
        """Gives back what torch keeps of a card, too: the learner may be on the same one."""
        self._engine.release()
        free_cached_blocks()

    def wake(self) -> None:
        """The next generation takes its memory by itself."""
