"""Judgements of the network from made-up facts, and the facts that loopback can show."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from node.cli.wording import finding_lines
from node.doctor import network_facts
from node.doctor.findings import Severity, ok, report_of, warning
from node.doctor.network import judge_addresses, judge_api, judge_lan, judge_listening, judge_peers
from node.doctor.network_facts import (
    GREETING,
    LanFacts,
    ListenEndpoint,
    ListenFacts,
    api_facts,
    dial_failures,
    endpoint_of,
    listen_facts,
)
from protocol.identity import NodeKey
from tests.node.doctor.judged import with_remedy

OK, WARNING, ERROR = Severity.OK, Severity.WARNING, Severity.ERROR
ANY = ListenEndpoint("0.0.0.0", 0, is_name=False)
PEER = NodeKey(bytes(32)).peer_id


@pytest.mark.parametrize(
    ("address", "endpoint"),
    [
        ("/ip4/0.0.0.0/tcp/0", ANY),
        (f"/ip4/10.0.0.7/tcp/4001/p2p/{PEER}", ListenEndpoint("10.0.0.7", 4001, is_name=False)),
        ("/ip6/::1/tcp/4001", ListenEndpoint("::1", 4001, is_name=False)),
        ("/dns4/node.example/tcp/4001", ListenEndpoint("node.example", 4001, is_name=True)),
        ("/ip4/::1/tcp/1", None),
        ("/ip4/10.0.0.7/udp/1", None),
        ("/ip4/10.0.0.7/tcp/65536", None),
        ("/ip4/10.0.0.7/tcp/²", None),
        ("/dns4//tcp/1", None),
        ("10.0.0.7:4001", None),
        ("", None),
    ],
)
def test_an_endpoint_is_read_from_a_multiaddr_and_from_nothing_else(
    address: str, endpoint: ListenEndpoint | None
) -> None:
    assert endpoint_of(address) == endpoint


def test_a_port_is_judged_by_whether_it_could_be_taken() -> None:
    fixed = ListenEndpoint("0.0.0.0", 4002, is_name=False)
    with_remedy(judge_listening(ListenFacts("/ip4/0.0.0.0/tcp/0", ANY, None, None)), OK, "/ip4/0.0.0.0/tcp/0")
    with_remedy(judge_listening(ListenFacts("/ip4/0.0.0.0/tcp/4001", fixed, None, None)), OK, "/ip4/0.0.0.0/tcp/4001")
    with_remedy(judge_listening(ListenFacts("/ip4/x", None, None, None)), ERROR, "/ip4/x", "/ip4/0.0.0.0/tcp/4001")
    for name, remedy in (
        ("EADDRINUSE", "swarm.listen"),
        ("EADDRNOTAVAIL", "/ip4/0.0.0.0/tcp/4002"),
        ("EACCES", "/ip4/0.0.0.0/tcp/4001"),
        ("E", "swarm.listen"),
    ):
        with_remedy(judge_listening(ListenFacts("/ip4/1.2.3.4/tcp/4002", fixed, None, name)), ERROR, name, remedy)


def test_a_running_node_is_asked_where_it_listens_and_its_port_is_left_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}"
        with_remedy(judge_listening(listen_facts(address, (address,))), OK, address)
        with_remedy(judge_listening(listen_facts(address, ())), WARNING, "logs/swarm.log")


def test_a_taken_port_is_found_taken_and_a_free_one_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}"
        with_remedy(judge_listening(listen_facts(address, None)), ERROR, address, "EADDRINUSE")
    with_remedy(judge_listening(listen_facts(address, None)), OK, address)
    with_remedy(judge_listening(listen_facts("/ip4/192.0.2.200/tcp/4001", None)), ERROR, "EADDRNOTAVAIL")


def test_the_api_is_judged_by_its_port_and_by_who_can_read_its_token(tmp_path: Path) -> None:
    token = tmp_path / "api.token"
    with_remedy(judge_api(api_facts((), token, running=False)), OK, "api.port = 0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with_remedy(judge_api(api_facts((port,), token, running=False)), ERROR, f"127.0.0.1:{port}", "EADDRINUSE")
        with_remedy(judge_api(api_facts((port,), token, running=True)), OK, f"http://127.0.0.1:{port}")
    token.touch(mode=0o600)
    with_remedy(judge_api(api_facts((port,), token, running=False)), OK)
    token.chmod(0o604)
    with_remedy(judge_api(api_facts((port,), token, running=False)), ERROR, "604", f"rm {token}")


@pytest.mark.parametrize(
    ("ips", "listen", "dials_out", "severity", "facts"),
    [
        (["127.0.0.1", "8.8.8.8", "10.0.0.7"], ANY, False, OK, ("public", "8.8.8.8")),
        (["127.0.0.1", "192.168.1.7"], ANY, False, WARNING, ("192.168.1.7", "swarm.listen", "--peer ADDRESS")),
        (["192.168.1.7"], ListenEndpoint("0.0.0.0", 4001, False), False, WARNING, ("forward", "--peer ADDRESS")),
        (["192.168.1.7"], ANY, True, OK, ("private", "192.168.1.7")),
        (["100.64.3.2"], ANY, False, WARNING, ("provider", "100.64.3.2", "--peer ADDRESS")),
        (["127.0.0.1"], ANY, False, WARNING, ("loopback",)),
        ([], ANY, False, WARNING, ("loopback",)),
        (["192.168.1.7", "2a00::1"], ANY, False, WARNING, ("private", "192.168.1.7")),
        (["192.168.1.7", "2a00::1"], ListenEndpoint("::", 0, False), False, OK, ("public", "2a00::1")),
        (["8.8.8.8"], ListenEndpoint("127.0.0.1", 0, False), False, WARNING, ("127.0.0.1", "swarm.listen")),
        (["8.8.8.8", "10.0.0.7"], ListenEndpoint("10.0.0.7", 0, False), False, WARNING, ("private", "(10.0.0.7)")),
        (["8.8.8.8"], None, False, OK, ("public", "8.8.8.8")),
    ],
)
def test_who_can_dial_us_follows_from_our_addresses(
    ips: list[str], listen: ListenEndpoint | None, dials_out: bool, severity: Severity, facts: tuple[str, ...]
) -> None:
    with_remedy(judge_addresses(ips, listen, dials_out=dials_out), severity, *facts)


def test_a_fixed_port_need_not_be_chosen_again_and_a_providers_nat_forwards_none() -> None:
    fixed = judge_addresses(["192.168.1.7"], ListenEndpoint("0.0.0.0", 4001, False), dials_out=False)
    behind_a_provider = judge_addresses(["100.64.3.2"], ANY, dials_out=False)
    assert "swarm.listen" not in (fixed.remedy or "") and "swarm.listen" not in (behind_a_provider.remedy or "")


def test_peers_are_an_error_only_when_none_of_them_answers() -> None:
    here, gone = {"/a": None, "/c": None}, {"/b\x1b[31m": "no answer within 5 s"}
    with_remedy(judge_peers({}, lan_discovery=True), OK, "LAN discovery")
    with_remedy(judge_peers({}, lan_discovery=False), WARNING, "--peer ADDRESS", "swarm.lan_discovery=true")
    with_remedy(judge_peers({}, lan_discovery=False, connected=1), OK, "1 peer connected")
    with_remedy(judge_peers(here, lan_discovery=True), OK, "2 ")
    both = {**here, **gone}
    with_remedy(judge_peers(both, lan_discovery=True), WARNING, "1 of 3", "/b\\x1b[31m: no answer within 5 s")
    with_remedy(judge_peers(gone, lan_discovery=True), ERROR, "1 of 1")


def test_lan_discovery_is_judged_by_whether_multicast_works() -> None:
    with_remedy(judge_lan(LanFacts(False, (), None, ())), OK, "swarm.lan_discovery")
    with_remedy(judge_lan(LanFacts(True, (), None, ())), WARNING, "loopback")
    with_remedy(judge_lan(LanFacts(True, ("10.0.0.7",), "[Errno 98] in use", ())), WARNING, "in use", "5353")
    with_remedy(judge_lan(LanFacts(True, ("10.0.0.7",), None, ())), OK, "10.0.0.7")
    many = tuple(f"/ip4/10.0.0.{n}/tcp/1/p2p/x" for n in range(9))
    with_remedy(judge_lan(LanFacts(True, ("10.0.0.7",), None, many)), OK, "10.0.0.3", "and 5 more")


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A peer on loopback that sends ``answer`` to the first connection, and closes it."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(64)
            connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}/p2p/{PEER}"
    finally:
        thread.join()
        server.close()


@pytest.mark.parametrize(
    ("answer", "failure"),
    [(GREETING, None), (b"HTTP/1.1 400 Bad Request\r\n\r\n", "libp2p"), (b"", "closed")],
)
def test_a_configured_peer_is_one_that_greets_as_libp2p_does(answer: bytes, failure: str | None) -> None:
    with answering(answer) as address:
        found = dial_failures([address], frozenset())[address]
    assert found is None if failure is None else failure in (found or "")


def test_a_peer_where_nobody_listens_is_refused_and_an_odd_address_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}/p2p/{PEER}"
    refused, *odd = dial_failures([closed, "example.org", "/ip4/127.0.0.1/tcp/1"], frozenset()).values()
    assert "refused" in (refused or "").lower()
    assert len(odd) == 2 and all("/ip4/HOST/tcp/PORT/p2p/PEER" in (each or "") for each in odd)


def test_a_connected_peer_is_not_dialled_again() -> None:
    address = f"/ip4/192.0.2.1/tcp/1/p2p/{PEER}"
    assert dial_failures([address], frozenset({PEER})) == {address: None}


def test_a_peer_that_stays_silent_is_given_up_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_facts, "DIAL_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        (found,) = dial_failures([f"/ip4/127.0.0.1/tcp/{mute.getsockname()[1]}/p2p/{PEER}"], frozenset()).values()
    assert found is not None


def test_each_finding_is_a_line_in_columns_with_its_remedy_below() -> None:
    report = report_of((ok("port", "free"), warning("memory", "little", "end something")))
    assert finding_lines(report) == [
        "ok       port    free",
        "warning  memory  little",
        "                 → end something",
    ]
