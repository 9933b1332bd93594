"""Judgements of the network: each a pure function from facts to one finding."""

from __future__ import annotations

import ipaddress
import stat
from collections.abc import Sequence

from node.doctor.findings import Finding, error, ok, warning
from node.doctor.network_facts import ApiFacts, LanFacts, ListenEndpoint, ListenFacts, PeerFacts
from node.printable import printable

SHARED = ipaddress.ip_network("100.64.0.0/10")  # RFC 6598: between a provider's NAT and its customers
SHOWN = 4
_BIND_REMEDIES = {
    "EADDRINUSE": "end the program that has this port, or choose another with swarm.listen",
    "EADDRNOTAVAIL": "this machine has no such address: listen on /ip4/0.0.0.0/tcp/PORT",
    "EACCES": "ports below 1024 need privileges: choose one above with swarm.listen",
}


def judge_listening(facts: ListenFacts) -> Finding:
    if facts.running_addresses is not None:
        if facts.running_addresses:
            return ok("port", f"the node listens on {_some(facts.running_addresses)}")
        return warning("port", "the node runs, and listens nowhere yet", "wait a moment; else see logs/swarm.log")
    listen = printable(facts.configured)
    if facts.endpoint is None:
        return error("port", f"swarm.listen = {listen} is no address to listen on", "write /ip4/0.0.0.0/tcp/PORT")
    if facts.bind_error is not None:
        remedy = _BIND_REMEDIES.get(facts.bind_error, "choose another address with swarm.listen")
        return error("port", f"{listen} cannot be had ({facts.bind_error})", remedy)
    if facts.endpoint.port == 0:
        return ok("port", f"{listen}: any free port is taken; a fixed one can be forwarded on a router")
    return ok("port", f"{listen} is free")


def judge_api(facts: ApiFacts) -> Finding:
    if not facts.port:
        return ok("api", "on its Unix socket; api.port = 0 opens no port")
    where = f"127.0.0.1:{facts.port}"
    if facts.bind_error is not None:
        return error("api", f"{where} cannot be had ({facts.bind_error})", "set api.port to a free port, or to 0")
    if facts.token_mode is not None and facts.token_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return error(
            "api",
            f"others may read {facts.token} (mode {facts.token_mode:03o})",
            "delete it: the next start makes another",
        )
    return ok("api", f"at http://{where}")


def judge_addresses(ips: Sequence[str], listen: ListenEndpoint | None, *, dials_out: bool) -> Finding:
    """Who could dial us, as far as our own addresses tell. ``dials_out``: peers are configured that we would dial."""
    host = ipaddress.ip_address(listen.host) if listen is not None else ipaddress.ip_address("0.0.0.0")
    if host.is_loopback:
        return warning(
            "nat", f"listens on {host}: only this machine can dial it", "set swarm.listen to /ip4/0.0.0.0/tcp/PORT"
        )
    addresses = [ipaddress.ip_address(ip) for ip in (ips if host.is_unspecified else [str(host)])]
    usable = [a for a in addresses if a.version == host.version and not a.is_loopback and not a.is_link_local]
    if not usable:
        return warning("nat", "no network but this machine's own", "connect the machine, or stay alone on purpose")
    public = [str(a) for a in usable if a.is_global]
    if public:
        return ok("nat", f"public address {_some(public)}: anybody can dial it, if no firewall forbids the port")
    shared = [str(a) for a in usable if a.version == 4 and a in SHARED]
    kind = "behind the provider's NAT" if shared else "behind a NAT, if on the internet at all"
    said = f"private address only ({_some([str(a) for a in usable])}), {kind}: others on that network can dial it"
    if dials_out:
        return ok("nat", f"{said}; this node dials the configured peers")
    if shared:
        remedy = "no router of yours can forward a port here: dial a peer that is reachable, with --peer ADDRESS"
    else:
        fixed = "the port" if listen is not None and listen.port else "a fixed port (swarm.listen)"
        remedy = f"forward {fixed} on the router, or dial a peer that is reachable, with --peer ADDRESS"
    return warning("nat", said, remedy)


def judge_peers(peers: Sequence[PeerFacts], *, lan_discovery: bool) -> Finding:
    if not peers:
        if lan_discovery:
            return ok("peers", "none configured; peers on the local network are found by themselves")
        return warning(
            "peers",
            "none configured, and LAN discovery is off: this node trains alone until somebody dials it",
            "join somebody with --peer ADDRESS, or set swarm.lan_discovery=true",
        )
    silent = [peer for peer in peers if peer.failure is not None]
    if not silent:
        return ok("peers", f"{len(peers)} configured, all answer")
    told = "; ".join(f"{printable(peer.address)}: {printable(peer.failure or '')}" for peer in silent[:SHOWN])
    said = f"{len(silent)} of {len(peers)} configured peers cannot be reached: {told}"
    remedy = "ask whether they run and print the same address (starling status), and whether a firewall is between"
    return error("peers", said, remedy) if len(silent) == len(peers) else warning("peers", said, remedy)


def judge_lan(facts: LanFacts) -> Finding:
    if not facts.enabled:
        return ok("lan", "discovery by multicast is off (swarm.lan_discovery)")
    if not facts.interfaces:
        return warning("lan", "no IPv4 interface but loopback: nobody is found by multicast", "connect to a network")
    if facts.failure is not None:
        return warning(
            "lan",
            f"multicast cannot be had: {printable(facts.failure)}",
            "allow UDP port 5353, or set swarm.lan_discovery=false and give peers with --peer",
        )
    if facts.heard:
        return ok("lan", f"heard of {_some(facts.heard)}")
    return ok("lan", f"multicast possible from {_some(facts.interfaces)}; no other node heard of just now")


def _some(texts: Sequence[str]) -> str:
    shown = ", ".join(printable(text) for text in texts[:SHOWN])
    return shown + (f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else "")
