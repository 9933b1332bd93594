"""Memory of processes, as reported by the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from node.supervision.watching.process_memory import PAGE_BYTES, resident_bytes, resident_bytes_of_session


def process(proc: Path, pid: int, session: int, pages: int, name: str = "python") -> None:
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "statm").write_text(f"1000 {pages} 10 1 0 5 0\n")
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) S 1 {session} {session} 0 -1 4194304\n")


def test_a_child_counts_with_all_that_it_started_whatever_they_call_themselves(tmp_path: Path) -> None:
    process(tmp_path, 10, 10, 100)
    process(tmp_path, 11, 10, 20, name="a) S 1 99 99 (b")
    process(tmp_path, 12, 12, 5000)
    (tmp_path / "uptime").write_text("1")
    assert resident_bytes_of_session(10, tmp_path) == 120 * PAGE_BYTES
    assert resident_bytes(12, tmp_path) == 5000 * PAGE_BYTES


def test_what_has_ended_or_a_system_that_does_not_tell_has_no_memory(tmp_path: Path) -> None:
    assert resident_bytes(10, tmp_path) is None and resident_bytes_of_session(10, tmp_path) is None
    assert resident_bytes(10, tmp_path / "none") is None
    process(tmp_path, 10, 10, 100)
    (tmp_path / "11").mkdir()  # ends while it is looked at
    assert resident_bytes_of_session(10, tmp_path) == 100 * PAGE_BYTES


def test_the_kernel_is_read_as_it_writes() -> None:
    tells = Path("/proc/self/statm").exists()
    assert (resident_bytes(os.getpid()) or 0) > 1_000_000 * tells
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    try:
        assert (resident_bytes_of_session(child.pid) is not None) == tells
    finally:
        assert child.stdin is not None
        child.stdin.close()
        child.wait()
