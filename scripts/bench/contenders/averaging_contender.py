"""hivemind's side of ``averaging_exchange.py``: one process of ``.venv-hivemind`` per peer, all started at once."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from scripts import REPOSITORY
from scripts.bench.common.averaging_round import AveragingRound, sent_bytes
from scripts.bench.common.processor_time import with_descendants_seconds
from scripts.bench.common.slow_network import SlowPeer
from scripts.bench.contenders.environments import HIVEMIND_PYTHON

PEER_MODULE: Final = "scripts.bench.contenders.averaging_hivemind"
ALLOWED_ERROR: Final = {"float32": 1e-7, "float16": 1e-4}  # largest weight: about 0.1
SETTLE_SECONDS: Final = 3.0  # until its DHT has settled


class HivemindPeer:
    """One process of hivemind."""

    def __init__(self, place: SlowPeer, number: int, options: Sequence[str], initial: Sequence[str]) -> None:
        command = [str(HIVEMIND_PYTHON), "-m", PEER_MODULE, "--address", place.address, "--peer", str(number), *options]
        self._process = subprocess.Popen(
            place.command([*command, "--initial", *initial]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sys.stderr,
            cwd=REPOSITORY,
            text=True,
        )

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        received: dict[str, Any] = json.loads(self._process.stdout.readline())
        return received

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20.0)
        except subprocess.TimeoutExpired:  # its daemon sometimes does not end
            self._process.kill()
            self._process.wait()


def hivemind_rounds(places: Sequence[SlowPeer], parameters: int, compression: str, rounds: int) -> list[AveragingRound]:
    """Runs ``rounds`` rounds with all peers in one group."""
    options = ["--peers", str(len(places)), "--parameters", str(parameters), "--compression", compression]
    peers: list[HivemindPeer] = []
    initial: list[str] = []
    try:
        for number, place in enumerate(places):
            peers.append(HivemindPeer(place, number, options, initial))
            initial = initial or peers[0].receive()["addresses"]
        for peer in peers[1:]:
            peer.receive()
        time.sleep(SETTLE_SECONDS)
        return [_round(peers, places, number, ALLOWED_ERROR[compression]) for number in range(rounds)]
    finally:
        for peer in peers:
            peer.close()


def _round(
    peers: Sequence[HivemindPeer], places: Sequence[SlowPeer], number: int, allowed_error: float
) -> AveragingRound:
    for peer in peers:
        peer.send(str(number))
    for peer in peers:
        peer.receive()
    processes = [peer.pid for peer in peers]
    before_bytes, before_seconds, began = sent_bytes(places), with_descendants_seconds(processes), time.monotonic()
    for peer in peers:
        peer.send("go")
    for peer in peers:
        peer.receive()
    seconds, taken_seconds = time.monotonic() - began, with_descendants_seconds(processes) - before_seconds
    bytes_sent = sent_bytes(places) - before_bytes
    for peer in peers:
        peer.send("check")
    errors = [peer.receive()["error"] for peer in peers]
    right = sum(error <= allowed_error for error in errors) / len(errors)
    return AveragingRound(seconds, bytes_sent, taken_seconds / len(peers), right)
