"""What a process sees of a clock and a disk that another one changes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from scripts import REPOSITORY
from scripts.chaos import conditions

LOOKS = """
from scripts.chaos import conditions
conditions.install()
import sys, time
from pathlib import Path
slept = []
time.sleep = slept.append
for file in map(Path, sys.argv[1:]):
    slept.clear()
    file.write_text("")
    print(sum(slept))
print(time.time())
"""


def looked(home: Path, *files: Path) -> list[float]:
    """Returns how much longer it takes to open each file, and the time, as a process of the node sees them."""
    environment = os.environ | {conditions.VARIABLE: str(home.with_suffix(conditions.SUFFIX))}
    command = [sys.executable, "-c", LOOKS, *map(str, files)]
    told = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    return [float(line) for line in told.split()]


def test_a_clock_moves_and_files_of_the_node_alone_are_slow_until_the_conditions_end(tmp_path: Path) -> None:
    home = tmp_path / "n1"
    home.mkdir()
    file = home.with_suffix(conditions.SUFFIX)
    conditions.prepare(file)
    conditions.set_clock(file, 3600.0)
    conditions.set_disk(file, 5.0)
    own, other, seen = looked(home, home / "one", tmp_path / "other")
    assert (own, other) == (5.0, 0.0)
    assert seen - time.time() > 3000.0
    conditions.set_clock(file, 0.0)
    conditions.set_disk(file, 0.0)
    own, seen = looked(home, home / "one")
    assert own == 0.0 and abs(seen - time.time()) < 3000.0
