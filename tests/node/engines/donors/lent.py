"""Donors within the test's process: the real session and engine of each behind a socket pair."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

from node.engines.donors.donated_engine import DonatedEngine
from node.engines.donors.donor_source import WaitingDonor
from node.engines.engine import Engine, GenerationProgress, GenerationRequest, Sampling
from node.engines.process.channel import Channel
from node.engines.torch import TorchEngine
from node.events import DonorShare, DonorsShared
from node.learner.generation.engine_weights import EngineWeights
from node.policy.policy import Policy
from protocol.errors import UnreachableError
from protocol.streams.engine_batches import Sampled, SamplingBatch
from tests.node.engines.process.hosted import QUICK, Alter, Hosted, HostedHere, Runs

ASKED = [GenerationRequest([5, 6, 7 + at % 9], 4, 24) for at in range(16)]


class Village:
    """``DonorSource``: friends that wait from the beginning, each with the model as its files have it."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.stored = policy.separate()
        self.waiting_now: dict[str, HostedHere] = {}
        self.used: list[HostedHere] = []
        self.dropped: dict[str, str] = {}
        self.told: list[DonorsShared] = []

    def comes(self, peer: str, alter: Alter = lambda answer: answer) -> HostedHere:
        run = self.waiting_now[peer] = HostedHere(self.stored, alter=alter)
        return run

    def waiting(self) -> list[WaitingDonor]:
        return [WaitingDonor(peer, f"name of {peer}") for peer in self.waiting_now if peer not in self.dropped]

    def use(self, peer: str) -> Channel:
        run = self.waiting_now.pop(peer, None)
        if run is None:
            raise UnreachableError("it does not wait")
        self.used.append(run)
        return run.connect(1.0)

    def drop(self, peer: str, because: str) -> None:
        self.dropped[peer] = because

    def end(self) -> None:
        for run in (*self.used, *self.waiting_now.values()):
            run.end()

    def last(self, peer: str) -> DonorShare:
        """What was told of a donor last; rounds after the one that lost it tell nothing of it."""
        return next(each for told in reversed(self.told) for each in told.donors if each.peer == peer)


@contextmanager
def learner_of(village: Village, *, owns_weights: bool = False) -> Iterator[DonatedEngine]:
    own = TorchEngine(village.policy, rows=16, seed=0, owns_weights=owns_weights)
    with donated(village, own, own.policy) as engine:
        engine.load_weights(1, village.policy.trainable())
        yield engine


@contextmanager
def learner_with_process(village: Village, runs: Runs) -> Iterator[tuple[DonatedEngine, EngineWeights]]:
    """A learner whose own engine is elsewhere, of the village's policy, and what brings that to its weights."""
    own = runs.engine()
    with closing(own), donated(village, own, village.policy) as engine:
        weights = EngineWeights(engine)
        weights.load(1, village.policy.trainable())
        yield engine, weights


@contextmanager
def donated(village: Village, own: Engine, policy: Policy) -> Iterator[DonatedEngine]:
    engine = DonatedEngine(
        own,
        policy,
        village,
        report=village.told.append,
        wall_clock=lambda: 1.0,
        patience=QUICK,
        draws=random.Random(1),
    )
    with ExitStack() as stack:
        stack.callback(village.end)
        stack.callback(engine.close)
        yield engine


def until_ready(engine: DonatedEngine, donors: int) -> None:
    """Generates until so many donors have taken part in a round."""
    for seed in range(200):
        engine.advance(ASKED, Sampling(seed=seed))
        if sum(donor.is_ready for donor in engine.donors) >= donors:
            return
        threading.Event().wait(0.02)
    raise AssertionError("the donors never got ready")


def check_whole(progress: Sequence[GenerationProgress], version: int) -> None:
    """Every completion is there, once, and says which version sampled it."""
    for request, reached in zip(ASKED, progress, strict=True):
        assert len(reached.samples) == request.completions and not reached.partials
        for sample in reached.samples:
            assert 1 <= len(sample.token_ids) == len(sample.logps) <= request.max_new_tokens
            assert sum(segment.tokens for segment in sample.segments) == len(sample.token_ids)
            assert {segment.version for segment in sample.segments} == {version}


def instead(run: HostedHere, sample: Callable[[SamplingBatch, Callable[[int], bool], Hosted], list[Sampled]]) -> None:
    """Lets a donor answer with ``sample``, which may ask the honest engine."""
    honest = Hosted(run.engine._policy, merge_adapters=True)
    run.engine.load = honest.load  # type: ignore[method-assign]
    run.engine.samples = lambda batch, enough: sample(batch, enough, honest)
