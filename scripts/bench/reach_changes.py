"""What a pair of nodes does when the network changes under it. Linux and root only.

    python -m scripts.bench.reach_changes [--only "routers forget"] [--json]

Swarm processes in network namespaces (``common.nat_lab``). Two homes behind port-restricted routers and a public one
that introduced them; once they are connected directly, something changes (``CHANGES``). Printed: the seconds until home
two has fetched a group that home one shared after the change, and until it has done so over a direct connection.

``crossing dials``: two public processes know each other's address, and nothing passes between them while both dial.
Printed: the seconds from when it passes again until they are connected.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Final

from scripts.bench.common.home_processes import connection, fetches_newest, share_one, start_process
from scripts.bench.common.nat_lab import NatPlace, nat_lab
from scripts.bench.common.nat_routers import RouterKind
from scripts.bench.common.reporting import Figure, add_json_flag, report
from scripts.bench.common.slow_network import NoSlowNetworkError, run_tool
from scripts.bench.common.swarm_processes import SwarmProcess
from swarm.client import SwarmClient

MEET_SECONDS: Final = 60.0  # for the homes to be connected directly before the change
GIVE_UP_SECONDS: Final = 200.0
UNPLUGGED_SECONDS: Final = 4.0  # in which both have begun to dial
CROSSING: Final = "crossing dials"


def _both_forget(one: NatPlace, two: NatPlace) -> None:
    one.forget()
    two.forget()


CHANGES: Final[dict[str, Callable[[NatPlace, NatPlace], None]]] = {
    "routers forget": _both_forget,
    "one router forgets": lambda one, two: one.forget(),
    "a provider changes an address": lambda one, two: one.renumber("203.0.113.99"),
    "a home machine changes its address": lambda one, two: one.move("192.168.2.9"),
}


def changed(change: str, directory: Path) -> list[Figure]:
    with ExitStack() as stack:
        kinds = [RouterKind.NONE, RouterKind.PORT_RESTRICTED, RouterKind.PORT_RESTRICTED]
        places = stack.enter_context(nat_lab(kinds))
        processes: list[SwarmProcess] = []
        for number, place in enumerate(places):
            processes.append(start_process(number, place, processes[:1], directory))
            stack.callback(processes[-1].close)
        _, one, two = (process.client for process in processes)
        if not _meet(one, two):
            raise SystemExit(f"the homes were not connected directly within {MEET_SECONDS:g} s")
        CHANGES[change](places[1], places[2])
        return [
            Figure(f"{change}: {what}", seconds, "s", "lower")
            for what, seconds in _seconds_after(one, two).items()
            if seconds is not None
        ]


def _meet(one: SwarmClient, two: SwarmClient) -> bool:
    first, began = one.status().peer, time.monotonic()
    while connection(two, first) != "direct" and time.monotonic() - began < MEET_SECONDS:
        time.sleep(0.5)
    time.sleep(5.0)  # for gossip to move to the direct connection
    return connection(two, first) == "direct"


def _seconds_after(one: SwarmClient, two: SwarmClient) -> dict[str, float | None]:
    first, began, random = one.status().peer, time.monotonic(), Random(0)
    after: dict[str, float | None] = {"a new group fetched": None, "a new group fetched directly": None}
    known = {seen.cursor for seen in two.seen_groups(0, 1000)}
    cursor = max(known, default=0)
    while None in after.values() and (elapsed := time.monotonic() - began) < GIVE_UP_SECONDS:
        share_one(one, random)
        time.sleep(0.5)
        seen = [each for each in two.seen_groups(cursor, 100) if each.peer == first]
        if seen and fetches_newest(two, seen):
            cursor, elapsed = seen[-1].cursor, time.monotonic() - began
            after["a new group fetched"] = after["a new group fetched"] or elapsed
            if connection(two, first) == "direct":
                after["a new group fetched directly"] = elapsed
        time.sleep(0.5)
    return after


def crossed(directory: Path) -> list[Figure]:
    with ExitStack() as stack:
        places = stack.enter_context(nat_lab([RouterKind.NONE, RouterKind.NONE]))
        first = start_process(0, places[0], (), directory)  # for its key and address
        second = start_process(1, places[1], [first], directory)
        for process in (second, first):
            process.close()
        _pass_nothing(places[1], nothing=True)
        pair = [start_process(0, places[0], [second], directory), start_process(1, places[1], [first], directory)]
        for process in pair:
            stack.callback(process.close)
        time.sleep(UNPLUGGED_SECONDS)
        _pass_nothing(places[1], nothing=False)
        began, peer = time.monotonic(), pair[0].client.status().peer
        while connection(pair[1].client, peer) == "none" and time.monotonic() - began < GIVE_UP_SECONDS:
            time.sleep(0.1)
        seconds = time.monotonic() - began
        return [Figure(f"{CROSSING}: connected, once packets pass again", seconds, "s", "lower")]


def _pass_nothing(place: NatPlace, *, nothing: bool) -> None:
    rules = """
        table ip nothing {
            chain coming { type filter hook input priority 0; iifname eth0 drop; }
            chain going { type filter hook output priority 0; oifname eth0 drop; }
        }
    """
    run_tool(*place.command(["nft", "-f", "-"]), typed=rules if nothing else "delete table ip nothing")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", choices=[*CHANGES, CROSSING], help="otherwise all, one after the other")
    add_json_flag(parser)
    options = parser.parse_args(arguments)
    figures: list[Figure] = []
    for change in [options.only] if options.only else [*CHANGES, CROSSING]:
        with tempfile.TemporaryDirectory() as directory:
            try:
                figures += crossed(Path(directory)) if change == CROSSING else changed(change, Path(directory))
            except NoSlowNetworkError as error:
                raise SystemExit(f"no namespaces here: {error}") from error
    report("reach_changes", figures, as_json=options.json)


if __name__ == "__main__":
    main()
