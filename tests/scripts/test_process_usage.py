"""What benchmarks read of a process."""

from __future__ import annotations

import os
import socket

from scripts.bench.common.process_usage import process_descriptors


def test_descriptors_of_a_process_are_told_from_those_that_are_open_connections() -> None:
    before = process_descriptors(os.getpid())
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
        with ours, theirs:
            opened = process_descriptors(os.getpid())
            ours.shutdown(socket.SHUT_WR)
            half_closed = process_descriptors(os.getpid())
    assert (opened.open - before.open, opened.connections - before.connections) == (3, 2)
    assert (half_closed.open - before.open, half_closed.connections - before.connections) == (3, 0)
