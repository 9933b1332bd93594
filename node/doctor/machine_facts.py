"""What there is on this machine: Python, packages, torch, memory, disk, clock. Looks, and judges nothing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from importlib import metadata
from itertools import pairwise
from pathlib import Path

import msgspec
from packaging.requirements import Requirement

from node.compute_environment import compute_environment
from node.policy.device_probe_result import TorchProbe

DISTRIBUTION = "starling-swarm"
PROBE_SECONDS = 120.0  # torch from a cold disk takes half a minute
NVIDIA_DEVICE = Path("/dev/nvidiactl")
CLOCK_READINGS = 1000


@dataclass(frozen=True, slots=True)
class Requirements:
    """What this version asks for."""

    python: str  # a range such as ">=3.11"
    packages: tuple[str, ...]  # such as "torch==2.13.*", without those of extras


@dataclass(frozen=True, slots=True)
class TorchFacts:
    probe: TorchProbe | None
    failure: str | None  # why there is no probe
    nvidia_present: bool  # a driver of an NVIDIA GPU is loaded


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    total_bytes: int
    available_bytes: int | None  # None where the system does not tell
    group_room_bytes: int | None  # what the control group (a container) may still take; None: no limit


@dataclass(frozen=True, slots=True)
class DiskFacts:
    path: Path
    free_bytes: int
    writable: bool
    blob_bytes: int  # on disk already
    checkpoint_bytes: int  # of the newest checkpoint; 0: there is none yet


@dataclass(frozen=True, slots=True)
class ClockReading:
    wall_seconds: float
    monotonic_seconds: float


@dataclass(frozen=True, slots=True)
class ClockFacts:
    began: ClockReading
    ended: ClockReading
    steps_back: int  # of the monotonic clock, among ``CLOCK_READINGS``
    newest_file_seconds: float | None  # newest time of change in the data directory
    peer_offsets_seconds: tuple[float, ...]  # connected peers' clocks minus ours
    refused_for_clock: int  # announcements that the running node refused for their time


def python_version() -> str:
    return platform.python_version()


def requirements(package: Path) -> Requirements:
    """Of the checkout that ``package`` stands in, which may be newer than its installation; else of the installation.

    Raises ``metadata.PackageNotFoundError`` where neither is to be found.
    """
    described = package.parent / "pyproject.toml"
    if described.is_file():
        project = tomllib.loads(described.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == DISTRIBUTION:
            return Requirements(project["requires-python"], tuple(project["dependencies"]))
    asked = map(Requirement, metadata.requires(DISTRIBUTION) or [])
    always = [str(each) for each in asked if each.marker is None or each.marker.evaluate({"extra": ""})]
    return Requirements(metadata.metadata(DISTRIBUTION)["Requires-Python"], tuple(always))


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def torch_facts(device: str, dtype: str) -> TorchFacts:
    """What torch, in a process of its own, finds for a configured device and dtype."""
    nvidia = NVIDIA_DEVICE.exists()
    command = [sys.executable, "-P", "-m", "node.policy.device_probe", device, dtype]
    try:
        ended = subprocess.run(
            command,
            env=compute_environment(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return TorchFacts(None, f"it did not come up within {PROBE_SECONDS:.0f} s", nvidia)
    if ended.returncode != 0:
        said = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return TorchFacts(None, f"exit code {ended.returncode}: {said}", nvidia)
    return TorchFacts(msgspec.json.decode(ended.stdout.splitlines()[-1], type=TorchProbe), None, nvidia)


def memory_facts() -> MemoryFacts:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    information, membership = Path("/proc/meminfo"), Path("/proc/self/cgroup")
    available = available_memory_bytes(information.read_text()) if information.exists() else None
    room = group_room_bytes(Path("/sys/fs/cgroup"), membership.read_text()) if membership.exists() else None
    return MemoryFacts(total, available, room)


def available_memory_bytes(information: str) -> int | None:
    """``MemAvailable`` of the text of /proc/meminfo."""
    for line in information.splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def group_room_bytes(root: Path, membership: str) -> int | None:
    """Bytes until the narrowest memory limit of our control group or one above it (version 2), page cache not counted;
    None without a limit. ``membership`` is the text of /proc/self/cgroup."""
    own = next((line[3:] for line in membership.splitlines() if line.startswith("0::")), "/").strip("/")
    groups = [root / own, *(root / own).parents] if own else [root]
    rooms = []
    for group in groups:
        limit = group / "memory.max"
        if group.is_relative_to(root) and limit.is_file() and (text := limit.read_text().strip()) != "max":
            counters = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            taken = int((group / "memory.current").read_text()) - int(counters["inactive_file"])
            rooms.append(max(0, int(text) - taken))
    return min(rooms, default=None)


def disk_facts(home: Path, newest_checkpoint: Path | None) -> DiskFacts:
    """Of the file system on which ``home`` lies or would be made."""
    existing = next(path for path in (home, *home.parents) if path.exists())
    return DiskFacts(
        home,
        shutil.disk_usage(existing).free,
        os.access(existing, os.W_OK | os.X_OK),
        _bytes_under(home / "blobs"),
        _bytes_under(newest_checkpoint) if newest_checkpoint else 0,
    )


def clock_reading() -> ClockReading:
    return ClockReading(time.time(), time.monotonic())


def monotonic_steps_back() -> int:
    readings = [time.monotonic() for _ in range(CLOCK_READINGS)]
    return sum(after < before for before, after in pairwise(readings))


def newest_file_seconds(home: Path) -> float | None:
    """The newest time of change of a file that a node writes as it runs."""
    files = [home / "metrics.jsonl", *(home / "logs").glob("*.log"), *(home / "checkpoints").glob("round-*/state.json")]
    times = [path.stat().st_mtime for path in files if path.is_file()]
    return max(times, default=None)


def _bytes_under(folder: Path) -> int:
    """A running node deletes files while we look: those count nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total
