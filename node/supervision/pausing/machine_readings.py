"""Looks at what else the machine is used for. Reads only; what the system does not tell is None.

load      /proc/stat less the time of our own processes             Linux
gpu       ``nvidia-smi pmon``: every program that computes or draws  Linux with NVIDIA's driver
battery   /sys/class/power_supply; ``pmset`` on macOS                Linux; macOS is untried
metered   NetworkManager, over D-Bus by ``busctl``, or ``nmcli``     Linux with NetworkManager
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node.configuration import PauseCondition
from node.printable import printable
from node.supervision.pausing.decision import Reading
from node.supervision.watching.process_memory import PROC, session_members

POWER: Final = Path("/sys/class/power_supply")
COMMAND_SECONDS: Final = 5.0
METERED: Final = frozenset({1, 3})  # NMMetered: yes, and guessed yes
NOT_METERED: Final = frozenset({2, 4})
_MANAGER: Final = "org.freedesktop.NetworkManager"
BUSCTL: Final = ("busctl", "--system", "get-property", _MANAGER, f"/{_MANAGER.replace('.', '/')}", _MANAGER, "Metered")
NMCLI: Final = ("nmcli", "--terse", "--get-values", "GENERAL.METERED", "device", "show")
PMON: Final = ("nvidia-smi", "pmon", "--count", "1", "--select", "u")


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """Ticks since the machine's start, over all cores."""

    all_ticks: int
    busy_ticks: int
    own_ticks: int  # of this node's processes that live


class MachineReader:
    """Reads the conditions that are asked for; keeps the last look at the processor, since load is a difference."""

    def __init__(self, conditions: Collection[PauseCondition], *, proc: Path = PROC, power: Path = POWER) -> None:
        self._conditions, self._proc, self._power = frozenset(conditions), proc, power
        self._before: ProcessorTime | None = None

    def read(self, sessions: Collection[int]) -> Reading:
        """``sessions`` are the processes of this node that lead a session. Takes up to seconds: call it in a thread."""
        wanted = self._conditions
        gpu_share, program = gpu_use(sessions, self._proc) if "gpu" in wanted else (None, "")
        return Reading(
            load_share=self._load(sessions) if "load" in wanted else None,
            gpu_share=gpu_share,
            gpu_program=program,
            on_battery=on_battery(self._power) if "battery" in wanted else None,
            metered=metered() if "metered" in wanted else None,
        )

    def _load(self, sessions: Collection[int]) -> float | None:
        before, self._before = self._before, processor_time(sessions, self._proc)
        return None if before is None or self._before is None else others_share(before, self._before)


def others_share(before: ProcessorTime, after: ProcessorTime) -> float | None:
    """Returns the share of all cores that other programs used between two looks; None if no time passed.

    A process of ours that ended between them takes its ticks along; then nothing is known.
    """
    passed = after.all_ticks - before.all_ticks
    own = after.own_ticks - before.own_ticks
    if passed <= 0 or own < 0:
        return None
    return min(1.0, max(0.0, (after.busy_ticks - before.busy_ticks - own) / passed))


def processor_time(sessions: Collection[int], proc: Path = PROC) -> ProcessorTime | None:
    """Returns None on a system without /proc/stat."""
    try:
        ticks = [int(field) for field in (proc / "stat").read_text().split("\n", 1)[0].split()[1:]]
    except (OSError, ValueError):
        return None
    ticks = ticks[:8]  # guests' time is part of the user's
    idle = sum(ticks[3:5])  # and waiting for a disk
    own = sum(_ticks_of(pid, proc) for pid in {os.getpid(), *_members(sessions, proc)})
    return ProcessorTime(sum(ticks), sum(ticks) - idle, own)


def _members(sessions: Collection[int], proc: Path) -> set[int]:
    return {pid for leader in sessions for pid in (leader, *session_members(leader, proc))}


def _ticks_of(pid: int, proc: Path) -> int:
    """Returns the time of a process and of those of its children that it has waited for."""
    try:
        fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15]))
    except (OSError, ValueError):  # it has ended
        return 0


def gpu_use(sessions: Collection[int], proc: Path = PROC) -> tuple[float | None, str]:
    """Returns the greatest share of a GPU that another program uses, and its name; None without NVIDIA's tool."""
    text = _output_of(PMON)
    return (None, "") if text is None else others_on_gpu(text, _members(sessions, proc))


def others_on_gpu(pmon: str, own: Collection[int]) -> tuple[float | None, str]:
    """Reads the table of ``nvidia-smi pmon``, whose columns its first line names."""
    heads: list[str] = []
    use: dict[tuple[str, str], int] = {}  # by GPU and program
    for line in pmon.splitlines():
        cells = line.lstrip("# ").split()
        if line.startswith("#"):
            heads = heads or cells
            continue
        row = dict(zip(heads, cells, strict=False))
        if row.get("pid", "-").isdigit() and row.get("sm", "-").isdigit() and int(row["pid"]) not in own:
            place = row.get("gpu", ""), row.get("command", "")
            use[place] = use.get(place, 0) + int(row["sm"])
    if not {"pid", "sm"} <= set(heads):
        return None, ""
    if not use:
        return 0.0, ""
    place = max(use, key=lambda each: use[each])
    return min(1.0, use[place] / 100), printable(place[1], 40)


def on_battery(power: Path = POWER, platform: str = sys.platform) -> bool | None:
    """Returns whether the machine runs on battery. One without a battery does not."""
    if platform == "darwin":
        text = _output_of(("pmset", "-g", "batt"))
        return None if text is None else "Battery Power" in text
    if not power.is_dir():
        return None
    supplies = [(supply, _text(supply / "type")) for supply in power.iterdir()]
    if any(kind in ("Mains", "USB") and _text(supply / "online") == "1" for supply, kind in supplies):
        return False
    batteries = [supply for supply, kind in supplies if kind == "Battery" and _text(supply / "scope") != "Device"]
    return any(_text(battery / "status") == "Discharging" for battery in batteries)  # without those of mice


def metered() -> bool | None:
    """Returns whether NetworkManager counts the connection as metered; None where it does not say, or is not there."""
    found = re.fullmatch(r"u (\d+)", (_output_of(BUSCTL) or "").strip())
    if found is not None:
        return metered_by(int(found[1]))
    text = _output_of(NMCLI)
    return None if text is None else metered_of_devices(text)


def metered_by(number: int) -> bool | None:
    """Reads NetworkManager's NMMetered; 0 means that it does not know."""
    return True if number in METERED else False if number in NOT_METERED else None


def metered_of_devices(nmcli: str) -> bool | None:
    """Reads one line a device: "yes", "no", either with "(guessed)", or "unknown"."""
    words = {line.split()[0] for line in nmcli.splitlines() if line.strip()}
    return True if "yes" in words else False if "no" in words else None


def _output_of(command: tuple[str, ...]) -> str | None:
    """Returns what a tool prints; None where it is missing, fails, or takes too long."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
