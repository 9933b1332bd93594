"""Hole punching towards a router that answers what it does not expect with a reset, on real sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import trio
from libp2p.transport.exceptions import OpenConnectionError

from swarm.hosts.libp2p.punching import RESETS, until_no_reset


class ResettingEnd:
    """A port of this machine that answers with resets until it was dialled ``resets`` times, and listens then."""

    def __init__(self, resets: int, stack: ExitStack) -> None:
        self.dials = 0
        self._resets = resets
        self._socket = stack.enter_context(socket.socket())
        self._socket.bind(("127.0.0.1", 0))

    async def dial(self) -> None:
        self.dials += 1
        if self.dials > self._resets:
            self._socket.listen()
        try:
            with trio.socket.socket() as dialling:
                await dialling.connect(self._socket.getsockname())
        except OSError as error:
            raise OpenConnectionError(str(error)) from error


@pytest.fixture
def listeners() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize(("resets", "dials"), [(0, 1), (3, 4), (RESETS, RESETS + 1)])
def test_a_dial_that_was_reset_is_repeated_at_once(listeners: ExitStack, resets: int, dials: int) -> None:
    end = ResettingEnd(resets, listeners)
    trio.run(until_no_reset, end.dial, RESETS)
    assert end.dials == dials


def test_a_machine_where_nobody_listens_is_given_up(listeners: ExitStack) -> None:
    end = ResettingEnd(10 * RESETS, listeners)
    with pytest.raises(OpenConnectionError):
        trio.run(until_no_reset, end.dial, RESETS)
    assert end.dials == RESETS + 1


def test_what_is_no_reset_is_not_repeated() -> None:
    dials = []

    async def dial() -> None:
        dials.append(1)
        raise OpenConnectionError("timed out") from TimeoutError()

    with pytest.raises(OpenConnectionError):
        trio.run(until_no_reset, dial, RESETS)
    assert len(dials) == 1
