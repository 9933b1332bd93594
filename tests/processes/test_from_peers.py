"""``starling up --from-peers`` with real nodes: weights of another one, a fetch that is killed, and nobody to ask."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from node.checkpoints.checkpoints import read_newest
from node.kernels.weight_diff_kernels import weights_hash_fast
from node.policy.weight_layout import layout_of
from node.state_sync.rebuild import bf16_copy
from protocol.limits import CHUNK_BYTES
from swarm.client import SwarmClient

pytestmark = pytest.mark.processes

SMALL = ("--set", "learner.own_groups=4", "--set", "learner.share_groups=0", "--set", "averaging.every_rounds=0")
SLOWLY = ("--set", "learner.learning_rate=1e-5")  # its weights are its own, and answer as well as the joiner's
STILL = ("--set", "learner.learning_rate=1e-30")  # no step is large enough to change a weight
UPLOAD = ("--set", "machine.max_upload=120 kB/s")  # a state of one MB takes nine seconds
ONE_STATE = ("--set", "checkpoint.publish_every_rounds=1000000")
SOON = ("--set", "swarm.heartbeat_seconds=0.5")
PREFIX = "weights."


def hash_of_checkpoint(home: Path) -> str:
    """Of the weights in the newest checkpoint."""
    snapshot = read_newest(home / "checkpoints").snapshot
    assert snapshot is not None
    weights = {name.removeprefix(PREFIX): t for name, t in snapshot.tensors.items() if name.startswith(PREFIX)}
    layout = layout_of(weights)
    return weights_hash_fast(layout, bf16_copy(layout, weights)).hex()


def sent_bytes(home: Path) -> int:
    with SwarmClient(home / "swarm.sock") as client:
        return client.status().sent_bytes


@pytest.fixture(scope="module")
def donor(shared: Any) -> Any:
    """A node that finds nobody to start from, and trains."""
    alone = ("--from-peers", "--set", "checkpoint.from_peers_seconds=1")
    return shared.up(*SMALL, *SLOWLY, *UPLOAD, *ONE_STATE, *SOON, *alone, home=shared.root / "donor")


def test_with_nobody_to_ask_a_node_says_so_and_starts_from_its_own_model(donor: Any) -> None:
    said = donor.wait_for(lambda e: e["event"] == "catching_up" and e["stage"] == "given_up")
    assert said["weights"] is None and "no peer of our family announces a state" in said["because"]
    assert donor.wait_for_event("ready")["round"] == 0
    donor.wait_for_round(1)


def damage(home: Path) -> Path:
    """A checkpoint of which little is left, as the only one."""
    shutil.rmtree(home / "checkpoints", ignore_errors=True)
    checkpoint = home / "checkpoints" / "round-000007"
    checkpoint.mkdir(parents=True)
    (checkpoint / "tensors.safetensors").write_bytes(b"all that is left")
    return checkpoint


def test_a_joiner_killed_in_the_middle_of_the_fetch_whose_checkpoints_are_damaged_then_resumes_it_by_itself(
    donor: Any, shared: Any, processes: Any
) -> None:
    address = donor.wait_for_event("node")["addresses"][0]
    donor.wait_for_round(3)
    home = processes.root / "joiner"
    flags = (*SMALL, *STILL, *SOON, "--peer", address, "--rounds", "1")

    killed = processes.up(*flags, "--from-peers", home=home)
    state = donor.wait_for_event("state_published")
    learner = shared.status(donor)["learner_process"]["pid"]
    os.kill(learner, signal.SIGSTOP)  # the state is with the swarm process; training on would only take time
    killed.wait_for(lambda e: e["event"] == "catching_up" and e["here_bytes"] >= 2 * CHUNK_BYTES)
    killed.process.kill()

    assert processes.none_alive()
    damaged = damage(home)
    joiner = processes.up(*flags, home=home)  # not told to start from peers
    told = joiner.wait_for_event("checkpoints_damaged")
    assert (told["continues_from"], told["asks_peers"]) == (None, True)
    assert "DAMAGED CHECKPOINT: round-000007" in joiner.wait_for_note("DAMAGED")["text"]
    aside = Path(told["damaged"][0]["aside"])
    assert (aside / "tensors.safetensors").read_bytes() == b"all that is left" and not damaged.exists()
    done = joiner.wait_for(lambda e: e["event"] == "catching_up" and e["stage"] in ("failed", "done", "given_up"))
    assert done["stage"] == "done", done["because"]
    assert (done["weights"], done["policy_version"]) == (state["weights"], state["policy_version"])
    assert joiner.end() == 0
    assert joiner.of_kind("round")[-1]["policy_version"] < 3  # counts of a peer stay the peer's
    assert hash_of_checkpoint(home) == state["weights"] and aside.exists()
    # The first two chunks were not sent again; a chunk that was under way when the joiner was killed may have been.
    assert sent_bytes(donor.home) < state["size_bytes"] + 1.7 * CHUNK_BYTES
    os.kill(learner, signal.SIGCONT)
    assert donor.stop() == 0
    assert processes.none_alive() and shared.none_alive()


def test_a_stop_while_looking_for_peers_ends_the_node_in_order(processes: Any) -> None:
    node = processes.up(*SMALL, "--from-peers", "--set", "checkpoint.from_peers_seconds=1000")
    node.wait_for(lambda e: e["event"] == "catching_up" and e["stage"] == "looking")
    assert node.stop() == 0
    assert processes.none_alive()
