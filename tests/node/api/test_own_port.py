"""The port of the API: one that was set is used or refused, one that was not set stays the data directory's own."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from node.api.own_port import FREE_PORTS, ports_to_try
from node.configuration import ApiSection
from node.doctor.before_start import check_start
from node.home import Home
from swarm.exit_codes import ExitCode
from swarm.kept_port import keep_port

FREE = list(FREE_PORTS)
NOT_SET = ApiSection()


@pytest.mark.parametrize(("port", "tried"), [(9000, [9000]), (8470, [8470]), (0, [])])
def test_port_that_was_set_is_the_only_one_that_is_tried(tmp_path: Path, port: int, tried: list[int]) -> None:
    keep_port(tmp_path / "api.port", 8475)
    assert list(ports_to_try(ApiSection(port=port), tmp_path / "api.port")) == tried


def test_port_that_was_not_set_is_the_one_of_the_last_start_and_only_then_another(tmp_path: Path) -> None:
    file = tmp_path / "api.port"
    assert list(ports_to_try(NOT_SET, file)) == FREE
    keep_port(file, 8475)
    first, *others = ports_to_try(NOT_SET, file)
    assert (first, sorted(others)) == (8475, [port for port in FREE if port != 8475])


@pytest.mark.parametrize("content", [b"", b"x", b"-1", b"70000", b"\xff"])
def test_damaged_file_of_the_port_is_as_if_there_were_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "api.port").write_bytes(content)
    assert list(ports_to_try(NOT_SET, tmp_path / "api.port")) == FREE


def test_start_on_a_port_that_was_set_and_is_taken_is_refused_and_one_that_was_remembered_moves(tmp_path: Path) -> None:
    home, flags = Home(tmp_path), {"swarm.listen": "/ip4/127.0.0.1/tcp/0"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        keep_port(home.api_port, port)
        refused = check_start(home, {}, flags | {"api.port": str(port)})
        moves = check_start(home, {}, flags)
    assert [each.check for each in refused.errors] == ["api"] and str(port) in refused.errors[0].message
    assert refused.exit_code is ExitCode.UNREACHABLE
    assert moves.errors == ()
