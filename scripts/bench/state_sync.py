"""State sync: the weights of peers from three donors against one, each with 50 Mbit/s of upload, in the same run.

    python -m scripts.bench.state_sync [--parameters 100000000] [--json]

Real swarm processes on loopback; the limit is the node's own, ``machine.max_upload``. The state is an anchor
of ``--parameters`` bf16 weights and two lossless diffs of 1 % changed each. A new node chooses a state, fetches,
verifies and adopts it as ``starling up --from-peers`` does; the time is from "fetching" to "done". The new node's
weights must have the announced hash in the end; otherwise the benchmark fails.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from node.events import Event, StateSyncing
from node.kernels.weight_diff_kernels import encode_diff_fast, patterns_of, weights_hash_fast
from node.policy.weight_layout import layout_of
from node.state_sync.adoption import StateAdoption
from node.state_sync.rebuild import bf16_copy
from node.state_sync.state_choice import StateRequirements
from node.state_sync.state_verdict import MeasuredSuccess
from protocol.messages import Heartbeat, StateAdvert, StateBlob, TaskSuccess
from protocol.weights.dense_weights import dense_bytes, dense_parts
from protocol.weights.tensor_layout import TensorLayout
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.common.swarm_processes import SwarmProcess, wait_for_peers
from swarm.blobs.store import ContentStore
from swarm.client import SwarmClient

FAMILY = b"f" * 16
LINK_BYTES_PER_SECOND = 50e6 / 8
ROW = 1_000_000  # weights of one tensor
STORE_BYTES = 4 << 30
TASK = "chain_sum"


def weights_of(parameters: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors = max(1, parameters // ROW)
    return {f"layer.{i:03}": torch.randn(parameters // tensors, generator=generator) * 0.02 for i in range(tensors)}


def published(store: ContentStore, trained: dict[str, Tensor], layout: TensorLayout) -> StateAdvert:
    """Puts an anchor and two diffs into ``store`` and returns their advert; changes ``trained`` to that state."""
    before = bf16_copy(layout, trained)
    at = weights_hash_fast(layout, before)
    anchor = StateBlob(store.put(dense_parts(layout, patterns_of(before))), dense_bytes(layout), at)
    diffs = []
    generator = torch.Generator().manual_seed(1)
    for _ in range(2):
        for tensor in trained.values():
            changed = torch.randint(tensor.numel(), (tensor.numel() // 100,), generator=generator)
            tensor[changed] *= 1.01
        after = bf16_copy(layout, trained)
        target = weights_hash_fast(layout, after)
        raw = encode_diff_fast(layout, before, after, base_hash=at, target_hash=target)
        diffs.append(StateBlob(store.put(raw), len(raw), target))
        before, at = after, target
    return StateAdvert(FAMILY, layout.digest, 1, 0, (TaskSuccess(TASK, 0.5, 1000),), anchor, tuple(diffs))


def heartbeat(phase: str) -> Heartbeat:
    return Heartbeat("bench", "starling", "bench", FAMILY, bytes(16), 0, 0, phase, 0.0, 0, 0, ())


def donors_of(stack: ExitStack, count: int, directory: Path, source: ContentStore, advert: StateAdvert) -> list[str]:
    """Starts donors that hold the state and announce it; returns their addresses."""
    addresses: list[str] = []
    for number in range(count):
        donor = SwarmProcess(
            number,
            directory,
            addresses[:1],
            store_bytes=STORE_BYTES,
            upload_bytes_per_second=LINK_BYTES_PER_SECOND,
        )
        stack.callback(donor.close)
        (donor.home / "blobs" / "incoming").mkdir(parents=True, exist_ok=True)
        for each in advert.blobs:
            (donor.home / "blobs" / "incoming" / each.blob.hex()).hardlink_to(source.path(each.blob))
        donor.client.beat(heartbeat("learning"))
        donor.client.share_state(advert)
        addresses += donor.addresses[:1]
    return addresses


def sync_seconds(
    donors: int, directory: Path, source: ContentStore, advert: StateAdvert, layout: TensorLayout
) -> float:
    """Returns the seconds in which a new node gets the state from ``donors`` donors, and checks that it has it."""
    trained = {name: torch.zeros(shape) for name, shape in layout.tensors}
    at: dict[str, float] = {}

    def note(event: Event) -> None:
        assert isinstance(event, StateSyncing)
        at.setdefault(event.stage, time.perf_counter())
        assert event.stage not in ("failed", "given_up"), event.because

    with ExitStack() as stack:
        addresses = donors_of(stack, donors, directory, source, advert)
        joiner = SwarmProcess(donors, directory, addresses, store_bytes=STORE_BYTES)
        stack.callback(joiner.close)
        wait_for_peers([joiner], donors, at_most_seconds=30.0)
        fetching = stack.enter_context(SwarmClient(joiner.home / "swarm.sock"))
        adoption = StateAdoption(
            joiner.client,
            fetching,
            layout,
            StateRequirements(layout.digest, (TASK,), dense_bytes(layout), STORE_BYTES),
            heartbeat=heartbeat,
            report=note,
            should_stop=lambda: None,
            measure=lambda: MeasuredSuccess(0.5, 1000),  # of both: moving the weights is what is timed
        )
        held = adoption.adopt_best(trained, patience_seconds=60.0)
    assert held is not None
    assert weights_hash_fast(layout, bf16_copy(layout, trained)) == advert.target
    return at["done"] - at["fetching"]


def figures(parameters: int, directory: Path) -> Sequence[Figure]:
    trained = weights_of(parameters)
    layout = layout_of(trained)
    source = ContentStore(directory / "source")
    advert = published(source, trained, layout)
    del trained
    one = sync_seconds(1, directory / "one", source, advert, layout)
    three = sync_seconds(3, directory / "three", source, advert, layout)
    size = sum(each.size for each in advert.blobs)
    return [
        Figure("state sync from three donors against one", one / three, "ratio", "higher", "≥ 2.5"),
        Figure("from one donor of 50 Mbit/s", one, "s", "lower"),
        Figure("from three", three, "s", "lower"),
        Figure("of what three such links carry", size / three / (3 * LINK_BYTES_PER_SECOND), "share", "higher"),
        Figure("anchor", advert.anchor.size / 1e6, "MB", "lower"),
        Figure("each diff, 1 % changed", advert.diffs[0].size / 1e6, "MB", "lower"),
    ]


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--parameters", type=int, default=100_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="st-") as directory:
        report("state_sync", figures(arguments.parameters, Path(directory)), as_json=arguments.json)


if __name__ == "__main__":
    main()
