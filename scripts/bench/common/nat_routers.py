"""What a router does with what passes it, in the language of nftables, and how it forgets."""

from __future__ import annotations

import sys
from enum import Enum

from scripts.bench.common.slow_network import run_tool

# Linux's ctnetlink: a request to delete, without a tuple, deletes every connection of the namespace.
_FORGET = """
import socket, struct
netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
delete, request_and_answer = 1 << 8 | 2, 1 | 4
netlink.send(struct.pack("=IHHIIBBH", 20, delete, request_and_answer, 1, 0, 0, 0, 0))
(failure,) = struct.unpack_from("=i", netlink.recv(4096), 16)
raise SystemExit(-failure)
"""


class RouterKind(Enum):
    """The router between a home and the public segment; ``NONE`` for a machine on the segment itself."""

    NONE = "public"
    FULL_CONE = "full cone"
    PORT_RESTRICTED = "port-restricted"
    SYMMETRIC = "symmetric"
    CARRIER = "carrier"
    RESETTING = "resetting"
    IP6_FIREWALL = "IPv6 firewall"


def router_rules(kind: RouterKind, inside: str) -> str:
    """Returns the rules of a router before the machine ``inside``."""
    if kind is RouterKind.IP6_FIREWALL:
        return _filter("ip6", "", "drop")
    source = "masquerade fully-random" if kind is RouterKind.SYMMETRIC else "masquerade"
    cone = kind is RouterKind.FULL_CONE
    used = "iifname lan update @used { tcp sport }" if cone else ""
    unexpected = "reject with tcp reset" if kind is RouterKind.RESETTING else "drop"
    forwarded = f"iifname wan tcp dport @used dnat to {inside}" if cone else ""
    return f"""
        table ip translation {{
            set used {{ type inet_service; flags dynamic, timeout; timeout 5m; }}
            chain before {{ type nat hook prerouting priority dstnat; {forwarded}; }}
            chain after {{ type nat hook postrouting priority srcnat; oifname wan {source}; }}
            chain passing {{ type filter hook forward priority -1; {used}; }}
        }}
        {_filter("ip", "iifname wan ct status dnat accept", unexpected)}
    """


def _filter(family: str, expected: str, unexpected: str) -> str:
    """Returns the rules for what comes in and no connection of the home expects."""
    tcp = "meta l4proto tcp" if unexpected != "drop" else ""
    return f"""
        table {family} firewall {{
            chain passing {{
                type filter hook forward priority filter;
                {expected}
                iifname wan ct state {{ new, invalid }} {tcp} {unexpected}
            }}
            chain own {{
                type filter hook input priority filter;
                {"icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept" if family == "ip6" else ""}
                iifname wan ct state {{ new, invalid }} {tcp} {unexpected}
            }}
        }}
    """


def forget_connections(router: str) -> None:
    """Has the router in the namespace ``router`` forget all its connections; it takes up none in their middle."""
    run_tool("ip", "netns", "exec", router, "sysctl", "-qw", "net.netfilter.nf_conntrack_tcp_loose=0")
    run_tool("ip", "netns", "exec", router, sys.executable, "-c", _FORGET)
