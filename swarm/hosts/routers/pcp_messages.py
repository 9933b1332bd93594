"""Datagrams of PCP (RFC 6887, opcode MAP) and NAT-PMP (RFC 6886), for TCP over IPv4. Numbers are big-endian.

An answer is read only if it answers the very question: version, opcode, nonce and internal port. Anything else raises
``MalformedError``, and the caller waits for the next datagram.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass
from typing import Final

from protocol.errors import MalformedError, RefusedError

PORT: Final = 5351
PCP_VERSION, NAT_PMP_VERSION = 2, 0
PCP_MAP: Final = 1
NAT_PMP_ADDRESS, NAT_PMP_MAP_TCP = 0, 2
ANSWER: Final = 0x80  # added to the opcode of a question
TCP: Final = 6
NONCE_BYTES: Final = 12
UNSUPPORTED_VERSION: Final = 1
_PCP_QUESTION: Final = struct.Struct("!BBHI16s 12sB3xHH16s")
_PCP_ANSWER: Final = struct.Struct("!BBBBII12x 12sB3xHH16s")
_PMP_QUESTION: Final = struct.Struct("!BBHHHI")
_PMP_HEAD: Final = struct.Struct("!BBHI")
_PMP_MAPPED: Final = struct.Struct("!HHI")
PCP_REFUSALS: Final = {
    2: "not authorized", 3: "malformed question", 4: "no such opcode", 5: "no such option", 6: "malformed option",
    7: "no connection to the internet", 8: "no room", 9: "no TCP", 10: "too many ports for this machine",
    11: "that port is not free", 12: "address mismatch: another router lies between", 13: "too many peers",
}  # fmt: skip
PMP_REFUSALS: Final = {2: "not authorized", 3: "no connection to the internet", 4: "no room", 5: "no such opcode"}


class OtherVersionError(RefusedError):
    """The router does not speak this version."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """A port that a router maps, and the seconds since the router last forgot everything."""

    external_port: int
    lease_seconds: int
    epoch_seconds: int
    external_ip: str = ""  # NAT-PMP says it in another answer


def pcp_question(nonce: bytes, own_ip: str, internal_port: int, wanted_port: int, lease_seconds: int) -> bytes:
    """``lease_seconds`` 0 gives the port back."""
    return _PCP_QUESTION.pack(
        PCP_VERSION, PCP_MAP, 0, lease_seconds, _v4_mapped(own_ip), nonce, TCP, internal_port, wanted_port,
        _v4_mapped("0.0.0.0"),
    )  # fmt: skip


def read_pcp_answer(datagram: bytes, nonce: bytes, internal_port: int) -> Mapped:
    """Raises ``OtherVersionError``, ``RefusedError``, ``MalformedError``."""
    if len(datagram) >= 4 and datagram[0] == NAT_PMP_VERSION and datagram[1] & ANSWER:
        # RFC 6887, appendix A: a router that knows NAT-PMP alone says so in four bytes of version, opcode and result.
        if int.from_bytes(datagram[2:4]) == UNSUPPORTED_VERSION:
            raise OtherVersionError("the router speaks no PCP")
        raise MalformedError("an answer of NAT-PMP to a question of PCP")
    if len(datagram) < 24 or datagram[0] != PCP_VERSION or datagram[1] != ANSWER | PCP_MAP:
        raise MalformedError(f"{len(datagram)} bytes that answer no question of PCP")
    if datagram[3] == UNSUPPORTED_VERSION:
        raise OtherVersionError("the router speaks another version of PCP")
    if len(datagram) < _PCP_ANSWER.size:
        raise MalformedError(f"{len(datagram)} bytes; an answer of PCP has {_PCP_ANSWER.size}")
    _, _, _, result, lease, epoch, its_nonce, protocol, internal, external, raw_ip = _PCP_ANSWER.unpack_from(datagram)
    if (its_nonce, protocol, internal) != (nonce, TCP, internal_port):
        raise MalformedError("an answer of PCP to another question")
    if result:
        raise RefusedError(f"the router refuses by PCP: {PCP_REFUSALS.get(result, f'result {result}')}")
    address = ipaddress.IPv6Address(raw_ip).ipv4_mapped
    if lease and (address is None or not external):
        raise MalformedError("an answer of PCP without an IPv4 address and a port")
    return Mapped(external, lease, epoch, str(address))


def pmp_address_question() -> bytes:
    return bytes([NAT_PMP_VERSION, NAT_PMP_ADDRESS])


def read_pmp_address(datagram: bytes) -> tuple[str, int]:
    """Returns the router's external address and its epoch. Raises ``RefusedError``, ``MalformedError``."""
    epoch = _read_pmp_head(datagram, NAT_PMP_ADDRESS, 12)
    return str(ipaddress.IPv4Address(datagram[8:12])), epoch


def pmp_question(internal_port: int, wanted_port: int, lease_seconds: int) -> bytes:
    """``lease_seconds`` 0, with ``wanted_port`` 0, gives the port back."""
    return _PMP_QUESTION.pack(NAT_PMP_VERSION, NAT_PMP_MAP_TCP, 0, internal_port, wanted_port, lease_seconds)


def read_pmp_answer(datagram: bytes, internal_port: int) -> Mapped:
    """Returns the TCP port that the router maps to ``internal_port``, by RFC 6886, section 3.3; without an external IP.

    A lease of 0 seconds says that the port was given back. Raises ``RefusedError`` where the router refuses,
    ``OtherVersionError`` where it speaks no NAT-PMP, ``MalformedError`` for an answer to anything else.
    """
    epoch = _read_pmp_head(datagram, NAT_PMP_MAP_TCP, 16)
    internal, external, lease = _PMP_MAPPED.unpack_from(datagram, 8)
    if internal != internal_port:
        raise MalformedError("an answer of NAT-PMP about another port")
    if lease and not external:
        raise MalformedError("an answer of NAT-PMP without a port")
    return Mapped(external, lease, epoch)


def _read_pmp_head(datagram: bytes, opcode: int, size: int) -> int:
    """Returns the epoch."""
    if len(datagram) < _PMP_HEAD.size or datagram[:2] != bytes([NAT_PMP_VERSION, ANSWER | opcode]):
        raise MalformedError(f"{len(datagram)} bytes that do not answer the question of NAT-PMP")
    _, _, result, epoch = _PMP_HEAD.unpack_from(datagram)
    if result == UNSUPPORTED_VERSION:
        raise OtherVersionError("the router speaks no NAT-PMP")
    if result:
        raise RefusedError(f"the router refuses by NAT-PMP: {PMP_REFUSALS.get(result, f'result {result}')}")
    if len(datagram) < size:
        raise MalformedError(f"{len(datagram)} bytes; this answer of NAT-PMP has {size}")
    return int(epoch)


def _v4_mapped(ip: str) -> bytes:
    return bytes(10) + b"\xff\xff" + ipaddress.IPv4Address(ip).packed


def has_restarted(epoch_seconds: int, epoch_before: int, passed_seconds: float) -> bool:
    """Whether the router forgot everything since ``epoch_before``, which was ``passed_seconds`` ago: RFC 6886, 3.6."""
    return epoch_seconds < epoch_before + passed_seconds * 7 / 8 - 2
