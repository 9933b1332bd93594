"""Decides whether this node can be dialled, from what peers report who dialled it: pure, in seconds of one clock.

No address shows it: a node behind a router may have a port forwarded, and one with a public address a closed firewall.
So peers are asked (``dial_back.py``). Reports are hearsay. A node believes what more of them say, two at least, and
counts those alone to which it is connected over the internet, if there are any: a peer on the same local network
reaches it in any case. A node that is seen at an address that it does not have itself is behind a router; it takes
places at relays until two peers have reached it, and then announces that address. So does one that asked, and none of
its peers has tried: the only peer that it knows may be a door too busy for that, and a place costs less than being out
of reach.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from swarm.address_groups import is_public

REPORTS_NEEDED: Final = 2
REPORTS_WANTED: Final = 3
REPORT_SECONDS: Final = 900.0  # for which a report counts; then the peer is asked again
ASK_AGAIN_SECONDS: Final = 60.0  # after a peer that did not try
RELAYS_WANTED: Final = 2
RELAY_BACKOFF_SECONDS: Final = 60.0
NO_PLACES: Final = 'this host takes no place at a relay, and `swarm.host = "py"` does'


class Reach(StrEnum):
    """From where this node can be dialled."""

    UNKNOWN = "unknown"
    INTERNET = "internet"
    LOCAL_NETWORK = "local network"  # asked were peers on private addresses alone
    NOWHERE = "nowhere"


@dataclass(frozen=True, slots=True)
class DialReport:
    """A peer's answer to whether it can dial this node; ``reached`` None: it did not try, or did not answer."""

    peer: str
    at_seconds: float
    seen_ip: str = ""
    reached: bool | None = None
    port: int = 0  # at which it reached this node


@dataclass(frozen=True, slots=True)
class Reachability:
    """The verdict and its reason, in words."""

    reach: Reach
    because: str
    needs_relay: bool  # peers cannot dial this node, as far as is known
    is_out_of_reach: bool = False  # of the peers that tried, most could not dial it; one is enough
    nobody_tried: bool = False  # of the peers that were asked
    also_at: tuple[str, int] | None = None  # the router's address and port at which peers reached this node


REMEDY: Final = "To be reached: "  # what follows would help


def judged(now_seconds: float, reports: Iterable[DialReport], own_ips: Collection[str] = ()) -> Reachability:
    """``own_ips`` are the addresses of this machine."""
    asked = [r for r in reports if now_seconds - r.at_seconds < REPORT_SECONDS * 2]
    fresh = [r for r in asked if r.reached is not None]
    over_internet = [r for r in fresh if is_public(r.seen_ip)]
    counted = over_internet or fresh
    yes = sum(1 for r in counted if r.reached)
    no = len(counted) - yes
    if yes >= REPORTS_NEEDED and yes > no:
        reach = Reach.INTERNET if over_internet else Reach.LOCAL_NETWORK
        because = f"{yes} of {len(counted)} peers that tried reached this node"
        return Reachability(reach, because, needs_relay=False, also_at=_router_of(over_internet, own_ips))
    if no >= REPORTS_NEEDED and no >= yes:
        because = f"{no} of {len(counted)} peers that tried did not reach this node"
        return Reachability(Reach.NOWHERE, because, needs_relay=True, is_out_of_reach=True)
    is_behind_router = any(r.seen_ip not in own_ips for r in over_internet)
    needs_relay = no > yes or is_behind_router
    return Reachability(
        Reach.UNKNOWN,
        _too_few_in_words(yes, no),
        needs_relay,
        is_out_of_reach=no > yes,
        nobody_tried=bool(asked) and not fresh,
    )


def _too_few_in_words(yes: int, no: int) -> str:
    """Returns what is known from fewer peers than must agree."""
    match yes, no:
        case 0, 0:
            return "no peer has tried to reach this node yet"
        case 0, 1:
            return "one peer has tried to reach this node, and could not"
        case 1, 0:
            return "one peer has tried to reach this node, and did"
    return f"{yes} of {yes + no} peers that tried reached this node, which is too few to be sure"


def _router_of(reports: Iterable[DialReport], own_ips: Collection[str]) -> tuple[str, int] | None:
    """Returns where ``REPORTS_NEEDED`` peers reached this node, unless that is an address of this machine."""
    reached = Counter((r.seen_ip, r.port) for r in reports if r.reached and r.seen_ip not in own_ips)
    return next((where for where, times in reached.most_common(1) if times >= REPORTS_NEEDED), None)


def whom_to_ask(now_seconds: float, candidates: Collection[str], reports: Mapping[str, DialReport]) -> list[str]:
    """Returns the connected peers to ask now, so that ``REPORTS_WANTED`` are fresh; those never asked come first."""
    fresh = 0
    due = []
    for peer in candidates:
        report = reports.get(peer)
        if report is None:
            due.append((float("-inf"), peer))
        elif now_seconds - report.at_seconds >= (ASK_AGAIN_SECONDS if report.reached is None else REPORT_SECONDS):
            due.append((report.at_seconds, peer))
        elif report.reached is not None:
            fresh += 1
    return [peer for _, peer in sorted(due)][: max(0, REPORTS_WANTED - fresh)]


def relays_to_ask(
    now_seconds: float, candidates: Iterable[str], held: Mapping[str, float], refused: Mapping[str, float]
) -> list[str]:
    """Returns the peers at which to take or renew a place now.

    ``held`` has, by relay, when its place is due to be renewed; ``refused`` when a peer refused last.
    """
    due = [relay for relay, renew_seconds in held.items() if renew_seconds <= now_seconds]
    room = RELAYS_WANTED - len(held)
    free = [p for p in candidates if p not in held and now_seconds - refused.get(p, -1e9) >= RELAY_BACKOFF_SECONDS]
    return due + free[: max(0, room)]


def in_words(reachability: Reachability, relays: int, port: int, router: str = "", *, takes_places: bool = True) -> str:
    """Returns what a user should know, and what would help. ``router`` is what the router did, in words;
    ``takes_places`` whether this host takes places at relays.

    One peer that tried, or one relay that holds a place, is enough to say what is known: in a young swarm there may be
    no second one.
    """
    through = f"it is reached through {relays} relay{'s' if relays > 1 else ''}" if relays else ""
    unreached = "no connected peer relays for it" if takes_places else NO_PLACES
    did = f"; {router}" if router else ""
    helps = (
        f"{REMEDY}forward TCP port {port} of your router to this machine (with IPv6, open it in the router's "
        "firewall) and set `swarm.listen` to that port"
    )
    match reachability.reach:
        case Reach.INTERNET:
            return f"peers can reach this node ({reachability.because}){did}"
        case Reach.LOCAL_NETWORK:
            return f"peers on the local network can reach this node ({reachability.because}); no other has tried{did}"
        case Reach.NOWHERE:
            known = "no peer can reach this node"
        case _:
            known = reachability.because
    if reachability.is_out_of_reach:
        return f"{known}; {through or unreached}{did}. {helps}"
    meanwhile = f"; {through}" if through else ""
    return f"not known yet whether peers can reach this node: {known}{meanwhile}{did}"
