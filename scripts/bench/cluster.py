"""A private cluster: how it refuses strangers, how it cuts off a revoked member, and how soon a new node learns.

    python -m scripts.bench.cluster [--seconds 90] [--json]

Strangers. One member runs in its own process. Whole hosts dial it from here, one after the other, with another key, and
with the key and an invite of another swarm; then follow first bytes alone, fifty connections at a time, without a key
and with another one. Seconds are those of the slowest refusal: on the stranger's side until its dial has failed, on the
member's side until it has closed the connection. Attempts end after ``--seconds`` or 10,000 attempts; growth is the
member's memory after them, less that after the first tenth.

Revocation. Eight swarm processes, joined by invite; one of them receives the list. Seconds until none of them is
connected to the revoked one, and until that one has ended with exit code 77.

New node. A founder trains; ``starling up --join`` starts in an empty directory; seconds from its start to the end of
the first round in which it learnt from a rollout of the founder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from protocol.cluster.cluster_manifest import Cluster, ClusterManifest
from protocol.cluster.documents import Invitation, Revocations, sign_invitation, sign_revocations
from protocol.cluster.invite import decode_invite, encode_invite
from protocol.errors import RefusedError
from protocol.identity import NodeKey
from scripts.bench.common.process_usage import process_memory
from scripts.bench.common.processes import STARLING, quiet_environment, started_node
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.common.swarm_processes import SwarmProcess
from swarm.cluster.cluster_files import cluster_files, found_cluster
from swarm.cluster.joining import Newcomer
from swarm.hosts.libp2p.libp2p_host import Libp2pHost
from swarm.hosts.libp2p.private_network import GREETING, PrivateConnection

MEMBERS = 8
ATTEMPTS = 10_000
DIALS = 300  # by whole hosts; the other attempts send first bytes alone, at which a host's attempt ends too
HANG_SECONDS = 60.0
OWNER, PSK = NodeKey.generate(), os.urandom(32)


def founded(home: Path) -> Cluster:
    home.mkdir()
    manifest = ClusterManifest("bench", (), OWNER.public_bytes, int(time.time()) - 60, "invitation", 64, 90 * 86_400)
    node = NodeKey.load_or_create(home / "identity.key")
    return found_cluster(cluster_files(home), manifest, owner=OWNER, node=node, psk=PSK)


def invite(cluster: Cluster, addresses: list[str], seats: int = 1) -> str:
    key, now = NodeKey.generate(), int(time.time())
    terms = Invitation(cluster.swarm_id, key.public_bytes, seats, False, now, now, now + 3600, "")
    return encode_invite(
        document=sign_invitation(OWNER, terms), key=key, owner=OWNER.public_bytes, psk=PSK, addresses=addresses
    )


def member(number: int, directory: Path, cluster: Cluster, peers: list[str]) -> SwarmProcess:
    return SwarmProcess(number, directory, peers, swarm_name="bench", swarm_id=cluster.swarm_id.hex(), private=True)


class Recorder:
    """Records what a stranger with another key sends first."""

    is_initiator = True

    def __init__(self) -> None:
        self.sent = b""

    async def write(self, data: bytes) -> None:
        self.sent += data


async def first_bytes(psk: bytes | None) -> bytes:
    if psk is None:
        return GREETING
    recorder = Recorder()
    await PrivateConnection(recorder, [psk]).write(GREETING)  # type: ignore[arg-type]
    return recorder.sent


async def refused_seconds(port: int, sent: bytes) -> float:
    """Returns the seconds until the member has closed a connection that begins with ``sent``."""
    began = time.perf_counter()
    async with await trio.open_tcp_stream("127.0.0.1", port) as socket:
        try:
            await socket.send_all(sent)
            while await socket.receive_some(4096):
                pass
        except trio.BrokenResourceError:
            pass  # reset: our bytes were still in flight when the connection closed
    return time.perf_counter() - began


async def failed_dial_seconds(address: str, text: str) -> float:
    """Returns the seconds until the dial of a whole host has failed."""
    key = NodeKey.generate()
    host = Libp2pHost(key, [], handshake=Newcomer(key, decode_invite(text), wall_clock=time.time))
    async with host.run():
        began = time.perf_counter()
        try:
            await host.connect(address, deadline_seconds=HANG_SECONDS)
        except RefusedError:
            return time.perf_counter() - began
    raise SystemExit("the member accepted the stranger")


async def strangers(process: SwarmProcess, cluster: Cluster, seconds: float) -> list[Figure]:
    """Measures refusals by the member ``process``."""
    address = next(a for a in process.addresses if "127.0.0.1" in a)
    port = int(address.split("/")[4])
    sound = invite(cluster, [address])
    other_key = encode_invite(
        document=decode_invite(sound).document, key=decode_invite(sound).key, owner=OWNER.public_bytes,
        psk=os.urandom(32), addresses=[address],
    )  # fmt: skip
    of_other_swarm = invite(Cluster(cluster.manifest, os.urandom(16), cluster.document), [address])
    dials = [
        await failed_dial_seconds(address, text) for _ in range(DIALS // 2) for text in (other_key, of_other_swarm)
    ]
    sent = [await first_bytes(None), await first_bytes(os.urandom(32))]
    refusals: list[float] = []
    resident: list[int] = []
    began = time.monotonic()
    while len(refusals) < ATTEMPTS and time.monotonic() - began < seconds:
        async with trio.open_nursery() as nursery:

            async def one(first: bytes) -> None:
                refusals.append(await refused_seconds(port, first))

            for number in range(50):
                nursery.start_soon(one, sent[number % 2])
        resident.append(process_memory(process.process.pid).resident)
    warm = resident[len(resident) // 10]
    return [
        Figure("stranger refused, its own side, slowest of whole hosts", max(dials), "s", "lower", "≤ 2"),
        Figure("stranger refused, the member's side, slowest", max(refusals), "s", "lower", "≤ 2"),
        Figure("attempts", len(refusals) + len(dials), "", "higher"),
        Figure("growth of the member's memory over them", (resident[-1] - warm) / 1e6, "MB", "lower", "none"),
    ]


def join(home: Path, text: str) -> None:
    settings = json.dumps({"home": str(home), "invite": text, "lan_discovery": False})
    home.mkdir()
    subprocess.run(
        [sys.executable, "-m", "swarm.cluster.joining"], input=settings.encode(), check=True, capture_output=True
    )


def wait_until(holds: Callable[[], bool]) -> None:
    limit = time.monotonic() + HANG_SECONDS
    while not holds():
        if time.monotonic() > limit:
            raise SystemExit(f"not within {HANG_SECONDS:g} s")
        time.sleep(0.05)


def connected(process: SwarmProcess) -> set[str]:
    return {peer.peer for peer in process.client.peers() if peer.connected}


def revocation(directory: Path, cluster: Cluster, first: SwarmProcess) -> list[Figure]:
    """Measures how soon a swarm of ``MEMBERS``, of which ``first`` runs already, cuts off a revoked member."""
    text = invite(cluster, first.addresses, MEMBERS - 1)
    swarm = [first]
    try:
        for number in range(1, MEMBERS):
            join(directory / str(number), text)
            swarm.append(member(number, directory, cluster, first.addresses))
        wait_until(lambda: all(len(connected(process)) == MEMBERS - 1 for process in swarm))
        out, others = swarm[3], [process for process in swarm if process is not swarm[3]]
        key = NodeKey.load(out.home / "identity.key")
        listed = Revocations(cluster.swarm_id, 1, int(time.time()), (key.public_bytes,), ())
        began = time.monotonic()
        swarm[5].client.decree("revocations", sign_revocations(OWNER, listed))
        wait_until(lambda: not any(key.peer_id in connected(process) for process in others))
        cut_off = time.monotonic() - began
        code = out.process.wait(HANG_SECONDS)
        ended_seconds = time.monotonic() - began
        if code != 77:
            raise SystemExit(f"the revoked member ended with {code}")
    finally:
        for process in swarm[1:]:
            process.close()
    return [
        Figure(f"revoked, until no member of {MEMBERS} is connected to it", cut_off, "s", "lower", "≤ 10"),
        Figure("and until it has ended by itself, with the reason", ended_seconds, "s", "lower"),
    ]


def new_node(directory: Path) -> list[Figure]:
    """Measures how soon a node with an invite learns from a rollout of the founder."""
    environment = quiet_environment()
    home = directory / "founder"
    created = [*STARLING, "swarm", "create", "--private", "--name", "bench", "--home", str(home)]
    subprocess.run(created, check=True, capture_output=True, env=environment)

    def wait_for(process: subprocess.Popen[bytes], wanted: Callable[[dict[str, Any]], bool]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if wanted(json.loads(line)):
                return
        raise SystemExit("the node ended")

    nodes = [started_node(home)]
    try:
        wait_for(nodes[0], lambda event: event["event"] == "round")
        invited = subprocess.run(
            [*STARLING, "invite", "--home", str(home)], check=True, capture_output=True, text=True, env=environment
        )
        began = time.monotonic()
        nodes.append(started_node(directory / "second", "--model", "builtin:robin", "--join", invited.stdout.strip()))
        wait_for(nodes[1], lambda event: event["event"] == "round" and event["foreign_groups_used_total"] > 0)
        seconds = time.monotonic() - began
    finally:
        for node in nodes:
            node.terminate()
        for node in nodes:
            node.communicate()
    return [Figure("fresh second node, to its first foreign rollout used", seconds, "s", "lower", "≤ 60")]


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=90.0, help="at most so many seconds of strangers")
    flags = parser.parse_args()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="st-") as folder:
        directory = Path(folder)
        cluster = founded(directory / "0")
        first = member(0, directory, cluster, [])
        try:
            figures += trio.run(strangers, first, cluster, flags.seconds)
            figures += revocation(directory, cluster, first)
        finally:
            first.close()
        figures += new_node(directory)
    report("cluster", figures, as_json=flags.json)


if __name__ == "__main__":
    main()
