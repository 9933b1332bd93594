"""Nodes that meet by the name of a swarm in a signed list, and again by the name of a friend."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.hang_guard import HANG_SECONDS

pytestmark = pytest.mark.processes


def is_robin(peer: Any) -> bool:
    return peer["connected"] and peer["heartbeat"] is not None and peer["heartbeat"]["name"] == "robin"


def test_a_node_joins_by_a_name_in_a_list_and_again_by_its_friends_name_without_the_list(processes: Any) -> None:
    listing, second_home = processes.root / "swarms.list", processes.root / "second"
    first = processes.up("--name", "robin", "--set", "swarm.name=lark", torch=False)
    first.wait_for_event("node")
    published = processes.run("swarm", "publish", str(listing), "--home", str(first.home), "--json")
    assert published.returncode == 0, published.stderr
    assert json.loads(published.stdout)["doors"], "of the node that runs there"
    second = processes.up("--swarm", "lark", "--list", listing.as_uri(), home=second_home, torch=False)
    second.wait_for_round(1)
    (robin,) = processes.peers_once(second_home, is_robin)
    assert robin["peer"] == json.loads(published.stdout)["signer"]
    assert processes.status(second)["swarm"]["swarm"] == "lark"
    deadline = time.monotonic() + HANG_SECONDS
    while b"robin" not in (second_home / "metrics.jsonl").read_bytes():  # whom it met is recorded
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert second.stop() == 0
    listing.unlink()
    again = processes.up("--swarm", "lark", "--friend", "robin", home=second_home, torch=False)
    again.wait_for_round(1)
    processes.peers_once(second_home, is_robin)
    assert again.stop() == first.stop() == 0
    assert processes.none_alive()
