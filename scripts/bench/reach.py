"""Two homes meet: swarm processes behind routers of each kind, one public peer that relays. Linux and root only.

    python -m scripts.bench.reach [--only "port-restricted,symmetric"] [--host go] [--json]

For every two kinds of router, three swarm processes in network namespaces (``common.nat_lab``): a public one, and two
homes that know its address alone. The homes run on the host of ``--host``, the public one always on ``py``, unless
``--public-host`` says otherwise. Home one shares a rollout group a second; home two fetches one as soon as it sees it.
Printed: how they are connected after ``WATCH_SECONDS``, the seconds from the start of home two to the first foreign
group fetched and to the first direct connection, and in the last ``LAST_SECONDS`` how many adverts home two heard and
how many bytes the public peer relayed.
``docs/reach.md`` has the table.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from pathlib import Path
from random import Random
from typing import Final

from scripts.bench.common.nat_lab import PORT, NatPlace, RouterKind, nat_lab
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.common.slow_network import NoSlowNetworkError
from scripts.bench.common.swarm_processes import SwarmProcess, group
from swarm import api
from swarm.client import SwarmClient

WATCH_SECONDS: Final = 60.0
LAST_SECONDS: Final = 10.0
BAR_SECONDS: Final = 60.0
HEARTBEAT_SECONDS: Final = 2.0
FETCH_SECONDS: Final = 5.0
HOSTS: Final = ("py", "go")
KINDS: Final = (RouterKind.FULL_CONE, RouterKind.PORT_RESTRICTED, RouterKind.CARRIER, RouterKind.SYMMETRIC)
FURTHER: Final = (  # pairs that are tried along with all pairs of ``KINDS``
    (RouterKind.RESETTING, RouterKind.RESETTING),
    (RouterKind.PORT_RESTRICTED, RouterKind.RESETTING),
    (RouterKind.IP6_FIREWALL, RouterKind.IP6_FIREWALL),
)


@dataclass
class Meeting:
    """What two homes reached."""

    kinds: tuple[RouterKind, RouterKind]
    connected: str = "none"  # "direct", "relayed" or "none", at the end
    fetched_seconds: float | None = None
    direct_seconds: float | None = None
    relayed_last_bytes: int = 0
    heard_last: int = 0  # groups of home one that home two heard of at the end
    said: list[str] = field(default_factory=list)  # by either home, of its own reachability

    @property
    def name(self) -> str:
        return " and ".join(kind.value for kind in self.kinds)


def meet(
    kinds: tuple[RouterKind, RouterKind], hosts: Sequence[str], directory: Path, *, delay_seconds: float
) -> Meeting:
    """``hosts`` are those of the public process and of the homes."""
    meeting = Meeting(kinds)
    with ExitStack() as stack:
        places = stack.enter_context(nat_lab([RouterKind.NONE, *kinds], delay_seconds=delay_seconds))
        processes: list[SwarmProcess] = []
        for number, (place, host) in enumerate(zip(places, hosts, strict=True)):
            began = time.monotonic()
            processes.append(start_process(number, place, processes[:1], directory, host=host))
            stack.callback(processes[-1].close)
        relay, one, two = processes
        watch(meeting, began, relay.client, one.client, two.client)
    return meeting


def start_process(
    number: int, place: NatPlace, known: Sequence[SwarmProcess], directory: Path, *, host: str
) -> SwarmProcess:
    """Starts a swarm process that knows where the ``known`` ones listen, as far as this machine's own network goes."""
    family, loopback = ("/ip6/", "/ip6/::1/") if ":" in place.address else ("/ip4/", "/ip4/127.")
    addresses = [address for process in known for address in process.addresses if address.startswith(family)]
    return SwarmProcess(
        number,
        directory,
        [address for address in addresses if not address.startswith(loopback)],
        prefix=place.command([]),
        listen=f"/ip4/0.0.0.0/tcp/{PORT}",
        heartbeat_seconds=HEARTBEAT_SECONDS,
        host=host,
    )


def connection(client: SwarmClient, peer: str) -> str:
    """Returns how ``peer`` is connected: "direct", "relayed" or "none"."""
    states = [each for each in client.peers() if each.peer == peer and each.connected]
    return "none" if not states else "relayed" if states[0].relayed else "direct"


