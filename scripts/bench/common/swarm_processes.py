"""Swarm processes for benchmarks, each with the client that a learner would have, and rollout groups to share."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

import numpy as np

from protocol.messages import PromptRef
from protocol.rollouts import Completion, FinishReason, Group
from scripts.bench.common.forked_process import ForkedProcess
from scripts.bench.common.slow_network import SlowPeer
from swarm.client import SwarmClient

LOOPBACK = "127.0.0.1"
STORE_BYTES = 64 << 20
WORDS = ("the", "of", "and", "to", "in", "is", "that", "it", "for", "so", "we", "get", "times", "plus", "answer")


class SwarmProcess:
    """``python -m swarm.swarm_process`` with its own data directory, on loopback unless ``address`` is given.

    ``forked``: from a process that has imported it.
    """

    def __init__(
        self,
        number: int,
        directory: Path,
        peers: Sequence[str],
        *,
        address: str = LOOPBACK,
        prefix: Sequence[str] = (),  # of the command, to run it in another namespace
        store_bytes: int = STORE_BYTES,
        upload_bytes_per_second: float = 0.0,
        forked: bool = False,
        **settings_besides: object,
    ) -> None:
        self.home = directory / str(number)
        command = [*prefix, sys.executable, "-m", "swarm.swarm_process"]
        self.process: subprocess.Popen[bytes] | ForkedProcess
        if forked:
            self.process = ForkedProcess()
        else:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        settings = {
            "home": str(self.home),
            "swarm_name": "bench",
            "swarm_id": "00" * 16,
            "name": f"node-{number}",
            "listen": f"/ip4/{address}/tcp/0",
            "peers": list(peers),
            "lan_discovery": False,
            "store_bytes": store_bytes,
            "upload_bytes_per_second": upload_bytes_per_second,
            "log_level": "error",
            **settings_besides,
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(settings).encode() + b"\n")
        self.process.stdin.flush()
        self.addresses: list[str] = json.loads(self.process.stdout.readline())["addresses"]
        self.client = SwarmClient(self.home / "swarm.sock", timeout_seconds=120.0)

    def close(self) -> None:
        self.client.close()
        self.process.terminate()
        self.process.communicate()


@contextmanager
def swarm_of(
    count: int, directory: Path, *, places: Sequence[SlowPeer] = (), store_bytes: int = STORE_BYTES
) -> Iterator[list[SwarmProcess]]:
    """Yields ``count`` processes that each know the address of the first, and ends them in any case. ``places``: where
    each is, instead of on loopback."""
    processes: list[SwarmProcess] = []
    try:
        for number in range(count):
            known = processes[0].addresses if processes else ()
            address, prefix = (places[number].address, places[number].command(())) if places else (LOOPBACK, ())
            processes.append(
                SwarmProcess(number, directory, known, address=address, prefix=prefix, store_bytes=store_bytes)
            )
        yield processes
    finally:
        for process in processes:
            process.close()


def wait_for_peers(processes: Sequence[SwarmProcess], at_least: int, *, at_most_seconds: float) -> None:
    """Returns once every process has ``at_least`` connected peers, or the time is over."""
    until = time.monotonic() + at_most_seconds
    while min(p.client.status().connected_peers for p in processes) < at_least and time.monotonic() < until:
        time.sleep(0.2)


def random_text(random: Random, characters: int) -> bytes:
    words = [random.choice(WORDS) if random.random() < 0.7 else str(random.randrange(1000)) for _ in range(characters)]
    return " ".join(words)[:characters].encode()


def group(random: Random, characters: int, completions: int, policy_version: int) -> Group:
    """Returns a group, one token per character, with log-probabilities as of a trained policy: most near 0."""
    numbers = np.random.default_rng(random.randrange(2**32))
    written = tuple(
        Completion(
            text=answer,
            token_ids=np.frombuffer(answer, dtype=np.uint8).astype(np.int64),
            token_bytes=np.ones(characters, dtype=np.int64),
            logps=-numbers.gamma(0.3, 1.5, characters).astype(np.float32),
            finish=FinishReason.LENGTH,
            reward=float(random.random() < 0.5),
        )
        for answer in (random_text(random, characters) for _ in range(completions))
    )
    prompt = PromptRef("fraction_simplification", 1, bytes(16), random.randrange(2**31))
    return Group(prompt, bytes(16), bytes(16), policy_version, written)
