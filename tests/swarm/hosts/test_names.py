"""Names of peers are looked up at a name server that runs here, on loopback."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

import dns.message
import dns.rrset
import pytest
import trio
from dns.asyncresolver import Resolver

from protocol.errors import DeadlineError, UnreachableError
from swarm.hosts.names import ADDRESSES_PER_NAME, LOOKUPS, resolve

PEER = "12D3KooWKJkUUGsSvgomZdd7M5ZhHQXdD7mJBHCfCcKeTQ9ZZuLn"
OTHER = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"
HERE = f"/ip4/192.0.2.7/tcp/4001/p2p/{PEER}"
THERE = f"/ip6/2001:db8::7/tcp/4001/p2p/{OTHER}"


async def serve(socket: trio.socket.SocketType, records: Mapping[str, Sequence[str]]) -> None:
    while True:
        question, sender = await socket.recvfrom(4096)
        query = dns.message.from_wire(question)
        answer = dns.message.make_response(query)
        name = query.question[0].name
        for text in records.get(name.to_text(omit_final_dot=True), ()):
            answer.answer.append(dns.rrset.from_text(name, 60, "IN", "TXT", f'"{text}"'))
        await socket.sendto(answer.to_wire(), sender)


def ask(records: Mapping[str, Sequence[str]], story: Callable[[Resolver], Awaitable[None]]) -> None:
    async def main() -> None:
        with trio.socket.socket(type=trio.socket.SOCK_DGRAM) as socket:
            await socket.bind(("127.0.0.1", 0))
            resolver = Resolver(configure=False)
            resolver.nameservers, resolver.port = ["127.0.0.1"], socket.getsockname()[1]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve, socket, records)
                await story(resolver)
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_text_records_and_names_in_them_lead_to_addresses_of_peers() -> None:
    async def story(resolver: Resolver) -> None:
        found = await resolve("/dnsaddr/door.example", deadline_seconds=10, resolver=resolver)
        assert set(found) == {HERE, THERE}
        found = await resolve(f"/dnsaddr/door.example/p2p/{PEER}", deadline_seconds=10, resolver=resolver)
        assert found == [HERE]

    records = {
        "_dnsaddr.door.example": [
            f"dnsaddr={HERE}", f"dnsaddr=/dnsaddr/next.example/p2p/{OTHER}", "v=spf1 -all",
            "dnsaddr=/ip4/192.0.2.9/tcp/1", f"dnsaddr=/ip4/192.0.2.7/udp/4001/quic-v1/p2p/{PEER}",
        ],
        "_dnsaddr.next.example": [f"dnsaddr={THERE}"],
    }  # fmt: skip
    ask(records, story)


ODD_RECORDS = ("/dnsaddr", "/dnsaddr/", "/dns4", "/dns4//tcp/1", f"/dns4/{'a' * 70}/tcp/1/p2p/x", "/", "//", "")


@pytest.mark.parametrize("record", ODD_RECORDS)
def test_a_record_that_is_no_address_leads_to_none(record: str) -> None:
    async def story(resolver: Resolver) -> None:
        with pytest.raises(UnreachableError):
            await resolve("/dnsaddr/odd.example", deadline_seconds=10, resolver=resolver)

    ask({"_dnsaddr.odd.example": [f"dnsaddr={record}"]}, story)


def test_names_in_a_circle_and_names_that_nobody_has_lead_to_no_address() -> None:
    async def story(resolver: Resolver) -> None:
        for name in ("circle.example", "nobody.example"):
            with pytest.raises(UnreachableError, match=name):
                await resolve(f"/dnsaddr/{name}", deadline_seconds=10, resolver=resolver)

    ask({"_dnsaddr.circle.example": ["dnsaddr=/dnsaddr/circle.example"]}, story)


def test_a_name_leads_to_a_bounded_number_of_addresses() -> None:
    async def story(resolver: Resolver) -> None:
        found = await resolve("/dnsaddr/many.example", deadline_seconds=10, resolver=resolver)
        assert len(found) == ADDRESSES_PER_NAME

    ask({"_dnsaddr.many.example": [f"dnsaddr=/ip4/192.0.2.{n}/tcp/1/p2p/{PEER}" for n in range(18)]}, story)


def test_a_name_server_that_is_silent_ends_at_the_deadline() -> None:
    async def main() -> None:
        with trio.socket.socket(type=trio.socket.SOCK_DGRAM) as socket:
            await socket.bind(("127.0.0.1", 0))
            resolver = Resolver(configure=False)
            resolver.nameservers, resolver.port = ["127.0.0.1"], socket.getsockname()[1]
            with pytest.raises(DeadlineError, match=r"door\.example"):
                await resolve("/dnsaddr/door.example", deadline_seconds=0.2, resolver=resolver)

    trio.run(main)


def test_the_hosts_file_is_asked_for_names_of_machines() -> None:
    async def main() -> None:
        name = f"/dns4/localhost/tcp/4001/p2p/{PEER}"
        assert await resolve(name, deadline_seconds=10) == [f"/ip4/127.0.0.1/tcp/4001/p2p/{PEER}"]

    trio.run(main)


def test_names_that_lead_to_ever_more_names_are_looked_up_a_bounded_number_of_times() -> None:
    asked: list[str] = []

    class Multiplying(Mapping[str, Sequence[str]]):
        """Every name leads to sixteen further ones."""

        def __getitem__(self, name: str) -> Sequence[str]:
            asked.append(name)
            host = name.removeprefix("_dnsaddr.")
            return [f"dnsaddr=/dnsaddr/{number}.{host}" for number in range(ADDRESSES_PER_NAME)]

        def __iter__(self) -> Iterator[str]:
            return iter(())

        def __len__(self) -> int:
            return 0

    async def story(resolver: Resolver) -> None:
        with pytest.raises(UnreachableError):
            await resolve("/dnsaddr/door.example", deadline_seconds=60, resolver=resolver)
        assert len(set(asked)) == len(asked) == LOOKUPS

    ask(Multiplying(), story)