def fetches_newest(client: SwarmClient, seen: Sequence[api.SeenGroup]) -> bool:
    """Whether the newest of ``seen`` comes from the peer that announced it."""
    newest = seen[-1]
    wanted = [api.Wanted(newest.advert.blob, newest.advert.size, (newest.peer,))]
    return client.fetch(wanted, deadline_seconds=FETCH_SECONDS)[0].is_here


def watch(meeting: Meeting, began: float, relay: SwarmClient, one: SwarmClient, two: SwarmClient) -> None:
    first, random, relayed_before, cursor = one.status().peer, Random(0), None, 0
    while (elapsed := time.monotonic() - began) < WATCH_SECONDS:
        one.share([group(random, 256, 4, 1)])
        seen = [each for each in two.seen_groups(cursor, 100) if each.peer == first]
        if seen and meeting.fetched_seconds is None:
            cursor = seen[-1].cursor
            if fetches_newest(two, seen):
                meeting.fetched_seconds = time.monotonic() - began
        meeting.connected = connection(two, first)
        if meeting.connected == "direct" and meeting.direct_seconds is None:
            meeting.direct_seconds = time.monotonic() - began
        if relayed_before is None and elapsed > WATCH_SECONDS - LAST_SECONDS:
            relayed_before, cursor = relay.status().reach.relayed_bytes, seen[-1].cursor if seen else cursor
        time.sleep(1.0)
    meeting.relayed_last_bytes = relay.status().reach.relayed_bytes - (relayed_before or 0)
    meeting.heard_last = sum(each.peer == first for each in two.seen_groups(cursor, 100))
    meeting.said = [client.status().reach.in_words for client in (one, two)]


def figures_of(meeting: Meeting) -> list[Figure]:
    """Returns the figures of one row; what did not happen has no figure."""
    headline = meeting.kinds == (RouterKind.PORT_RESTRICTED, RouterKind.PORT_RESTRICTED)
    bar = f"≤ {BAR_SECONDS:g}" if headline else None
    figures = [
        Figure(f"{meeting.name}: {what}", seconds, "s", "lower", bar)
        for what, seconds in (("first group", meeting.fetched_seconds), ("direct", meeting.direct_seconds))
        if seconds is not None
    ]
    heard = f"{meeting.name}: heard in the last {LAST_SECONDS:g} s"
    figures.append(Figure(heard, float(meeting.heard_last), "groups", "higher", "> 0" if headline else None))
    last = f"{meeting.name}: {meeting.connected}, relayed in the last {LAST_SECONDS:g} s"
    return [*figures, Figure(last, float(meeting.relayed_last_bytes), "bytes", "lower", "0" if headline else None)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--only", help='two kinds of router, such as "port-restricted,symmetric"; otherwise all pairs')
    parser.add_argument("--delay", type=float, default=0.0, metavar="MS", help="of each packet between two routers")
    parser.add_argument("--host", choices=HOSTS, default="py", help="of the two homes")
    parser.add_argument("--public-host", choices=HOSTS, default="py", help="of the public process")
    options = parser.parse_args(arguments)
    pairs = [*combinations_with_replacement(KINDS, 2), *FURTHER]
    if options.only:
        one, _, other = options.only.partition(",")
        pairs = [(RouterKind(one), RouterKind(other or one))]
    figures: list[Figure] = []
    for kinds in pairs:
        with tempfile.TemporaryDirectory() as directory:
            try:
                hosts = (options.public_host, options.host, options.host)
                meeting = meet(kinds, hosts, Path(directory), delay_seconds=options.delay / 1000)
            except NoSlowNetworkError as error:
                raise SystemExit(f"no namespaces here: {error}") from error
        figures.extend(figures_of(meeting))
        print(row(meeting), *(f"    {said}" for said in meeting.said), sep="\n", file=sys.stderr)
    report("reach", figures, as_json=options.json)


def row(meeting: Meeting) -> str:
    """Returns the row of the table in ``docs/reach.md``."""
    one, other = meeting.kinds
    seconds = ["–" if s is None else f"{s:.0f}" for s in (meeting.fetched_seconds, meeting.direct_seconds)]
    cells = [
        one.value,
        other.value,
        meeting.connected,
        *seconds,
        str(meeting.heard_last),
        str(meeting.relayed_last_bytes),
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
