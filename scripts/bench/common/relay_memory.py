"""Memory of ``starling relay``: alone, and with a place for each of many peers. ``reach --memory`` runs it.

The relay and its clients (``common.light_clients``) run in a network namespace, the clients at addresses of their own:
a relay gives few places to one network. The relay is the process of ``starling relay`` as its users start it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from scripts.bench.common.light_clients import client_ip
from scripts.bench.common.nat_lab import NatPlace, nat_lab
from scripts.bench.common.nat_routers import RouterKind
from scripts.bench.common.process_memory import ProcessMemory, process_memory
from scripts.bench.common.reporting import Figure
from scripts.bench.common.slow_network import run_tool
from swarm.client import SwarmClient

RESERVATIONS: Final = 200
SETTLE_SECONDS: Final = 30.0  # after the last place was given; in it caches fill and the mesh forms
BAR: Final = "≤ 100"
HOST: Final = "swarm.hosts.libp2p.libp2p_host"
IMPORTS: Final = {
    "all of libp2p": "libp2p",
    "a relay": f"node.relay.running, {HOST}",
    "a swarm process": f"swarm.swarm_process, {HOST}",
}


def memory_figures(minutes: float, reservations: int) -> list[Figure]:
    """Raises ``NoSlowNetworkError`` where namespaces are impossible."""
    with ExitStack() as stack:
        (place,) = stack.enter_context(nat_lab([RouterKind.NONE]))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pid, client = stack.enter_context(_relay(place, directory))
        alone, status = process_memory(pid), client.status()
        address = f"{place.multiaddr}/p2p/{status.peer}"
        stack.enter_context(_clients(place, address, status.swarm_id, reservations))
        time.sleep(SETTLE_SECONDS)
        samples = _sampled(pid, client, minutes * 60.0)
        full, status = process_memory(pid), client.status()
    seconds, resident, places = np.array(samples).T
    growth = float(np.polyfit(seconds, resident, 1)[0])
    what = f"relay with {reservations} reservations"
    return [
        *(
            Figure(
                f"a process that has imported {what} and does nothing: resident", _imported_mb(modules), "MB", "lower"
            )
            for what, modules in IMPORTS.items()
        ),
        *_figures("relay alone", alone),
        Figure(f"{what}: resident {minutes:g} minutes before", _mb(float(resident[0])), "MB", "lower"),
        *_figures(what, full),
        Figure(f"{what}: growth", growth * 60.0 / 1e6, "MB/minute", "lower", "flat"),
        Figure(f"{what}: reservations at the end", float(status.reach.reservations), "", "higher", f"{reservations}"),
        Figure(f"{what}: fewest reservations at any time", float(places.min()), "", "higher", f"{reservations}"),
        Figure(f"{what}: connected at the end", float(status.connected_peers), "", "higher", f"{reservations}"),
        Figure(f"{what}: passed on", _mb(status.reach.relayed_bytes), "MB", "higher"),
    ]


def _figures(what: str, memory: ProcessMemory) -> Iterator[Figure]:
    yield Figure(f"{what}: resident", _mb(memory.resident), "MB", "lower", BAR)
    yield Figure(f"{what}: of these anonymous, the rest is shared libraries", _mb(memory.anonymous), "MB", "lower")
    yield Figure(f"{what}: peak", _mb(memory.peak), "MB", "lower")


def _imported_mb(modules: str) -> float:
    code = f"import {modules}; from scripts.bench.common.process_memory import process_memory as m; print(m().resident)"
    return _mb(float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout))


def _mb(amount_bytes: float) -> float:
    return amount_bytes / 1e6


def _sampled(pid: int, client: SwarmClient, length_seconds: float) -> list[tuple[float, float, int]]:
    """Returns now and then the seconds since the start, the resident bytes and the places taken."""
    samples = []
    began = time.monotonic()
    while (elapsed := time.monotonic() - began) < length_seconds:
        samples.append((elapsed, float(process_memory(pid).resident), client.status().reach.reservations))
        time.sleep(2.0)
    return samples


@contextmanager
def _relay(place: NatPlace, directory: Path) -> Iterator[tuple[int, SwarmClient]]:
    verb = [sys.executable, "-m", "node.cli.main", "relay", "--home", str(directory), "--json"]
    command = place.command([*verb, "--listen", place.multiaddr, "--set", "swarm.lan_discovery=false"])
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # ``ready``
            time.sleep(5.0)
            with SwarmClient(directory / "swarm.sock", timeout_seconds=60.0) as client:
                yield process.pid, client
        finally:
            process.terminate()


@contextmanager
def _clients(place: NatPlace, relay: str, swarm_id: str, number: int) -> Iterator[None]:
    for each in range(number):
        run_tool("ip", "-n", place.namespace, "address", "add", f"{client_ip(each)}/32", "dev", "lo")
    module = [sys.executable, "-m", "scripts.bench.common.light_clients"]
    command = place.command([*module, relay, swarm_id, str(number)])
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError("the clients ended before all had a place")
            yield
        finally:
            process.terminate()
