"""The mean of a family's replicas: which are in it, which are left out and why, and what there is without any."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from node.export import export
from node.export.export_result import Export
from node.export.family_mean import MAX_REPLICAS, MeanOfFamily, mean_of_family
from node.kernels.weight_diff_kernels import patterns_of, weights_hash_fast
from node.policy.weight_layout import layout_of
from node.state_sync.rebuild import bf16_copy
from protocol.errors import UnreachableError
from protocol.messages import Heartbeat, StateAdvert, StateBlob
from protocol.weights.dense_weights import dense_bytes, dense_parts
from swarm.api import Fetched, PeerStatus, SeenState, Wanted
from swarm.blobs.store import ContentStore
from tests.node.export.trained_run import Quiet, trained_run

FAMILY = b"f" * 16


def weights(shift: float = 0.0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "a": torch.randn(40, 3, generator=generator) + shift,
        "b": torch.randn(5, generator=generator) + shift,
    }


class Family:
    """A swarm process that knows what peers announced, and fetches it from a real store."""

    def __init__(self, directory: Path) -> None:
        self.store = ContentStore(directory)
        self.seen: list[SeenState] = []
        self.gone = self.silent = False

    def announce(self, peer: str, held: Mapping[str, Tensor], *, reputation: float = 0.5) -> StateBlob:
        layout = layout_of(held)
        rounded = bf16_copy(layout, held)
        blob = self.store.put(dense_parts(layout, patterns_of(rounded)))
        anchor = StateBlob(blob, dense_bytes(layout), weights_hash_fast(layout, rounded))
        advert = StateAdvert(FAMILY, layout.digest, 3, 0, (), anchor, ())
        self.seen.append(SeenState(peer, time.time(), reputation, advert))
        return anchor

    def peers(self) -> list[PeerStatus]:
        beat = Heartbeat("n", "s", "m", FAMILY, bytes(16), 1, 1, "learning", 1.0, 0, 0, ())
        return [PeerStatus("bob", True, (), None, beat, 1.0, 0, 0, 0, 0.5, None)]

    def states(self, family: bytes) -> Sequence[SeenState]:
        if self.gone:
            raise UnreachableError("no swarm process answers")
        return self.seen

    def fetch(self, wanted: Sequence[Wanted], *, deadline_seconds: float) -> Sequence[Fetched]:
        if self.silent:
            return [Fetched(each.blob, None, "nobody has it") for each in wanted]
        return [Fetched(each.blob, str(self.store.path(each.blob)), None) for each in wanted]


@pytest.fixture
def family(tmp_path: Path) -> Family:
    return Family(tmp_path / "blobs")


def mean(family: Family) -> MeanOfFamily:
    return mean_of_family(family, FAMILY, weights(), room_bytes=1 << 20, progress=Quiet())


def test_mean_of_our_weights_and_of_each_different_replica(family: Family) -> None:
    family.announce("bob", weights(0.03))
    family.announce("cy", weights(0.06))
    family.announce("dan", weights(0.06))  # started from cy's and announces the same
    found = mean(family)
    assert found.replicas == 3
    for name, tensor in weights().items():
        torch.testing.assert_close(found.weights[name], tensor + 0.03, rtol=0, atol=0.01)
    assert "2 replicas" in found.because and not found.warnings


def test_without_a_running_node_or_an_announced_state_the_replica_is_named(family: Family) -> None:
    alone = mean(family)
    assert alone.replicas == 1
    assert "only this node's replica: no peer of our family announces a state" in alone.because
    assert "1 peer of its family is there" in alone.because
    family.gone = True
    assert "only this node's replica: no node answers" in mean(family).because
    assert all(torch.equal(alone.weights[name], tensor) for name, tensor in weights().items())


def test_replica_that_is_far_away_damaged_or_cannot_be_fetched_is_left_out_and_said(family: Family) -> None:
    family.announce("bob", weights(0.03))
    family.announce("eve", weights(9.0))
    broken = family.announce("mal", weights(0.05))
    content = bytearray(family.store.path(broken.blob).read_bytes())
    content[-1] ^= 1
    family.store.path(broken.blob).chmod(0o600)
    family.store.path(broken.blob).write_bytes(content)
    found = mean(family)
    assert found.replicas == 2
    assert sorted("limit is 50%" in warning for warning in found.warnings) == [False, True]
    family.silent = True
    unfetched = mean(family)
    assert unfetched.replicas == 1
    assert "could not be fetched" in unfetched.because


def test_replicas_of_banned_peers_and_of_other_layouts_are_not_fetched(family: Family) -> None:
    family.announce("banned", weights(0.03), reputation=0.1)
    family.announce("other", {"c": torch.zeros(2)})
    found = mean(family)
    assert found.replicas == 1
    assert "1 another layout" in found.because and "1 reputation too low" in found.because


def test_no_more_replicas_are_fetched_than_the_bound(family: Family) -> None:
    for number in range(MAX_REPLICAS + 3):
        family.announce(f"peer {number}", weights(0.01 * (number + 1)))
    assert mean(family).replicas == 1 + MAX_REPLICAS


def test_export_without_a_running_node_says_that_it_is_this_nodes_replica(tmp_path: Path) -> None:
    run = trained_run(tmp_path)
    result: Export = run.export(tmp_path / "out", mean_of_family=True)
    assert result.replicas == 1
    assert "no node answers in its data directory" in result.replicas_because
    assert "this node's own" in (tmp_path / "out" / "README.md").read_text()


def test_export_of_a_mean_holds_the_mean(tmp_path: Path, monkeypatch: Any) -> None:
    run, family = trained_run(tmp_path), Family(tmp_path / "blobs")
    ours = {name: tensor.detach() for name, tensor in run.policy.trainable().items()}
    family.announce("bob", {name: tensor + 0.02 for name, tensor in ours.items()})

    class Client:
        def __init__(self, path: Path) -> None:
            assert path == run.home.swarm_socket

        def __enter__(self) -> Family:
            return family

        def __exit__(self, *_: object) -> None:
            return

    monkeypatch.setattr(export, "SwarmClient", Client)
    assert run.export(tmp_path / "out", mean_of_family=True).replicas == 2
    stored = load_file(tmp_path / "out" / "model.safetensors")
    torch.testing.assert_close(stored["model.norm.weight"], ours["model.norm.weight"] + 0.01, rtol=0, atol=0.005)
    assert "their mean with the others was not measured" in (tmp_path / "out" / "README.md").read_text()
