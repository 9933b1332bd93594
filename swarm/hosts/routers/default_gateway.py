"""The router that this machine sends everything to, and this machine's address towards it."""

from __future__ import annotations

import ipaddress
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio

from protocol.errors import UnreachableError
from swarm.address_groups import is_public

ROUTES: Final = Path("/proc/net/route")
COMMAND_SECONDS: Final = 3.0
UP_AND_GATEWAY: Final = 0x3


@dataclass(frozen=True, slots=True)
class Gateway:
    """``ip`` is the router's IPv4 address on the local network, ``own_ip`` that of this machine."""

    ip: str
    own_ip: str


async def default_gateway() -> Gateway:
    """Raises ``UnreachableError`` where there is none, and on systems where it cannot be found."""
    ip = await _gateway_ip()
    if ip is None:
        raise UnreachableError("this machine has no router that it sends everything to")
    if is_public(ip):
        raise UnreachableError(f"the router {ip} is not on a private network")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect((ip, 9))  # sends nothing
            return Gateway(ip, asking.getsockname()[0])
        except OSError as error:
            raise UnreachableError(f"no way to the router {ip}: {error.strerror or error}") from error


async def _gateway_ip() -> str | None:
    if sys.platform == "linux":
        try:
            return gateway_in_routes(await anyio.Path(ROUTES).read_text(encoding="ascii"))
        except (OSError, ValueError) as error:
            raise UnreachableError(f"the router cannot be found: {error}") from error
    if sys.platform == "darwin":
        try:
            with anyio.fail_after(COMMAND_SECONDS):
                asked = await anyio.run_process(["route", "-n", "get", "default"], stderr=subprocess.DEVNULL)
        except (OSError, TimeoutError, subprocess.CalledProcessError) as error:
            raise UnreachableError(f"the router cannot be found: {error}") from error
        return gateway_in_answer(asked.stdout.decode("ascii", errors="replace"))
    raise UnreachableError(f"how to find the router is not known on {sys.platform}")


def gateway_in_routes(routes: str) -> str | None:
    """Reads Linux's ``/proc/net/route``; of several default routes that with the lowest metric counts."""
    found: list[tuple[int, str]] = []
    for line in routes.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8 or fields[1] != "00000000" or fields[7] != "00000000":
            continue
        if int(fields[3], 16) & UP_AND_GATEWAY == UP_AND_GATEWAY:
            number = int(fields[2], 16).to_bytes(4, sys.byteorder)
            found.append((int(fields[6]), str(ipaddress.IPv4Address(number))))
    return min(found)[1] if found else None


def gateway_in_answer(answer: str) -> str | None:
    """Reads what ``route -n get default`` writes on macOS."""
    for line in answer.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "gateway":
            try:
                return str(ipaddress.IPv4Address(value.strip()))
            except ValueError:
                return None  # a link without a router
    return None
