"""How a friend joins the swarm of this node: one command to copy, and as a QR code."""

from __future__ import annotations

import io
import ipaddress
import shlex
from collections.abc import Sequence
from typing import Final

from node.api.types import JoinLine
from node.printable import printable
from swarm.api import SwarmStatus

DEFAULT_SWARM: Final = "starling"  # ``SwarmSection.name``; a test compares them
MAX_ADDRESSES: Final = 3  # in one command
MAX_ADDRESS_CHARACTERS: Final = 200
INVITED: Final = "starling up --join INVITE"
ASK_OWNER: Final = "this cluster is private: its owner makes an INVITE for your friend with: starling invite"
NO_ADDRESS: Final = "this node has no address yet"
ONLY_HERE: Final = 2  # ``_reach`` of an address of this machine alone
THIS_MACHINE: Final = (
    "only nodes on this machine can reach it: start it with --listen /ip4/0.0.0.0/tcp/4001 for other machines"
)
THIS_NETWORK: Final = (
    "the address is of your own network: from elsewhere use the router's address, with the port forwarded to this "
    "machine"
)


def join_of(swarm: SwarmStatus) -> JoinLine:
    """Returns how to join: one command with this node's addresses, the one that is most likely to work from elsewhere
    first. Addresses of this machine alone are in it where there is no other."""
    if swarm.private:
        return JoinLine(private=True, commands=(INVITED,), hint=ASK_OWNER, qr=False)
    ranked = sorted(swarm.addresses, key=_reach)
    if not ranked:
        return JoinLine(private=False, commands=(), hint=NO_ADDRESS, qr=False)
    beyond = [address for address in ranked if _reach(address) < ONLY_HERE]
    named = "" if swarm.swarm == DEFAULT_SWARM else f" --set {shlex.quote(f'swarm.name={printable(swarm.swarm, 64)}')}"
    at = [f" --peer {printable(address, MAX_ADDRESS_CHARACTERS)}" for address in (beyond or ranked)[:MAX_ADDRESSES]]
    hint = {0: None, 1: THIS_NETWORK, ONLY_HERE: THIS_MACHINE}[_reach(ranked[0])]
    return JoinLine(private=False, commands=(f"starling up{''.join(at)}{named}",), hint=hint, qr=True)


def join_svg(commands: Sequence[str]) -> bytes:
    """Returns a QR code of the first command as SVG, black on white with its quiet zone, and a title for those who do
    not see it. ``commands`` is not empty."""
    import segno  # late: ``starling status`` asks for the command, and never for the picture

    code = segno.make(commands[0], error="m", micro=False)
    out = io.BytesIO()
    code.save(
        out, kind="svg", scale=4, border=4, light="#fff", dark="#000", xmldecl=False, title=f"QR code: {commands[0]}"
    )
    return out.getvalue()


def _reach(address: str) -> int:
    """Returns 0 for an address that may be reached from everywhere, 1 from the network, 2 from this machine alone."""
    parts = address.split("/")
    if len(parts) < 3 or parts[1] not in ("ip4", "ip6"):
        return 0
    try:
        host = ipaddress.ip_address(parts[2])
    except ValueError:
        return 0
    if host.is_loopback:
        return ONLY_HERE
    return 1 if host.is_private or host.is_link_local else 0
