"""Answers of name servers, as /dnsaddr names of peers are looked up: names that lead to names, damaged datagrams."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from socket import AddressFamily
from typing import Any

import dns.exception
import dns.message
import dns.nameserver
import dns.rrset
from dns.asyncresolver import Resolver

from protocol.errors import UnreachableError
from protocol.identity import NodeKey
from scripts.attacks.fuzzing.measuring import Act
from scripts.attacks.fuzzing.targets import Target, in_virtual_time
from swarm.hosts import names
from swarm.hosts.libp2p.connecting.dialling import parse_address
from swarm.peers.discovery import is_dialable

OTHER = NodeKey(bytes(31) + b"\x08").peer_id


def name_targets() -> list[Target]:
    asked = _Names()
    return [Target("answer of a name server", asked.prepare, asked.answers(), 0.5, asked.extreme, 0.3)]


class _NameServer(dns.nameserver.Nameserver):
    """One that answers every question with the same bytes, but for the number of the question."""

    def __init__(self, content: bytes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._content = content

    def __str__(self) -> str:
        return "drawn"

    def kind(self) -> str:
        return "drawn"

    def is_always_max_size(self) -> bool:
        return True

    def answer_nameserver(self) -> str:
        return "198.51.100.1"

    def answer_port(self) -> int:
        return 53

    async def async_query(self, request: Any, *_: Any, **__: Any) -> Any:
        answer = dns.message.from_wire(request.id.to_bytes(2, "big") + self._content[2:])
        if not request.is_response(answer):
            raise dns.exception.FormError("an answer to another question")  # type: ignore[no-untyped-call]
        return answer


class _Names:
    """/dnsaddr of one name, of which the records may name further names; no machine is looked up."""

    NAME = "_dnsaddr.example.org."

    def answers(self) -> list[bytes]:
        text = f"dnsaddr=/ip4/9.9.9.9/tcp/4001/p2p/{OTHER}"
        return [
            self._answer([text]),
            self._answer([text, "dnsaddr=/dnsaddr/example.org", f"dnsaddr=/dns4/example.org/tcp/1/p2p/{OTHER}"]),
            self._answer([]),
        ]

    def extreme(self, random: Random) -> bytes:
        """As many records as a datagram holds, or as an answer may lead to again and again."""
        kind, length = random.randrange(5), random.randrange(80)
        count = random.choice((1, 16, 250))

        def record(number: int) -> str:
            addresses = (
                "/dnsaddr/example.org",
                f"/ip4/9.9.9.9/tcp/{random.randrange(70000)}/p2p/{OTHER}",
                f"/dnsaddr/{'a.' * length}example.org",
                "/" * (2 * length),
                f"/dnsaddr/{'é' * (length // 2)}",
            )
            return f"dnsaddr={addresses[kind]}{number if kind != 1 else ''}"

        return self._answer([record(number) for number in range(count)])

    def _answer(self, texts: list[str]) -> bytes:
        answer = dns.message.make_response(dns.message.make_query(self.NAME, "TXT"))
        if texts:
            quoted = [" ".join(f'"{text[at : at + 100]}"' for at in range(0, len(text), 100)) for text in texts]
            answer.answer.append(dns.rrset.from_text(self.NAME, 60, "IN", "TXT", *quoted))
        return bytes(answer.to_wire(max_size=65535))

    def prepare(self, raw: bytes) -> Act:
        async def looked_up() -> None:
            resolver = Resolver(configure=False)
            resolver.nameservers = [_NameServer(raw)]
            found = await names.resolve("/dnsaddr/example.org", deadline_seconds=10.0, resolver=resolver)
            for address in found:
                if is_dialable(address):
                    parse_address(address)

        return lambda: _without_machines(partial(in_virtual_time, looked_up))


def _without_machines(act: Callable[[], None]) -> None:
    """Runs it where no name of a machine is known; it would be asked of this machine's own resolver."""

    async def unknown(name: str, host: str, family: AddressFamily) -> list[str]:
        raise UnreachableError(f"{name} is not looked up here")

    known = names._ips
    names._ips = unknown
    try:
        act()
    finally:
        names._ips = known
