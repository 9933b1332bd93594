"""What a learner publishes of its weights: when, an anchor or a diff, and what happens when it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from node.events import Event, Fault, StatePublished
from node.kernels.weight_diff_kernels import weights_hash_fast
from node.policy.weight_layout import layout_of
from node.state_sync.publishing import CHAIN_SHARE, HeldState, LearnerProgress, StatePublisher, fits_chain, is_due
from node.state_sync.rebuild import bf16_copy, rebuild
from protocol import limits
from protocol.errors import StorageError, UnreachableError
from protocol.messages import Heartbeat, StateAdvert, StateBlob
from swarm.api import Fetched, PeerStatus
from swarm.blobs.store import ContentStore
from tests.hang_guard import HANG_SECONDS

FAMILY = b"f" * 16


def peer(family: bytes = FAMILY, age_seconds: float = 1.0) -> PeerStatus:
    heartbeat = Heartbeat("n", "s", "m", family, bytes(16), 1, 1, "learning", 1.0, 0, 0, ())
    return PeerStatus("peer", True, (), None, heartbeat, age_seconds, 0, 0, 0, 0.5, None)


class Recorder:
    """A swarm process that keeps blobs in a real store and records what it was asked to announce."""

    def __init__(self, directory: Path) -> None:
        self.store = ContentStore(directory)
        self.there: list[PeerStatus] = [peer()]
        self.announced: list[StateAdvert] = []
        self.fails: Exception | None = None

    def peers(self) -> Sequence[PeerStatus]:
        return self.there

    def put(self, content: bytes | Sequence[bytes | memoryview]) -> bytes:
        if self.fails is not None:
            raise self.fails
        return self.store.put(content)

    def share_state(self, advert: StateAdvert) -> None:
        if self.fails is not None:
            raise self.fails
        self.announced.append(advert)


class Trained:
    """A policy that learns a little every round, and its publisher."""

    def __init__(
        self, directory: Path, *, every_rounds: int = 2, store_bytes: int = 1 << 30, held: HeldState | None = None
    ):
        generator = torch.Generator().manual_seed(0)
        self.weights: dict[str, Tensor] = {
            "a": torch.randn(4000, generator=generator),
            "b": torch.randn(10, 3, generator=generator),
        }
        self.layout = layout_of(self.weights)
        self.swarm = Recorder(directory)
        self.events: list[Event] = []
        self.round = 0
        self.publisher = StatePublisher(
            self.swarm,
            self.weights,
            family=FAMILY,
            every_rounds=every_rounds,
            store_bytes=store_bytes,
            report=self.events.append,
            clock=lambda: self.round * 10.0,
            held=held,
        )

    def learn(self, rounds: int = 1, *, share: float = 0.002) -> None:
        for _ in range(rounds):
            self.round += 1
            changed = max(1, int(share * 4000))
            self.weights["a"][self.round : self.round + changed] *= 1.5
            for _ in range(2):  # a look at who is there, and then what follows from it
                self.publisher.after_round(self.round, lambda: LearnerProgress(self.round, self.round, 0, ()))
                self.publisher.settle(HANG_SECONDS)

    def published(self) -> list[str]:
        return [event.kind for event in self.events if isinstance(event, StatePublished)]

    def rebuilt(self) -> bool:
        """Returns whether the announced state leads to the policy's weights."""
        advert = self.swarm.announced[-1]
        fetched = [Fetched(each.blob, str(self.swarm.store.path(each.blob)), None) for each in advert.blobs]
        rebuilt = rebuild(advert, fetched, self.layout)
        return weights_hash_fast(self.layout, rebuilt) == weights_hash_fast(
            self.layout, bf16_copy(self.layout, self.weights)
        )


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    return Trained(tmp_path)


def test_the_first_state_is_an_anchor_and_the_next_ones_are_diffs_that_lead_to_the_newest_weights(
    trained: Trained,
) -> None:
    trained.learn()
    assert trained.published() == ["anchor"]
    assert trained.rebuilt()
    trained.learn(4)
    assert trained.published() == ["anchor", "diff", "diff"]
    assert [len(advert.diffs) for advert in trained.swarm.announced if advert.diffs][-1] == 2
    assert trained.rebuilt()


def test_alone_nothing_is_written(trained: Trained) -> None:
    trained.swarm.there = [peer(family=b"o" * 16), peer(age_seconds=1000.0)]
    trained.learn(6)
    assert not trained.swarm.announced
    assert trained.swarm.store.total_bytes() == 0
    trained.swarm.there = [peer()]
    trained.learn()
    assert trained.published() == ["anchor"]


