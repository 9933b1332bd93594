"""Follows docs/private-cluster.md as written, on three machines, and checks its promises. Linux; needs an installed
``starling`` beside this Python.

    python -m scripts.try_private_cluster [--chapter HEADING]

The machines are network namespaces with their own addresses, joined by a bridge; the data directories are in memory.
All of it is inside further namespaces (network, mounts, processes) that end with the script, however it ends: nothing
remains, and no packet leaves them. It needs root, or unprivileged user namespaces.

The commands are those of the page: each fenced block whose first line is ``# on the <which> machine``. The invite
``starling://1…`` becomes the one printed last, the peer ``12D3KooW…`` the third machine; nothing else changes. A line
with ``starling up`` occupies the machine's terminal, after Ctrl-C to a node that runs there; every other line runs to
its end in another one. The promises of a command are checked right after it (``private_cluster_promises.py``).
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from scripts import REPOSITORY
from scripts.private_cluster_machines import (
    MACHINES,
    BrokenPromiseError,
    Machine,
    Story,
    inside_namespaces,
    network,
    steps,
)
from scripts.private_cluster_promises import PROMISES, refusals

PAGE = REPOSITORY / "docs" / "private-cluster.md"
OFFLINE = "An owner's key that is kept offline"  # a chapter that starts without a cluster


def follow(story: Story, *, chapters: set[str] | None) -> None:
    """Types the page's commands and checks their promises. Raises ``BrokenPromiseError``."""
    kept: set[str] = set()
    chapter = ""
    for step in steps(PAGE.read_text(encoding="utf-8")):
        if chapters is not None and step.chapter not in chapters:
            continue
        if step.chapter != chapter:
            if step.chapter == OFFLINE:
                story.forget_clusters()
            chapter = step.chapter
            story.say(f"\n## {chapter}")
        seconds = story.type(step)
        story.say(f"{step.machine:>6}$ {step.command}  [{seconds:.1f} s]")
        if (key := (step.machine, step.command)) in PROMISES:
            kept.add(step.command)
            for what, took in PROMISES[key](story):
                story.say(f"        {what}" + (f"  [{took:.1f} s]" if took is not None else ""))
        if step.command == "starling swarm rotate-key":
            story.say("\n## When it does not let you in")
            for what, took in refusals(story):
                story.say(f"        {what}  [{took:.1f} s]")
    missing = {command for _, command in PROMISES} - kept
    if missing and chapters is None:
        raise BrokenPromiseError(f"the page no longer has: {', '.join(sorted(missing))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--chapter", action="append", metavar="HEADING", help="Only these chapters, which must work without the others."
    )
    parser.add_argument(
        "--pause-learners",
        action="store_true",
        help="Train in small rounds, and not at all once two have trained on each other's: it takes half as long.",
    )
    flags = parser.parse_args()
    inside_namespaces("scripts.try_private_cluster")
    network()
    homes = Path("/run/homes")
    machines = {name: Machine(number, homes) for number, name in enumerate(MACHINES, 1)}
    story = Story(machines, lambda line: print(line, flush=True), pausing=flags.pause_learners)
    began = time.monotonic()
    try:
        follow(story, chapters=set(flags.chapter) if flags.chapter else None)
    except BrokenPromiseError as error:
        sys.exit(f"the page does not hold: {error}")
    finally:
        story.end()
    story.say(f"\nthe page holds: {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
