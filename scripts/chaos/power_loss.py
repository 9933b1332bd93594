"""What a loss of power leaves of a node's key and checkpoints, on real file systems. Linux, as root.

    sudo python -m scripts.chaos.power_loss [--times 200] [--filesystems ext4 xfs btrfs] [--seed 0]

A file system is made in a file, and mounted. A process makes a node's key there and writes one checkpoint after the
other as a learner does; it reports each once it has returned. Every fifth is of the same round as the one before, as
where a run went back. At random moments the process is stopped, and the file is copied: what the file system has handed
to its device by then, and nothing of what it has in memory, as a loss of power leaves it. The copy is mounted. A node
that starts there must find its key, a whole checkpoint at least as new as the last one reported, and no damaged one. So
this tests what is flushed, and in which order. Ends with 1 if anything was lost.

A disk that loses or reorders what it was told to flush is not tried.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Final, NoReturn

import torch

from node.checkpoints import checkpoints
from node.checkpoints.checkpoints import Snapshot, read_newest, write
from protocol.errors import StarlingError
from protocol.identity import NodeKey

MAKERS: Final = {  # the command, the smallest size in MiB, and options that promise no more than they must
    "ext4": (("mkfs.ext4", "-q", "-F"), 32, "data=writeback,noauto_da_alloc,commit=300"),
    "xfs": (("mkfs.xfs", "-q", "-f"), 300, "defaults"),
    "btrfs": (("mkfs.btrfs", "-q", "-f"), 128, "commit=300"),
}
COPIES: Final = 8  # of one file system's life
BETWEEN_SECONDS: Final = 0.15  # two copies, at most
REPEATED_EVERY: Final = 5
KEPT: Final = 2
PARAMETERS: Final = 50_000
KEY: Final = "identity.key"
_NUMBER: Final = struct.Struct("<q")


def write_on(home: Path, pipe: int) -> NoReturn:
    """Makes a key and writes checkpoints below ``home`` until it is killed; reports 0 for the key, and their count."""
    NodeKey.load_or_create(home / KEY)
    os.write(pipe, _NUMBER.pack(0))
    count = round_number = 0
    while True:
        count += 1
        round_number += count % REPEATED_EVERY != 0
        tensors = {"weights": torch.rand(PARAMETERS)}
        write(home / "checkpoints", Snapshot(round_number, bytes(16), tensors, {"count": count}, {}), keep=KEPT)
        os.write(pipe, _NUMBER.pack(count))


class Writer:
    """The process that writes, and what it has reported: None before its key, then how many checkpoints."""

    def __init__(self, home: Path) -> None:
        self.reported: int | None = None
        self._pipe, end = os.pipe()
        os.set_blocking(self._pipe, False)
        self.pid = os.fork()
        if self.pid == 0:
            write_on(home, end)
        os.close(end)

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)
        with suppress(BlockingIOError):
            while raw := os.read(self._pipe, _NUMBER.size):
                self.reported = _NUMBER.unpack(raw)[0]

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._pipe)


def run_tool(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}: this needs root, and a kernel with loop devices")


@contextmanager
def mounted(image: Path, at: Path, options: str) -> Iterator[Path]:
    at.mkdir(exist_ok=True)
    run_tool("mount", "-o", f"loop,{options}", str(image), str(at))
    try:
        yield at
    finally:
        run_tool("umount", str(at))


def lost(home: Path, peer: str | None, reported: int | None) -> list[str]:
    """Returns in words what a node that starts in ``home`` lacks."""
    found = []
    if reported is not None:
        try:
            if not (home / KEY).exists() or NodeKey.load_or_create(home / KEY).peer_id != peer:
                found.append("another key")
        except StarlingError as error:
            found.append(f"the key: {error.reason}")
    newest = read_newest(home / "checkpoints")
    there = newest.snapshot.state["count"] if newest.snapshot is not None else 0
    if there < (reported or 0):
        found.append("checkpoint older than reported" if there else "no checkpoint")
    return found + ["damaged checkpoint"] * len(newest.damaged)


def one_life(filesystem: str, folder: Path, random: Random) -> Iterator[list[str]]:
    """Yields for each copy of one file system's life what was lost in it."""
    command, mebibytes, options = MAKERS[filesystem]
    image, copies = folder / "image", list[tuple[Path, int | None]]()
    with image.open("wb") as file:
        file.truncate(mebibytes << 20)
    run_tool(*command, str(image))
    peer = None
    with mounted(image, folder / "disk", options) as disk:
        home = disk / "home" / "node"
        writer = Writer(home)
        try:
            for number in range(COPIES):
                time.sleep(random.uniform(0.0, BETWEEN_SECONDS))
                writer.stop()
                copy = folder / f"copy{number}"
                run_tool("cp", "--sparse=always", str(image), str(copy))
                copies.append((copy, writer.reported))
                if writer.reported is not None:
                    peer = NodeKey.load_or_create(home / KEY).peer_id
                writer.go_on()
        finally:
            writer.end()
    for copy, reported in copies:
        with mounted(copy, folder / "copied", options) as disk:
            yield lost(disk / "home" / "node", peer, reported)
        copy.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=200, help="losses of power on each file system (default 200)")
    parser.add_argument("--filesystems", nargs="+", choices=list(MAKERS), help="default: those that can be made here")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--without-flushing", action="store_true", help="to see what is lost where checkpoints are not flushed"
    )
    flags = parser.parse_args()
    if flags.without_flushing:
        setattr(checkpoints, "flush", lambda path: None)  # noqa: B010  no name that the module exports
    there = [name for name, (command, *_) in MAKERS.items() if shutil.which(command[0])]
    random, anything = Random(flags.seed), False
    for filesystem in flags.filesystems or there:
        found, times = Counter[str](), 0
        while times < flags.times:
            with tempfile.TemporaryDirectory(prefix="starling-power-") as folder:
                for lacks in one_life(filesystem, Path(folder), random):
                    times += 1
                    found.update(lacks)
        anything |= bool(found)
        print(f"{filesystem}: {times} losses of power; lost: {dict(found) or 'nothing'}", flush=True)
    sys.exit(1 if anything else 0)


if __name__ == "__main__":
    main()
