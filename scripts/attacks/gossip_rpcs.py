"""What RPCs of GossipSub, at most 1 MiB together, cost the swarm process that they are sent to.

    python -m scripts.attacks.gossip_rpcs [--json] [--only KIND ...]

For each kind of attack: a fresh swarm process on loopback, one stranger that connects and sends, and a client that
asks for the status 20 times a second. Figures are of the victim until it is idle again: CPU seconds, growth of its
resident memory at the peak, the longest wait for a status, and the CPU seconds that the victim took within that wait
(which a busy machine does not lengthen).
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2

from protocol import wire
from protocol.errors import TransportError
from protocol.identity import NodeKey
from protocol.meeting_points import gossip_topic
from protocol.messages import GroupAdvert, PromptRef, RolloutAdvert
from scripts.bench.common.process_usage import ProcessMemory, cpu_seconds, forget_peak, process_memory
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.common.swarm_processes import SwarmProcess
from swarm.client import SwarmClient
from swarm.host import Stream
from swarm.hosts.libp2p.libp2p_host import Libp2pHost

SWARM_ID = bytes(16)
TOPIC = gossip_topic(SWARM_ID)
GOSSIPSUB = "/meshsub/1.1.0"
RPC_BYTES = 1 << 20
IDLE_CPU_SECONDS = 0.05  # in a second: the victim has finished
MEASURED_SECONDS = 150.0  # at most, of one attack


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def framed(rpc: bytes) -> bytes:
    return varint(len(rpc)) + rpc


def filled(entry: Callable[[int], bytes], at_most_bytes: int = RPC_BYTES - 64, wrap: int | None = None) -> bytes:
    """Returns as many entries as fit into one RPC; inside field ``wrap`` if that is given."""
    entries, size, number = [], 0, 0
    while size + len(made := entry(number)) <= at_most_bytes:
        entries.append(made)
        size, number = size + len(made), number + 1
    return b"".join(entries) if wrap is None else field(wrap, b"".join(entries))


def signed(data: bytes, seed: int = 1) -> bytes:
    """Returns a message of GossipSub with the signature of its publisher."""
    pair = create_new_key_pair(seed=seed.to_bytes(32, "big"))
    message = rpc_pb2.Message(
        from_id=ID.from_pubkey(pair.public_key).to_bytes(), data=data, seqno=os.urandom(8), topicIDs=[TOPIC]
    )
    message.signature = pair.private_key.sign(b"libp2p-pubsub:" + message.SerializeToString())
    return field(2, message.SerializeToString())


def advert(number: int, groups: int = 40, completions: int = 64) -> bytes:
    """Returns a valid announcement of a sender of its own, near the limits of size and of values."""
    one = GroupAdvert(
        number.to_bytes(32, "big"), 1, PromptRef("t", 1, bytes(16), number), (0.5,) * completions, (1,) * completions,
        (-0.5,) * completions,
    )  # fmt: skip
    body = RolloutAdvert(bytes(16), bytes(16), 1, (one,) * groups)
    key = NodeKey((number + 9).to_bytes(32, "big"))
    return wire.seal(key, swarm_id=SWARM_ID, sequence=number + 1, time_seconds=time.time(), body=body)


def other_major(number: int) -> bytes:
    payload = msgspec.msgpack.encode([2, 0, number, [[0] * 1000] * 16])
    return msgspec.msgpack.encode([payload, bytes(64)])


def message_id(data: bytes) -> bytes:
    return b64encode(sha256(TOPIC.encode() + b"\0" + data).digest()[:18])


def cached() -> tuple[bytes, bytes]:
    """Returns an RPC that leaves a large message in the victim's cache, and the id of that message."""
    data = advert(1)
    return framed(signed(data)), message_id(data)


def unsigned(number: int) -> bytes:
    return field(2, field(2, b"%05d" % number) + field(4, TOPIC.encode()))


def iwant(ids: int, times: int = 1) -> Iterable[bytes]:
    publish, wanted = cached()
    yield publish
    for _ in range(times):
        yield framed(field(3, field(2, field(1, wanted) * ids)))


