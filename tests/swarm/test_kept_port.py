"""A node that takes any free port listens at the same one after a restart, so that its addresses stay true."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from random import Random

import anyio
import pytest

from protocol.identity import NodeKey
from swarm.hosts.choosing import host_for
from swarm.kept_port import keep_listening_port, keep_port, listen_again
from swarm.relay_service import RelayService
from swarm.settings import ServiceSettings

ANY = "/ip4/127.0.0.1/tcp/0"


def addresses_of_a_start(home: Path) -> list[str]:
    """Starts a participant on sockets, and ends it once it listens."""
    settings = ServiceSettings(home=str(home), swarm_name="test", swarm_id="ab" * 16, listen=ANY, lan_discovery=False)
    key = NodeKey.load_or_create(home / "identity.key")

    async def start() -> list[str]:
        service = RelayService(host_for(settings, key, None), key, settings, wall_clock=time.time, random=Random(1))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(service.run)
            await service.started.wait()
            addresses = list(service.host.addresses())
            service.leave("the test is over")
        return addresses

    return anyio.run(start, backend="trio")


@pytest.mark.processes
def test_node_started_again_has_the_addresses_that_others_kept(tmp_path: Path) -> None:
    assert addresses_of_a_start(tmp_path) == addresses_of_a_start(tmp_path)


def test_port_that_something_else_has_is_not_asked_for_again(tmp_path: Path) -> None:
    file = tmp_path / "swarm.port"
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        keep_port(file, other.getsockname()[1])
        assert listen_again(ANY, file) == ANY
    assert listen_again(ANY, file) == f"/ip4/127.0.0.1/tcp/{file.read_text().strip()}"


def test_port_that_was_set_is_neither_kept_nor_replaced(tmp_path: Path) -> None:
    file = tmp_path / "swarm.port"
    keep_listening_port("/ip4/0.0.0.0/tcp/4001", file, ["/ip4/192.0.2.2/tcp/4001/p2p/12D3KooW"])
    assert not file.exists()
    keep_port(file, 4002)
    assert listen_again("/ip4/0.0.0.0/tcp/4001", file) == "/ip4/0.0.0.0/tcp/4001"


def test_address_through_a_relay_is_not_taken_for_the_own_port(tmp_path: Path) -> None:
    file = tmp_path / "swarm.port"
    relayed = "/ip4/192.0.2.7/tcp/4001/p2p/12D3KooWRelay/p2p-circuit/p2p/12D3KooWUs"
    keep_listening_port(ANY, file, [relayed, "/ip4/127.0.0.1/tcp/4567/p2p/12D3KooWUs"])
    assert file.read_text() == "4567\n"
