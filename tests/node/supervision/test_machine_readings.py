"""What the system tells of the machine's use, and what it does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from node.configuration import MachineSection
from node.supervision.pausing import machine_readings
from node.supervision.pausing.machine_readings import (
    MachineReader,
    ProcessorTime,
    metered,
    metered_by,
    metered_of_devices,
    on_battery,
    others_on_gpu,
    others_share,
    processor_time,
)
from node.supervision.pausing.run_control import RunControl

PMON = """\
# gpu         pid   type     sm    mem    enc    dec    jpg    ofa    command
# Idx           #    C/G      %      %      %      %      %      %    name
    0       1201     G      3      1      -      -      -      -    Xorg
    0       4242     C     88     40      -      -      -      -    python3
    0       5151   C+G     37     12      -      -      -      -    ga\x1bme
    1          -     -      -      -      -      -      -      -    -
"""


def process(proc: Path, pid: int, session: int, ticks: int) -> None:
    (proc / str(pid)).mkdir(parents=True)
    fields = ["S", "1", str(pid), str(session), *["0"] * 7, str(ticks), "0", "0", "0", *["0"] * 8]
    (proc / str(pid) / "stat").write_text(f"{pid} (a) b) c) {' '.join(fields)}\n")


def test_own_processes_are_no_load_and_others_are(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  600 0 100 1000 50 0 0 0 7 0\ncpu0 1 1\n")
    process(tmp_path, 10, 10, 200)  # leads a session of ours
    process(tmp_path, 11, 10, 50)
    process(tmp_path, 12, 12, 300)  # another's
    process(tmp_path, os.getpid(), 1, 40)
    assert processor_time([10], tmp_path) == ProcessorTime(all_ticks=1750, busy_ticks=700, own_ticks=290)


def test_load_is_what_others_used_between_two_looks() -> None:
    before = ProcessorTime(1000, 500, 400)
    assert others_share(before, ProcessorTime(1200, 600, 450)) == 0.25
    assert others_share(before, ProcessorTime(1200, 600, 600)) == 0.0  # by rounding of ticks, never below
    assert others_share(before, before) is None
    assert others_share(before, ProcessorTime(1200, 600, 100)) is None  # a process of ours ended


def test_without_proc_the_load_is_not_known(tmp_path: Path) -> None:
    assert processor_time([1], tmp_path / "none") is None
    assert MachineReader(["load"], proc=tmp_path / "none").read([]).load_share is None


def test_the_real_machine_tells_a_load_at_the_second_look() -> None:
    reader = MachineReader(["load"])
    assert reader.read([]).load_share is None
    sum(range(3_000_000))
    share = reader.read([]).load_share
    assert share is None or 0.0 <= share <= 1.0


def test_of_a_gpu_the_greatest_other_program_counts_whether_it_computes_or_draws() -> None:
    assert others_on_gpu(PMON, {4242}) == (0.37, "ga\\x1bme")
    assert others_on_gpu(PMON, {1201, 4242, 5151}) == (0.0, "")
    assert others_on_gpu(PMON, set()) == (0.88, "python3")


@pytest.mark.parametrize("text", ["", "No devices were found\n", "Not supported on WSL"])
def test_a_tool_that_shows_no_table_tells_nothing(text: str) -> None:
    assert others_on_gpu(text, set()) == (None, "")


def supply(power: Path, name: str, **facts: str) -> None:
    (power / name).mkdir(parents=True)
    for fact, text in facts.items():
        (power / name / fact).write_text(text + "\n")


def test_a_laptop_on_mains_and_on_battery(tmp_path: Path) -> None:
    supply(tmp_path, "AC", type="Mains", online="1")
    supply(tmp_path, "BAT0", type="Battery", status="Not charging")
    assert on_battery(tmp_path, "linux") is False
    (tmp_path / "AC" / "online").write_text("0\n")
    (tmp_path / "BAT0" / "status").write_text("Discharging\n")
    assert on_battery(tmp_path, "linux") is True


def test_a_mouse_that_discharges_is_no_machine_on_battery(tmp_path: Path) -> None:
    supply(tmp_path, "hidpp_battery_0", type="Battery", status="Discharging", scope="Device")
    assert on_battery(tmp_path, "linux") is False


def test_a_machine_without_supplies_runs_on_mains_and_one_without_the_folder_does_not_tell(tmp_path: Path) -> None:
    assert on_battery(tmp_path, "linux") is False
    assert on_battery(tmp_path / "none", "linux") is None


@pytest.mark.parametrize(("number", "expected"), [(0, None), (1, True), (2, False), (3, True), (4, False), (9, None)])
def test_networkmanagers_numbers(number: int, expected: bool | None) -> None:
    assert metered_by(number) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("no\nunknown\n", False), ("yes (guessed)\nno\n", True), ("unknown\n\n", None), ("", None)],
)
def test_nmclis_words(text: str, expected: bool | None) -> None:
    assert metered_of_devices(text) is expected


def test_without_networkmanager_nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert metered() is None


def test_a_tool_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "nmcli"
    tool.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(machine_readings, "COMMAND_SECONDS", 0.05)
    assert metered() is None


def test_what_this_system_does_not_tell_is_said_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    control = RunControl(tmp_path / "pause.json", MachineSection(pause_when=("metered", "gpu")))
    said = [control.look([]) for _ in range(4)]
    assert said[0] == [] and said[2:] == [[], []]
    assert len(said[1]) == 2 and "nvidia-smi" in said[1][0] and "NetworkManager" in said[1][1]
