"""Where nodes live: on loopback, or as root each in a network namespace, some with a small disk of their own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.bench.common.slow_network import NoSlowNetworkError, SlowPeer, slow_network
from scripts.chaos import conditions
from scripts.chaos.memory_group import MemoryGroup, NoMemoryGroupsError, free_swap_bytes, memory_groups

PORT: Final = 4001
FULL_SPEED_MEGABITS: Final = 1000.0
SMALL_DISK_EVERY: Final = 3  # one node in so many
SMALL_DISK_BYTES: Final = 24 << 20
FILLER: Final = "filler"  # the file that fills a disk
SWAP_BYTES: Final = 512 << 20


@dataclass(frozen=True)
class NodePlace:
    """One node's home, address and link."""

    number: int
    home: Path
    conditions: Path
    address: str
    port: int
    peer: SlowPeer | None  # None: on loopback
    small_disk: bool
    memory: MemoryGroup | None  # None: this machine or user can make none
    can_swap: bool

    @property
    def multiaddr(self) -> str:
        return f"/ip4/{self.address}/tcp/{self.port}"

    @property
    def name(self) -> str:
        """What the machine's name servers know it by."""
        return f"n{self.number}.chaos.test"

    @property
    def named_multiaddr(self) -> str:
        return f"/dns4/{self.name}/tcp/{self.port}"

    def command(self, command: Sequence[str]) -> list[str]:
        inside = self.peer.command(command) if self.peer is not None else list(command)
        return self.memory.command(inside) if self.memory is not None else inside

    def fill_disk(self) -> None:
        """Writes until nothing more fits."""
        descriptor = os.open(self.home / FILLER, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        block = bytes(1 << 16)
        try:
            while block:
                try:
                    os.write(descriptor, block)
                except OSError:
                    block = block[: len(block) // 2]
        finally:
            os.close(descriptor)

    def empty_disk(self) -> None:
        (self.home / FILLER).unlink(missing_ok=True)


@contextmanager
def places(count: int, root: Path) -> Iterator[tuple[list[NodePlace], list[str]]]:
    """Yields ``count`` places below ``root``, and in words what this machine or user does not allow."""
    missing: list[str] = []
    with ExitStack() as stack:
        peers: list[SlowPeer | None] = [None] * count
        try:
            peers = list(stack.enter_context(slow_network(count, FULL_SPEED_MEGABITS)))
        except NoSlowNetworkError as error:
            missing.append(f"no network faults: {error}")
        groups: list[MemoryGroup | None] = [None] * count
        can_swap = False
        try:
            groups = list(stack.enter_context(memory_groups(f"starling-{os.getpid()}", count)))
        except NoMemoryGroupsError as error:
            missing.append(f"no machine out of memory or that swaps: {error}")
        else:
            can_swap = free_swap_bytes() >= SWAP_BYTES
            if not can_swap:
                missing.append(f"no machine that swaps: it has no {SWAP_BYTES >> 20} MiB of swap free (see swapon)")
        ports = [PORT] * count if peers[0] is not None else _free_ports(count)
        found = []
        for number, (peer, port, group) in enumerate(zip(peers, ports, groups, strict=True)):
            home = root / f"n{number}"
            set_by = home.with_suffix(conditions.SUFFIX)
            home.mkdir(mode=0o700)
            conditions.prepare(set_by)
            small = number % SMALL_DISK_EVERY == 0 and _mounted(home, stack, missing)
            address = peer.address if peer is not None else "127.0.0.1"
            found.append(NodePlace(number, home, set_by, address, port, peer, small, group, can_swap))
        yield found, missing


def _mounted(home: Path, stack: ExitStack, missing: list[str]) -> bool:
    """Puts a small disk in memory at ``home``; returns whether that is possible."""
    if shutil.which("mount") is None or os.geteuid() != 0:
        reason = "no full disks: only root may mount a small one"
    else:
        size = f"size={SMALL_DISK_BYTES},mode=0700"
        tried = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(home)], check=False, capture_output=True, text=True
        )
        if tried.returncode == 0:
            stack.callback(subprocess.run, ["umount", "--lazy", str(home)], check=False)
            return True
        reason = f"no full disks: {tried.stderr.strip()}"
    if reason not in missing:
        missing.append(reason)
    return False


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in held]
