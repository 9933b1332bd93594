"""hivemind's side of ``averaging_exchange.py``: a process a peer, run by ``.venv-hivemind``, all told to go at once."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from averaging_round import Round, sent_bytes
from hivemind_environment import HIVEMIND_PYTHON
from slow_network import SlowPeer

SCRIPT: Final = Path(__file__).with_name("averaging_hivemind.py")
ALLOWED_ERROR: Final = {"float32": 1e-7, "float16": 1e-4}  # largest weight: about 0.1
SETTLE_SECONDS: Final = 3.0  # for its DHT to come to rest


class HivemindPeer:
    """One process."""

    def __init__(self, place: SlowPeer, number: int, options: Sequence[str], initial: Sequence[str]) -> None:
        command = [str(HIVEMIND_PYTHON), str(SCRIPT), "--address", place.address, "--peer", str(number), *options]
        self._process = subprocess.Popen(
            place.command([*command, "--initial", *initial]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sys.stderr,
            text=True,
        )

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        heard: dict[str, Any] = json.loads(self._process.stdout.readline())
        return heard

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20.0)
        except subprocess.TimeoutExpired:  # its daemon now and then does not end
            self._process.kill()
            self._process.wait()


def hivemind_rounds(places: Sequence[SlowPeer], parameters: int, compression: str, rounds: int) -> list[Round]:
    """As many rounds, all peers in one group."""
    options = ["--peers", str(len(places)), "--parameters", str(parameters), "--compression", compression]
    peers: list[HivemindPeer] = []
    initial: list[str] = []
    try:
        for number, place in enumerate(places):
            peers.append(HivemindPeer(place, number, options, initial))
            initial = initial or peers[0].hear()["addresses"]
        for peer in peers[1:]:
            peer.hear()
        time.sleep(SETTLE_SECONDS)
        return [_round(peers, places, number, ALLOWED_ERROR[compression]) for number in range(rounds)]
    finally:
        for peer in peers:
            peer.close()


def _round(peers: Sequence[HivemindPeer], places: Sequence[SlowPeer], number: int, allowed_error: float) -> Round:
    for peer in peers:
        peer.say(str(number))
    for peer in peers:
        peer.hear()
    before_bytes, began = sent_bytes(places), time.monotonic()
    for peer in peers:
        peer.say("go")
    for peer in peers:
        peer.hear()
    seconds, bytes_sent = time.monotonic() - began, sent_bytes(places) - before_bytes
    errors = [peer.hear()["error"] for peer in peers]
    return Round(seconds, bytes_sent, sum(error <= allowed_error for error in errors) / len(errors))