def muted() -> Iterable[bytes]:
    yield framed(b"".join(map(unsigned, range(40))))
    for _ in range(10):
        yield framed(filled(unsigned, RPC_BYTES // 10))


def flapping() -> Iterable[bytes]:
    yield from (framed(signed(advert(n), n + 1)) for n in range(8))
    yield framed(
        b"".join(field(1, b"\x08" + bytes([n % 2]) + field(2, TOPIC.encode())) for n in range(16))
    ) * 1000  # fmt: skip


KINDS: dict[str, Callable[[], Iterable[bytes]]] = {
    "nothing, for comparison": lambda: [b""],
    "unsigned messages, 4000": lambda: [framed(b"".join(map(unsigned, range(4000))))],
    "unsigned messages, 1 MiB": lambda: [framed(filled(unsigned))],
    "empty messages": lambda: [framed(b"\x12\x00" * (RPC_BYTES // 2 - 8))],
    "IWANT of one id": lambda: iwant(8000),
    "IWANT in 100 RPCs": lambda: iwant(50, 100),
    "IHAVE of made-up ids": lambda: [
        framed(field(3, field(1, field(1, TOPIC.encode()) + filled(lambda n: field(2, b"%024d" % n), 1_000_000))))
    ],
    "IHAVEs with one id": lambda: [
        framed(filled(lambda n: field(1, field(1, TOPIC.encode()) + field(2, b"%024d" % n)), 1_000_000, wrap=3))
    ],
    "GRAFTs of topics": lambda: [framed(filled(lambda n: field(3, field(1, b"%08d" % n)), wrap=3))],
    "PRUNEs of topics": lambda: [framed(filled(lambda n: field(4, field(1, b"%08d" % n)), wrap=3))],
    "PRUNE with peers": lambda: [
        framed(field(3, field(4, field(1, TOPIC.encode()) + filled(lambda n: field(2, field(1, b"%038d" % n)), 10**6))))
    ],
    "subscriptions": lambda: [framed(filled(lambda n: field(1, b"\x08\x01" + field(2, b"%08d" % n))))],
    "subscribe and unsubscribe": flapping,
    "IDONTWANT": lambda: [framed(field(3, field(5, filled(lambda n: field(1, b"%024d" % n), 1_000_000))))],
    "unknown fields": lambda: [framed(b"\x78\x01" * (RPC_BYTES // 2 - 8))],
    "nested groups": lambda: [framed(b"\x7b" * (RPC_BYTES - 8))],
    "a million RPCs": lambda: [b"\x00" * RPC_BYTES],
    "IWANTs in RPCs of 9 bytes": lambda: [framed(field(3, field(2, field(1, b"x")))) * (RPC_BYTES // 9)],
    "messages in RPCs of 3 bytes": lambda: [framed(b"\x12\x00") * (RPC_BYTES // 3)],
    "one message again and again": lambda: [framed(unsigned(1)) * 2, framed(signed(b"x")) * 8000],
    "another major version": lambda: [framed(b"".join(signed(other_major(n)) for n in range(40)))],
    "valid adverts of 16 senders": lambda: [framed(b"".join(signed(advert(n), n + 1) for n in range(16)))],
    "muted, then messages": muted,
}  # fmt: skip


class Victim:
    """A swarm process that is measured."""

    def __init__(self, directory: Path) -> None:
        self.process = SwarmProcess(0, directory, ())
        self._pid = self.process.process.pid
        self.longest_wait_seconds = self.longest_wait_cpu_seconds = 0.0
        self._stop = threading.Event()

    def cpu_seconds(self) -> float:
        return cpu_seconds(self._pid)

    def memory(self) -> ProcessMemory:
        return process_memory(self._pid)

    def watch_status(self) -> None:
        client = SwarmClient(self.process.home / "swarm.sock", timeout_seconds=300.0)
        while not self._stop.wait(0.05):
            began, cpu = time.monotonic(), self.cpu_seconds()
            client.status()
            if (waited := time.monotonic() - began) > self.longest_wait_seconds:
                self.longest_wait_seconds, self.longest_wait_cpu_seconds = waited, self.cpu_seconds() - cpu
        client.close()

    def close(self) -> None:
        self._stop.set()
        self.process.close()


async def attack(victim: Victim, pieces: Iterable[bytes]) -> tuple[float, float]:
    """Returns the CPU seconds and the peak growth in bytes that ``pieces`` cost the victim."""
    host = Libp2pHost(NodeKey.generate(), ["/ip4/127.0.0.1/tcp/0"])
    async with host.run():
        peer = await host.connect(victim.process.addresses[0], deadline_seconds=20)
        stream = await host.open_stream(peer, GOSSIPSUB, deadline_seconds=20)
        *preparation, last = pieces
        async with anyio.create_task_group() as tasks:
            await send(stream, preparation[:1])
            await anyio.sleep(3)
            cpu, memory, began = victim.cpu_seconds(), victim.memory().resident, time.monotonic()
            forget_peak(victim.process.process.pid)
            watcher = threading.Thread(target=victim.watch_status, daemon=True)
            watcher.start()
            tasks.start_soon(send, stream, [*preparation[1:], last])
            idle = 0
            while idle < 2 and time.monotonic() - began < MEASURED_SECONDS:
                before = victim.cpu_seconds()
                await anyio.sleep(1)
                idle = idle + 1 if victim.cpu_seconds() - before < IDLE_CPU_SECONDS else 0
            tasks.cancel_scope.cancel()
        return victim.cpu_seconds() - cpu, victim.memory().peak - memory


async def send(stream: Stream, pieces: Iterable[bytes]) -> None:
    with suppress(TransportError):  # the victim hung up, which is its right
        for piece in pieces:
            await stream.send(piece)


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--only", nargs="*", choices=KINDS, metavar="KIND", default=list(KINDS))
    arguments = parser.parse_args()
    figures = []
    for kind in arguments.only:
        with tempfile.TemporaryDirectory() as directory:
            victim = Victim(Path(directory))
            try:
                cpu, grown = anyio.run(attack, victim, KINDS[kind](), backend="trio")
            finally:
                victim.close()
        figures += [
            Figure(f"{kind}: CPU", cpu, "s", "lower", "≤ 0.5"),
            Figure(f"{kind}: memory", grown / 1e6, "MB", "lower", "≤ 20"),
            Figure(f"{kind}: longest status", victim.longest_wait_seconds, "s", "lower", "≤ 1"),
            Figure(f"{kind}: CPU within it", victim.longest_wait_cpu_seconds, "s", "lower", "≤ 0.5"),
        ]
        if not arguments.json:
            print(kind, [round(f.value, 3) for f in figures[-4:]], flush=True)
    report("gossip_rpcs", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