def test_turned_off_it_does_not_even_look(tmp_path: Path) -> None:
    trained = Trained(tmp_path, every_rounds=0)
    trained.swarm.fails = AssertionError("asked")
    trained.learn(3)
    assert not trained.events


def test_weights_that_changed_all_over_become_an_anchor(trained: Trained) -> None:
    trained.learn()
    for _ in range(3):
        trained.learn(2, share=1.0)
    assert "anchor" in trained.published()[1:]
    assert trained.rebuilt()


def test_a_failed_publication_is_told_once_and_the_next_diff_still_fits_what_was_announced(trained: Trained) -> None:
    trained.learn()
    trained.swarm.fails = StorageError("no space left")
    trained.learn(4)
    trained.swarm.fails = None
    faults = [event for event in trained.events if isinstance(event, Fault)]
    assert [fault.kind for fault in faults] == ["storage"]
    assert "no space left" in faults[0].detail
    trained.learn()
    assert trained.published() == ["anchor", "diff"]
    assert trained.rebuilt()


def test_a_swarm_process_that_is_gone_is_a_fault_and_no_end(trained: Trained) -> None:
    trained.swarm.fails = UnreachableError("no swarm process answers")
    trained.learn()
    trained.swarm.fails = None
    trained.learn(2)
    assert trained.published() == ["anchor"]


def test_a_swarm_process_that_was_started_again_is_told_again(trained: Trained) -> None:
    trained.learn()
    before = trained.swarm.announced[-1]
    trained.swarm.announced.clear()
    trained.learn()
    assert before in trained.swarm.announced


def test_weights_that_are_not_finite_are_not_published(trained: Trained) -> None:
    trained.weights["b"][0, 0] = float("nan")
    trained.learn()
    assert not trained.swarm.announced
    assert [event.kind for event in trained.events if isinstance(event, Fault)] == ["malformed"]


def test_an_anchor_that_would_fill_the_store_is_refused_with_the_remedy(tmp_path: Path) -> None:
    trained = Trained(tmp_path, store_bytes=10_000)
    trained.learn()
    (fault,) = [event for event in trained.events if isinstance(event, Fault)]
    assert "checkpoint.publish_every_rounds" in fault.detail
    assert not trained.swarm.announced


def test_a_learner_that_was_started_from_peers_hands_on_what_it_took_and_then_extends_it(tmp_path: Path) -> None:
    first = Trained(tmp_path)
    first.learn(3)
    held = HeldState(first.swarm.announced[-1], bf16_copy(first.layout, first.weights))
    first.swarm.store.close()
    second = Trained(tmp_path, held=held)
    with torch.no_grad():
        for name, tensor in zip(second.layout.names, held.weights, strict=True):
            second.weights[name].copy_(tensor)
    second.publisher.after_round(0, lambda: LearnerProgress(0, held.advert.policy_version, 0, ()))
    second.publisher.settle(HANG_SECONDS)
    assert second.swarm.announced == [held.advert]
    second.round = 10
    second.learn()
    assert second.swarm.announced[-1].anchor == held.advert.anchor
    assert second.published() == ["diff"]
    assert second.rebuilt()


def test_when_a_state_is_due() -> None:
    assert is_due(1, None, every_rounds=20, has_audience=True)
    assert not is_due(20, 1, every_rounds=20, has_audience=True)
    assert is_due(21, 1, every_rounds=20, has_audience=True)
    assert not is_due(21, 1, every_rounds=20, has_audience=False)
    assert not is_due(21, None, every_rounds=0, has_audience=True)


def test_a_chain_grows_until_it_outweighs_its_share_of_the_anchor_or_is_full() -> None:
    def advert(diffs: int, size: int) -> StateAdvert:
        return StateAdvert(
            FAMILY, bytes(16), 1, 0, (), StateBlob(bytes(32), 1000, bytes(32)),
            (StateBlob(bytes(32), size, bytes(32)),) * diffs,
        )  # fmt: skip

    assert fits_chain(advert(0, 1), int(CHAIN_SHARE * 1000))
    assert not fits_chain(advert(1, 1), int(CHAIN_SHARE * 1000))
    assert fits_chain(advert(limits.STATE_DIFFS - 1, 1), 1)
    assert not fits_chain(advert(limits.STATE_DIFFS, 1), 1)
