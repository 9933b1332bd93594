"""What UPnP's Internet Gateway Device says and is asked (UPnP Device Architecture 1.0, WANIPConnection:1): pure.

Nothing here follows a name: every address in an answer must be a URL of the router itself, ``http://<its IP address>``,
or it raises ``MalformedError``. XML with a document type, and with it every entity bomb, is refused. Its depth and the
text kept of it are bounded here, its size by who receives it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urljoin, urlsplit
from xml.parsers import expat
from xml.sax.saxutils import escape

from protocol.errors import MalformedError, OversizedError, RefusedError

SEARCHED: Final = "urn:schemas-upnp-org:device:InternetGatewayDevice:1"
SERVICES: Final = (
    "urn:schemas-upnp-org:service:WANIPConnection:2",
    "urn:schemas-upnp-org:service:WANIPConnection:1",
    "urn:schemas-upnp-org:service:WANPPPConnection:1",
)
MOST_SERVICES: Final = 4
DEPTH: Final = 32
ELEMENTS: Final = 4096
TEXT_CHARACTERS: Final = 1024  # of one element
URL_CHARACTERS: Final = 512
PORT_IS_TAKEN: Final = 718
PERMANENT_LEASES_ONLY: Final = 725
REFUSALS: Final = {
    401: "it knows no such action", 402: "it did not understand", 501: "it failed", 606: "not authorized",
    PORT_IS_TAKEN: "the port is taken", 724: "it maps only equal ports", 728: "no room",
    PERMANENT_LEASES_ONLY: "leases never end there",
}  # fmt: skip


class UpnpRefusedError(RefusedError):
    """``code`` is UPnP's."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the router refuses by UPnP: {REFUSALS.get(code, f'error {code}')}")
        self.code = code


@dataclass(frozen=True, slots=True)
class RouterUrl:
    """An ``http`` URL of the router itself: ``router_url`` makes it and refuses every other address, so that no answer
    makes this node ask another machine."""

    ip: str
    port: int
    path: str  # with its query


@dataclass(frozen=True, slots=True)
class ControlPoint:
    """Where a service of the router is asked, and its type."""

    url: RouterUrl
    service: str


def search_question(host: str, port: int) -> bytes:
    lines = ("M-SEARCH * HTTP/1.1", f"HOST: {host}:{port}", 'MAN: "ssdp:discover"', "MX: 2", f"ST: {SEARCHED}", "", "")
    return "\r\n".join(lines).encode()


def read_search_answer(datagram: bytes, router_ip: str) -> RouterUrl:
    """Returns where the router's description is. Raises ``MalformedError``."""
    head, *lines = datagram.decode("latin-1").split("\r\n")
    if not head.startswith("HTTP/1.") or head.split(" ")[1:2] != ["200"]:
        raise MalformedError("no answer to a search by UPnP")
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip().lower() == "location":
            return router_url(value.strip(), router_ip)
    raise MalformedError("an answer to a search by UPnP without a location")


def router_url(text: str, router_ip: str) -> RouterUrl:
    """Raises ``MalformedError`` unless ``text`` is a URL of the router itself."""
    if len(text) > URL_CHARACTERS or not text.isascii() or not text.isprintable() or " " in text:
        raise MalformedError("the router names no URL")
    try:
        parts = urlsplit(text)
        ip, port = str(ipaddress.IPv4Address(parts.hostname or "")), parts.port or 80
    except ValueError as error:
        raise MalformedError("the router names no URL of its own") from error
    if parts.scheme != "http" or ip != router_ip or parts.username is not None:
        raise MalformedError("the router names a URL that is not its own")
    return RouterUrl(ip, port, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))


def read_description(body: bytes, at: RouterUrl) -> list[ControlPoint]:
    """Returns the services that open ports, the preferred first. Raises ``MalformedError``, ``OversizedError``."""
    reader = _XmlReader(body)
    base = next((text for path, text in reader.leaves if path[-1] == "URLBase" and text), None)
    base = base or f"http://{at.ip}:{at.port}{at.path}"
    found: list[ControlPoint] = []
    service = ""
    for path, text in reader.leaves:
        if path[-2:] == ("service", "serviceType"):
            service = text
        elif path[-2:] == ("service", "controlURL") and service in SERVICES:
            try:
                found.append(ControlPoint(router_url(urljoin(base, text), at.ip), service))
            except ValueError as error:
                raise MalformedError("the router names no URL") from error
            service = ""
    if not found:
        raise MalformedError("the router describes no service that opens ports")
    return sorted(found, key=lambda point: SERVICES.index(point.service))[:MOST_SERVICES]


def action(service: str, name: str, arguments: Mapping[str, str]) -> bytes:
    """Returns the body of a question, which the header ``SOAPAction: "service#name"`` goes with."""
    inner = "".join(f"<{key}>{escape(value)}</{key}>" for key, value in arguments.items())
    return (
        '<?xml version="1.0"?>\r\n<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/" '
        's:encodingStyle="http://schemas.xmlsoap.org/soap/encoding/"><s:Body>'
        f'<u:{name} xmlns:u="{service}">{inner}</u:{name}></s:Body></s:Envelope>\r\n'
    ).encode()


def read_action_answer(status: int, body: bytes) -> dict[str, str]:
    """Returns the values of an answer by name. Raises ``UpnpRefusedError``, ``MalformedError``, ``OversizedError``."""
    if status not in (200, 500):
        raise UpnpRefusedError(status)
    values = {path[-1]: text for path, text in _XmlReader(body).leaves}
    if status == 500:
        code = values.get("errorCode", "")
        raise UpnpRefusedError(int(code) if code.isascii() and code.isdigit() and len(code) < 6 else 501)
    return values


def external_ip(values: Mapping[str, str]) -> str:
    """Raises ``MalformedError`` unless there is an IPv4 address; a router without a connection says nothing here."""
    try:
        return str(ipaddress.IPv4Address(values.get("NewExternalIPAddress", "")))
    except ValueError as error:
        raise MalformedError("the router names no external IPv4 address") from error


@dataclass
class _XmlReader:
    """The texts of all elements, each with its path of names without prefixes, in the order of their ends."""

    body: bytes
    leaves: list[tuple[tuple[str, ...], str]] = field(default_factory=list)
    _path: list[str] = field(default_factory=list)
    _text: list[str] = field(default_factory=list)
    _elements: int = 0

    def __post_init__(self) -> None:
        parser = expat.ParserCreate()
        parser.StartDoctypeDeclHandler = self._refuse
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text.append
        try:
            parser.Parse(self.body, True)
        except (expat.ExpatError, LookupError, ValueError) as error:  # the latter of unknown encodings
            raise MalformedError(f"the router sends no XML: {type(error).__name__}") from error

    def _refuse(self, *_: object) -> None:
        raise MalformedError("the router sends XML with a document type")

    def _start(self, name: str, _: object) -> None:
        self._elements += 1
        self._path.append(name.rpartition(":")[2])
        self._text.clear()
        if self._elements > ELEMENTS or len(self._path) > DEPTH:
            raise OversizedError(f"XML of more than {ELEMENTS} elements, or deeper than {DEPTH}")

    def _end(self, _: str) -> None:
        self.leaves.append((tuple(self._path), "".join(self._text).strip()[:TEXT_CHARACTERS]))
        self._text.clear()
        self._path.pop()
