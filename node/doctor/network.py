"""Judgements of the network: each a pure function from facts to one finding."""

from __future__ import annotations

import ipaddress
import stat
from collections.abc import Mapping, Sequence

from node.doctor.addresses import DEFAULT_PORT, EVERYWHERE, listen_hint
from node.doctor.findings import Finding, error, ok, warning
from node.doctor.network_facts import ApiFacts, LanFacts, ListenEndpoint, ListenFacts
from node.printable import printable
from node.quantities import counted
from swarm.api import ReachStatus
from swarm.peers.reachability import REMEDY, Reach

SHARED = ipaddress.ip_network("100.64.0.0/10")  # RFC 6598: between a provider's NAT and its customers
MAX_SHOWN = 4


def judge_listening(facts: ListenFacts) -> Finding:
    if facts.running_addresses is not None:
        if facts.running_addresses:
            return ok("port", f"the node listens on {_some(facts.running_addresses)}")
        return warning(
            "port", "the node runs but does not listen yet", "wait a moment; if that lasts, see logs/swarm.log"
        )
    listen = printable(facts.configured)
    if facts.endpoint is None:
        return error(
            "port", f"swarm.listen = {listen} is not an address to listen on", f"write {listen_hint(listen, ())}"
        )
    if facts.bind_error is not None:
        remedy = _bind_remedy(facts.bind_error, facts.endpoint)
        return error("port", f"cannot listen on {listen} ({facts.bind_error})", remedy)
    if facts.endpoint.port == 0:
        return ok("port", f"{listen}: any free port, and the same again while it is free; a router needs a fixed one")
    return ok("port", f"{listen} is free")


def _bind_remedy(bind_error: str, endpoint: ListenEndpoint) -> str:
    version = ipaddress.ip_address(endpoint.host).version
    match bind_error:
        case "EADDRINUSE":
            return "stop the program that uses this port, or choose another port with swarm.listen"
        case "EADDRNOTAVAIL":
            usable = f"/ip{version}/{EVERYWHERE[version]}/tcp/{endpoint.port}"
            return f"this machine does not have this address: set swarm.listen to {usable}"
        case "EACCES":
            return (
                "ports below 1024 need privileges: choose a higher port with swarm.listen, such as "
                f"/ip{version}/{endpoint.host}/tcp/{DEFAULT_PORT}"
            )
        case _:
            return "choose another address with swarm.listen"


def judge_api(facts: ApiFacts) -> Finding:
    if not facts.port:
        return ok("api", "on its Unix socket only, because api.port = 0")
    where = f"127.0.0.1:{facts.port}"
    if facts.bind_error is not None:
        return error(
            "api",
            f"cannot listen on {where} ({facts.bind_error})",
            "set api.port to a free port, leave it out to get one, or set it to 0 for none",
        )
    if facts.token_mode is not None and facts.token_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return error(
            "api",
            f"other users can read {facts.token} (mode {facts.token_mode:03o})",
            f"delete it, and the next start makes a new one: rm {facts.token}",
        )
    return ok("api", f"at http://{where}")


def judge_addresses(ips: Sequence[str], listen: ListenEndpoint | None, *, dials_out: bool) -> Finding:
    """Judges from our own addresses which peers can dial us. ``dials_out``: whether peers to dial are configured."""
    host = ipaddress.ip_address(listen.host) if listen is not None else ipaddress.ip_address("0.0.0.0")
    if host.is_loopback:
        return warning(
            "nat",
            f"the node listens on {host}: only this machine can dial it",
            f"set swarm.listen to {listen_hint(str(listen.port) if listen is not None else '', ())}",
        )
    addresses = [ipaddress.ip_address(ip) for ip in (ips if host.is_unspecified else [str(host)])]
    usable = [a for a in addresses if a.version == host.version and not a.is_loopback and not a.is_link_local]
    if not usable:
        return warning(
            "nat",
            "no network other than loopback",
            "connect the machine to a network, unless the node is to train alone",
        )
    public = [str(a) for a in usable if a.is_global]
    if public:
        return ok("nat", f"public address {_some(public)}: any peer can dial it, unless a firewall blocks the port")
    shared = [str(a) for a in usable if a.version == 4 and a in SHARED]
    kind = "behind the provider's NAT" if shared else "behind a NAT, or without internet"
    message = f"private address only ({_some([str(a) for a in usable])}), {kind}: peers on that network can dial it"
    if dials_out:
        return ok("nat", f"{message}; this node dials the configured peers")
    if shared:
        remedy = "your router cannot forward a port to this address: dial a reachable peer with --peer ADDRESS"
    else:
        fixed = "the port" if listen is not None and listen.port else "a fixed port (swarm.listen)"
        remedy = f"forward {fixed} on the router, or dial a reachable peer with --peer ADDRESS"
    return warning("nat", message, remedy)


def is_reach_known(reach: ReachStatus) -> bool:
    """Whether anything is known of who reaches the node that runs here."""
    return reach.reach != Reach.UNKNOWN or reach.is_out_of_reach


def judge_reach(reach: ReachStatus) -> Finding:
    """Judges from what peers found who dialled the node that runs here."""
    if reach.relays or not reach.is_out_of_reach:
        return ok("nat", reach.in_words)
    said, _, remedy = reach.in_words.partition(f" {REMEDY}")
    return warning("nat", said, remedy)


def judge_peers(peers: Mapping[str, str | None], *, lan_discovery: bool, connected: int = 0) -> Finding:
    """``peers``: by address why a configured one does not answer, None where it does; ``connected``: the peers of the
    node that runs here."""
    if not peers:
        if connected:
            return ok("peers", f"{counted(connected, 'peer')} connected; none configured")
        if lan_discovery:
            return ok("peers", "none configured; LAN discovery finds peers on the local network")
        return warning(
            "peers",
            "none configured, and LAN discovery is off: this node trains alone until a peer dials it",
            "give a peer with --peer ADDRESS, or set swarm.lan_discovery=true",
        )
    silent = [(address, failure) for address, failure in peers.items() if failure is not None]
    if not silent:
        return ok("peers", f"{len(peers)} configured, all answer")
    failures = "; ".join(f"{printable(address)}: {printable(failure)}" for address, failure in silent[:MAX_SHOWN])
    message = f"{len(silent)} of {len(peers)} configured peers cannot be reached: {failures}"
    remedy = "check that each runs and that its starling status shows this address, and that no firewall is in between"
    return error("peers", message, remedy) if len(silent) == len(peers) else warning("peers", message, remedy)


def judge_lan(facts: LanFacts) -> Finding:
    if not facts.enabled:
        return ok("lan", "discovery by multicast is off (swarm.lan_discovery)")
    if not facts.interfaces:
        return warning(
            "lan", "no IPv4 interface but loopback: multicast finds no peer", "connect the machine to a network"
        )
    if facts.failure is not None:
        return warning(
            "lan",
            f"multicast does not work: {printable(facts.failure)}",
            "allow UDP port 5353, or set swarm.lan_discovery=false and give peers with --peer",
        )
    if facts.heard:
        return ok("lan", f"found {_some(facts.heard)}")
    return ok("lan", f"multicast works from {_some(facts.interfaces)}; no other node found just now")


def _some(texts: Sequence[str]) -> str:
    shown = ", ".join(printable(text) for text in texts[:MAX_SHOWN])
    return shown + (f" and {len(texts) - MAX_SHOWN} more" if len(texts) > MAX_SHOWN else "")
