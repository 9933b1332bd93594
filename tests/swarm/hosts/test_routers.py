"""Routers that open ports, and others that answer rubbish: small ones of our own, on loopback."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import (
    DeadlineError,
    MalformedError,
    OversizedError,
    ProtocolError,
    RefusedError,
    StarlingError,
    UnreachableError,
)
from swarm.hosts.routers import home_router, http_exchange, upnp
from swarm.hosts.routers import pcp_messages as pcp
from swarm.hosts.routers.default_gateway import Gateway, gateway_in_answer, gateway_in_routes
from swarm.hosts.routers.home_router import HomeRouter
from swarm.hosts.routers.http_exchange import exchange
from swarm.hosts.routers.upnp_messages import (
    RouterUrl,
    UpnpRefusedError,
    read_action_answer,
    read_description,
    read_search_answer,
    router_url,
)
from swarm.router import OpenedPort

HERE, PUBLIC = "127.0.0.1", "203.0.113.9"
SERVICE = "urn:schemas-upnp-org:service:WANIPConnection:1"
Answers = Callable[[bytes], Sequence[bytes]]


def play(story: Callable[[], Awaitable[None]]) -> None:
    anyio.run(story, backend="trio")


async def here() -> Gateway:
    return Gateway(HERE, HERE)


@asynccontextmanager
async def udp_router(answers: Answers) -> AsyncIterator[int]:
    """Answers every datagram with those that ``answers`` returns; yields its port."""
    async with await anyio.create_udp_socket(local_host=HERE) as udp, anyio.create_task_group() as tasks:

        async def serve() -> None:
            async for question, sender in udp:
                for answer in answers(question):
                    await udp.sendto(answer, *sender)

        tasks.start_soon(serve)
        yield udp.extra(SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def http_router(serve: Callable[[bytes, ByteStream], Awaitable[None]]) -> AsyncIterator[int]:
    async def on_stream(stream: ByteStream) -> None:
        async with stream:
            question = b""
            while b"\r\n\r\n" not in question or (b"POST" in question and b"</s:Envelope>" not in question):
                question += await stream.receive()
            try:
                await serve(question, stream)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return  # the other end has had enough

    listener = await anyio.create_tcp_listener(local_host=HERE)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, on_stream)
        yield listener.extra(SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def unused_port() -> AsyncIterator[int]:
    async with await anyio.create_udp_socket(local_host=HERE) as udp:
        port = udp.extra(SocketAttribute.local_port)
    yield port


class PcpRouter:
    """Speaks PCP, or NAT-PMP alone; sends ``rubbish`` before each answer."""

    def __init__(self, *, pcp_too: bool = True, rubbish: Sequence[bytes] = (), result: int = 0) -> None:
        self.pcp_too, self.rubbish, self.result = pcp_too, rubbish, result
        self.epoch, self.port = 5000, 40123
        self.leases: list[int] = []

    def __call__(self, question: bytes) -> list[bytes]:
        return [*self.rubbish, self.answer(question)] if question[0] in (0, 2) else []

    def answer(self, question: bytes) -> bytes:
        if question[0] == 2 and not self.pcp_too:
            return struct.pack("!BBHI", 0, 0x81, 1, self.epoch)
        if question[0] == 2:
            assert len(question) == 60
            self.leases.append(int.from_bytes(question[4:8]))
            head = struct.pack("!BBBBII12x", 2, 0x81, 0, self.result, self.leases[-1], self.epoch)
            external = ipaddress.IPv6Address(f"::ffff:{PUBLIC}").packed
            return head + question[24:42] + struct.pack("!H", self.port) + external
        if question[1] == 0:
            return struct.pack("!BBHI", 0, 0x80, self.result, self.epoch) + ipaddress.IPv4Address(PUBLIC).packed
        internal, _, lease = struct.unpack("!4xHHI", question)
        self.leases.append(lease)
        return struct.pack("!BBHIHHI", 0, 0x82, self.result, self.epoch, internal, self.port, lease)


@pytest.mark.parametrize("pcp_too", [True, False])
def test_a_port_is_opened_renewed_and_given_back_by_pcp_and_where_there_is_none_by_nat_pmp(pcp_too: bool) -> None:
    async def story() -> None:
        router = PcpRouter(pcp_too=pcp_too)
        async with udp_router(router) as port:
            home = HomeRouter(find_gateway=here, udp_port=port, search_at=(HERE, port))
            opened = await home.open({HERE: 4001}, wanted_port=0, lease_seconds=3600)
            method = "PCP" if pcp_too else "NAT-PMP"
            assert opened == OpenedPort(method, PUBLIC, 40123, HERE, 4001, 3600.0)
            router.epoch += 1
            assert await home.open({HERE: 4001}, wanted_port=40123, lease_seconds=3600) == opened
            router.epoch = 3
            assert (await home.open({HERE: 4001}, wanted_port=40123, lease_seconds=3600)).router_restarted
            await home.close(opened)
            assert router.leases == [3600, 3600, 3600, 0]
            with pytest.raises(UnreachableError, match="does not listen"):
                await home.open({"192.168.1.5": 4001}, wanted_port=0, lease_seconds=3600)

    play(story)


def test_rubbish_by_udp_is_counted_and_the_answer_behind_it_is_read() -> None:
    other_nonce = PcpRouter().answer(pcp.pcp_question(bytes(12), HERE, 4001, 4001, 3600))
    rubbish = [b"", b"\x02", bytes(60), b"\xff" * 1400, other_nonce, other_nonce[:40]]

    async def story() -> None:
        async with udp_router(PcpRouter(rubbish=rubbish)) as port:
            home = HomeRouter(find_gateway=here, udp_port=port, search_at=(HERE, port))
            assert (await home.open({HERE: 4001}, wanted_port=0, lease_seconds=3600)).external_port == 40123
            assert home.rubbish == {"malformed": len(rubbish)}

    play(story)


def test_a_router_that_refuses_or_sends_rubbish_alone_or_nothing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(for_answers: Sequence[float], for_upnp: float) -> None:
        """Long where the end is an answer or a count, so that a busy machine changes nothing."""
        monkeypatch.setattr(home_router, "WAITS_SECONDS", for_answers)
        monkeypatch.setattr(upnp, "SEARCH_SECONDS", for_upnp)

    async def fails(answers: Answers) -> str:
        async with udp_router(answers) as port:
            home = HomeRouter(find_gateway=here, udp_port=port, search_at=(HERE, port))
            with pytest.raises(StarlingError) as raised:
                await home.open({HERE: 4001}, wanted_port=0, lease_seconds=3600)
            assert sum(home.rubbish.values()) <= 200, "what one question hears is bounded"
            return str(raised.value)

    async def story() -> None:
        waits((60.0,), 0.1)
        assert "not authorized" in await fails(PcpRouter(result=2))
        waits((0.02, 0.02), 60.0)
        assert "and none that is one" in await fails(lambda question: [b"\x02\x81"] * 500)
        waits((0.02, 0.02), 0.1)
        assert "answers neither by PCP nor by NAT-PMP nor by UPnP" in await fails(lambda question: ())
        async with unused_port() as port:
            home = HomeRouter(find_gateway=here, udp_port=port, search_at=(HERE, port))
            with pytest.raises(UnreachableError, match="answers neither"):
                await home.open({HERE: 4001}, wanted_port=0, lease_seconds=3600)

    play(story)


@pytest.mark.parametrize("lease", [0, 3600])
def test_every_other_byte_in_an_answer_is_rubbish_or_another_answer_and_never_a_bug(lease: int) -> None:
    nonce, router = bytes(range(12)), PcpRouter()
    readers: list[tuple[bytes, Callable[[bytes], object]]] = [
        (pcp.pcp_question(nonce, HERE, 4001, 0, lease), lambda data: pcp.read_pcp_answer(data, nonce, 4001)),
        (pcp.pmp_address_question(), pcp.read_pmp_address),
        (pcp.pmp_question(4001, 0, lease), lambda data: pcp.read_pmp_answer(data, 4001)),
    ]
    for question, read in readers:
        whole = router.answer(question)
        read(whole)
        for place in range(len(whole)):
            for changed in (whole[:place], whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :]):
                try:
                    read(changed)
                except (ProtocolError, RefusedError):
                    continue
                assert len(changed) == len(whole)


def description(control: str = "/ctl", service: str = SERVICE, base: str = "") -> bytes:
    return (
        f'<?xml version="1.0"?><root xmlns="urn:schemas-upnp-org:device-1-0">{base}<device><serviceList>'
        "<service><serviceType>urn:schemas-upnp-org:service:Layer3Forwarding:1</serviceType>"
        "<controlURL>/l3f</controlURL></service></serviceList><deviceList><device><serviceList><service>"
        f"<serviceType>{service}</serviceType><controlURL>{control}</controlURL>"
        "</service></serviceList></device></deviceList></device></root>"
    ).encode()


def soap(name: str, inner: str) -> bytes:
    return f'<s:Envelope xmlns:s="x"><s:Body><u:{name} xmlns:u="y">{inner}</u:{name}></s:Body></s:Envelope>'.encode()


def fault(code: int) -> bytes:
    return soap("Fault", f"<detail><UPnPError><errorCode>{code}</errorCode></UPnPError></detail>")


def http(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class Igd:
    """An Internet Gateway Device that refuses ports of ``taken``, and leases if it knows permanent ones alone."""

    def __init__(self, *, taken: Sequence[int] = (), permanent: bool = False, ip: str = PUBLIC) -> None:
        self.taken, self.permanent, self.ip = taken, permanent, ip
        self.mapped: dict[int, bytes] = {}

    async def __call__(self, question: bytes, stream: ByteStream) -> None:
        await stream.send(self.answer(question))

    def answer(self, question: bytes) -> bytes:
        if question.startswith(b"GET /desc.xml "):
            return http(description())
        assert question.startswith(b"POST /ctl "), question
        if b"#GetExternalIPAddress" in question:
            return http(soap("R", f"<NewExternalIPAddress>{self.ip}</NewExternalIPAddress>"))
        port = int(question.partition(b"<NewExternalPort>")[2].partition(b"<")[0])
        if b"#DeletePortMapping" in question:
            del self.mapped[port]
        elif port in self.taken:
            return http(fault(718), "500 Internal Server Error")
        elif self.permanent and b"<NewLeaseDuration>0<" not in question:
            return http(fault(725), "500 Internal Server Error")
        else:
            self.mapped[port] = question
        return http(soap("R", ""))


def located(port: int, location: str = "") -> Answers:
    location = location or f"http://{HERE}:{port}/desc.xml"
    answer = f"HTTP/1.1 200 OK\r\nCACHE-CONTROL: max-age=120\r\nEXT:\r\nLOCATION: {location}\r\n\r\n".encode()
    return lambda question: [b"rubbish", answer] if b"ssdp:discover" in question else []


@pytest.mark.parametrize(
    ("igd", "port", "lease_seconds"),
    [
        (Igd(), 4001, 3600.0),
        (Igd(taken=[4001]), None, 3600.0),
        (Igd(permanent=True), 4001, upnp.PERMANENT_SECONDS),
    ],
)
def test_a_port_is_opened_by_upnp_whatever_is_taken_and_given_back(
    igd: Igd, port: int | None, lease_seconds: float
) -> None:
    async def story() -> None:
        async with http_router(igd) as http_port, udp_router(located(http_port)) as search, unused_port() as closed:
            home = HomeRouter(find_gateway=here, udp_port=closed, search_at=(HERE, search))
            opened = await home.open({HERE: 4001}, wanted_port=0, lease_seconds=3600)
            assert (opened.method, opened.external_ip, opened.internal_port) == ("UPnP", PUBLIC, 4001)
            assert opened.external_port == port or (port is None and 10_000 <= opened.external_port < 60_000)
            assert opened.lease_seconds == lease_seconds
            assert b"<NewInternalClient>127.0.0.1</NewInternalClient>" in igd.mapped[opened.external_port]
            again = await home.open({HERE: 4001}, wanted_port=opened.external_port, lease_seconds=3600)
            assert again == opened
            await home.close(opened)
            assert not igd.mapped

    play(story)


@pytest.mark.parametrize(
    ("igd", "says"),
    [(Igd(taken=range(1 << 16)), "taken"), (Igd(ip=""), "no external"), (Igd(ip="<!--"), "no XML"), (None, "no HTTP")],
)
def test_a_router_that_opens_nothing_by_upnp_says_so(igd: Igd | None, says: str) -> None:
    async def rubbish(question: bytes, stream: ByteStream) -> None:
        await stream.send(b"\x00\xff rubbish \r\n\r\n")

    async def story() -> None:
        async with http_router(igd or rubbish) as port, udp_router(located(port)) as search, unused_port() as closed:
            home = HomeRouter(find_gateway=here, udp_port=closed, search_at=(HERE, search))
            expected = "is not HTTP" if igd is None else says
            with pytest.raises((RefusedError, MalformedError), match=expected):
                await home.open({HERE: 4001}, wanted_port=0, lease_seconds=3600)
            assert sum(home.rubbish.values()) >= 2

    play(story)


async def chunks_without_end(question: bytes, stream: ByteStream) -> None:
    await stream.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        await stream.send(b"400\r\n" + bytes(1024) + b"\r\n")


async def header_without_end(question: bytes, stream: ByteStream) -> None:
    await stream.send(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        await stream.send(b"x" * 1024)


async def huge_body(question: bytes, stream: ByteStream) -> None:
    await stream.send(b"HTTP/1.0 200 OK\r\n\r\n")
    while True:
        await stream.send(bytes(1 << 16))


async def drops(question: bytes, stream: ByteStream) -> None:
    while True:
        await stream.send(b"H")
        await anyio.sleep(0.01)


async def silence(question: bytes, stream: ByteStream) -> None:
    await anyio.sleep_forever()


async def ends_at_once(question: bytes, stream: ByteStream) -> None:
    return


@pytest.mark.parametrize(
    ("serve", "failure"),
    [
        (chunks_without_end, OversizedError),
        (header_without_end, MalformedError),
        (huge_body, OversizedError),
        (drops, (DeadlineError, MalformedError)),
        (silence, DeadlineError),
        (ends_at_once, MalformedError),
    ],
)
def test_an_answer_by_http_without_end_or_sense_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
    serve: Callable[[bytes, ByteStream], Awaitable[None]],
    failure: type[Exception] | tuple[type[Exception], ...],
) -> None:
    if serve in (drops, silence):
        monkeypatch.setattr(http_exchange, "EXCHANGE_SECONDS", 0.2)

    async def story() -> None:
        async with http_router(serve) as port:
            with pytest.raises(failure):
                await exchange(RouterUrl(HERE, port, "/"), "GET")

    play(story)


def test_a_redirect_is_not_followed() -> None:
    async def story() -> None:
        followed = []

        async def other(question: bytes, stream: ByteStream) -> None:
            followed.append(question)

        async with http_router(other) as elsewhere:

            async def redirect(question: bytes, stream: ByteStream) -> None:
                await stream.send(f"HTTP/1.1 302 Found\r\nLocation: http://{HERE}:{elsewhere}/\r\n\r\n".encode())

            async with http_router(redirect) as port, udp_router(located(port)) as search, unused_port() as closed:
                home = HomeRouter(find_gateway=here, udp_port=closed, search_at=(HERE, search))
                with pytest.raises(UnreachableError):
                    await home.open({HERE: 4001}, wanted_port=0, lease_seconds=3600)
        assert not followed

    play(story)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.2:80/", "http://example.org/", "https://127.0.0.1/", "file:///etc/passwd", "http://user@127.0.0.1/",
        "http://127.0.0.1@127.0.0.2/", "http://127.0.0.1:99999/", "http://[::1]/", "http://127.0.0.1/\nX: y", "", "//",
        "http://2130706433/", "http://127.0.0.1/" + "a" * 600, "http://[", "http://127.0.0.1/ö",
    ],
)  # fmt: skip
def test_a_router_that_names_another_address_than_its_own_is_not_followed(url: str) -> None:
    with pytest.raises(MalformedError):
        router_url(url, HERE)
    with pytest.raises(MalformedError):
        read_search_answer(f"HTTP/1.1 200 OK\r\nLOCATION: {url}\r\n\r\n".encode(), HERE)


def test_a_description_names_services_of_the_router_itself_alone() -> None:
    at = RouterUrl(HERE, 5000, "/a/desc.xml")
    (point,) = read_description(description("ctl?x=1"), at)
    assert (point.url, point.service) == (RouterUrl(HERE, 5000, "/a/ctl?x=1"), SERVICE)
    (point,) = read_description(description("/c", base=f"<URLBase>http://{HERE}:7/</URLBase>"), at)
    assert point.url == RouterUrl(HERE, 7, "/c")
    for rubbish in (
        description("http://198.51.100.1/"),
        description("//198.51.100.1/x"),
        description(base="<URLBase>http://198.51.100.1/</URLBase>"),
        description("http://["),
        description(service="urn:schemas-upnp-org:service:Other:1"),
        description()[:-9],
        b"",
        b"<a/>",
        b'<?xml version="1.0" encoding="rubbish"?><a/>',
        b"\xff\xfe\x00",
    ):
        with pytest.raises(MalformedError):
            read_description(rubbish, at)


def test_entity_bombs_and_deep_or_wide_xml_are_refused() -> None:
    at = RouterUrl(HERE, 80, "/")
    bomb = b'<!DOCTYPE a [<!ENTITY x "ha">' + b"".join(
        b'<!ENTITY x%d "%s">' % (n, b"&x%d;" % (n - 1) * 10 if n else b"&x;" * 10) for n in range(9)
    )
    with pytest.raises(MalformedError, match="document type"):
        read_description(bomb + b"]><a>&x8;</a>", at)
    with pytest.raises(MalformedError, match="document type"):
        read_description(b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>', at)
    with pytest.raises(OversizedError):
        read_description(b"<a>" * 5000, at)
    with pytest.raises(OversizedError):
        read_description(b"<a>" + b"<b/>" * 5000 + b"</a>", at)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200), st.integers(0, len(description())))
def test_no_bytes_of_a_router_raise_anything_but_our_errors(noise: bytes, place: int) -> None:
    whole, at = description(), RouterUrl(HERE, 80, "/")
    for body in (noise, whole[:place] + noise + whole[place:]):
        for read in (
            lambda body: read_description(body, at),
            lambda body: read_action_answer(200, body),
            lambda body: read_action_answer(500, body),
            lambda body: read_search_answer(b"HTTP/1.1 200 OK\r\nLOCATION:" + body, HERE),
            lambda body: pcp.read_pcp_answer(body, bytes(12), 4001),
            pcp.read_pmp_address,
        ):
            with suppress(StarlingError):
                read(body)


@pytest.mark.parametrize(("status", "body"), [(500, fault(718)), (500, b"<a/>"), (404, b""), (0, b""), (302, b"")])
def test_a_refusal_by_upnp_is_an_error_with_its_code(status: int, body: bytes) -> None:
    with pytest.raises(UpnpRefusedError) as raised:
        read_action_answer(status, body)
    assert raised.value.code == (718 if body == fault(718) else 501 if status == 500 else status)


def test_the_default_gateway_is_read_on_linux_and_macos() -> None:
    routes = (
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
        "tun0\t00000000\t00000000\t0001\t0\t0\t50\t00000000\t0\t0\t0\n"
        "wlan0\t00000000\tFE01A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n"
        "eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
        "eth0\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"
    )
    assert gateway_in_routes(routes) == "192.168.1.1"
    assert gateway_in_routes(routes.splitlines()[0]) is None
    assert gateway_in_answer("   route to: default\n    gateway: 192.168.1.1\n  interface: en0\n") == "192.168.1.1"
    assert gateway_in_answer("    gateway: link#4\n") is None
