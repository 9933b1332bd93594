"""The API of a real node over TCP: what it tells while it trains, and that only the token ends it."""

from __future__ import annotations

import json
import socket
import stat
import urllib.error
import urllib.request
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.hang_guard import HANG_SECONDS

pytestmark = pytest.mark.processes


def test_a_node_with_a_port_streams_its_rounds_and_ends_for_whoever_has_the_token(processes: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    node = processes.up("--set", f"api.port={port}", torch=False)
    node.wait_for_event("node")
    root = f"http://127.0.0.1:{port}"
    heard: dict[str, Any] = {}
    with urllib.request.urlopen(f"{root}/api/v1/events", timeout=HANG_SECONDS) as stream:
        kind = ""
        while "round" not in heard:
            name, _, value = stream.readline().decode().strip().partition(": ")
            kind = value if name == "event" else kind
            if name == "data":
                heard[kind] = json.loads(value)
    assert heard["round"]["event"] == "round" and heard["status"]["home"] == str(node.home)
    node.wait_for_round(heard["round"]["round"] + 1)  # the reader that left stops nothing
    with urllib.request.urlopen(f"{root}/metrics", timeout=HANG_SECONDS) as answer:
        families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
    assert families["starling_rounds"].samples[0].value >= heard["round"]["round"]
    assert families["starling_sent_bytes"].type == "counter"
    token = node.home / "api.token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    stop = urllib.request.Request(f"{root}/api/v1/stop", method="POST")
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        urllib.request.urlopen(stop, timeout=HANG_SECONDS)
    refused.value.close()
    stop.add_header("Authorization", f"Bearer {token.read_text().strip()}")
    with urllib.request.urlopen(stop, timeout=HANG_SECONDS) as answer:
        assert json.load(answer) == {"stopping": True}
    assert node.end() == 0
    assert token.read_text().strip() not in json.dumps(node.events)
    assert processes.none_alive()


def test_api_port_that_was_set_and_is_taken_ends_the_start_with_69_and_names_the_key(processes: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = processes.run("up", "--home", str(processes.root / "home"), "--set", f"api.port={port}")
    assert ended.returncode == 69 and "api.port" in ended.stderr
    assert processes.none_alive()
