"""docs/private-cluster.md followed as written, on three machines with addresses of their own.

Its first chapters, by ``scripts/try_private_cluster.py``: founding, joining by command line, file and environment, who
is in, and putting one out. The script by itself follows the rest too.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "private-cluster.md"
FOLLOWED = ("Two laptops", "A third", "Who is in", "Putting somebody out")


@pytest.mark.processes
def test_page_followed_as_written_founds_a_cluster_of_three_that_share_and_puts_one_out(processes: Any) -> None:
    chapters = [flag for heading in FOLLOWED for flag in ("--chapter", heading)]
    command = (sys.executable, "-m", "scripts.try_private_cluster", "--pause-learners", *chapters)
    followed = processes.start(*command).ended()
    assert followed.returncode == 0, followed.stdout + followed.stderr
    typed = re.findall(r"^ *(first|second|third)\$ (.*)  \[", followed.stdout, re.MULTILINE)
    assert typed == [
        (machine, command) for chapter, machine, command in commands(PAGE.read_text()) if chapter in FOLLOWED
    ]
    assert {machine for machine, _ in typed} == {"first", "second", "third"}
    for said in ("has trained on the other's rollouts", "did not join again", "shows no secret", "ended with 77"):
        assert said in followed.stdout
    assert processes.none_alive()


def commands(page: str) -> list[tuple[str, str, str]]:
    """Chapter, machine and command of every line of a block that names a machine; read another way than the script."""
    found = []
    for chapter in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        heading = chapter.partition("\n")[0]
        for machine, block in re.findall(r"^```sh\n# on the (\w+) machine.*\n((?:.+\n)+?)```", chapter, re.MULTILINE):
            found += [(heading, machine, command) for command in block.splitlines()]
    return found


def test_every_block_of_the_page_names_its_machine_up_to_the_chapters_on_other_ways_to_install() -> None:
    story = PAGE.read_text().partition("## When it does not let you in")[0]
    unmarked = [block for block in re.findall(r"```sh\n((?:.+\n)+?)```", story) if "# on the " not in block]
    said = [" ".join(block.split()[:2]) for block in unmarked]
    key = "cat ~/.local/share/starling/cluster/owner.key"
    assert said == ["starling invite", "starling up", key], "a code between two people, a copy of the owner's key"
