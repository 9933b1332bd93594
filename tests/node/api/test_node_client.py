"""What a command says of a node that answers no question: gone, ending, or there and silent."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.api import node_client
from node.api.node_client import ask_status
from node.home import Home, Lock, holder_of, lock_home
from protocol.errors import DeadlineError, UnreachableError


@pytest.fixture
def home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory() as directory:  # short enough for a socket
        yield Home(Path(directory))


def test_where_nobody_holds_the_lock_no_node_is_running(home: Home) -> None:
    assert holder_of(home) is None
    with pytest.raises(UnreachableError, match=r"no node is running .*starling up"):
        ask_status(home)


def test_a_node_whose_socket_is_not_open_runs_and_does_not_answer(home: Home) -> None:
    lock = lock_home(home)
    assert isinstance(lock, Lock)
    with pytest.raises(DeadlineError, match=rf"process {os.getpid()}, since \d{{4}}-.*its socket is not open"):
        ask_status(home)
    lock.release()
    with pytest.raises(UnreachableError, match="no node is running"):
        ask_status(home)


def test_a_node_that_accepts_and_is_silent_runs_and_does_not_answer(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_client, "STATUS_SECONDS", 0.05)
    lock = lock_home(home)
    assert isinstance(lock, Lock)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home.supervisor_socket))
        listener.listen()
        with pytest.raises(DeadlineError, match=r"is running in .* but does not answer \(timed out\)"):
            ask_status(home)
    lock.release()


def test_processes_that_a_dead_supervisor_left_are_said_to_be_ending(home: Home) -> None:
    lock = lock_home(home)
    assert isinstance(lock, Lock)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    home.supervisor_lock.write_text(f"{ended.pid}\n")
    with pytest.raises(DeadlineError, match="has ended, and its processes are still checkpointing"):
        ask_status(home)
    lock.release()
