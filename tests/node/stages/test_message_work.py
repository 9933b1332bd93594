"""The processor time that is read of other processes and threads is what they used."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from node.engines.process.channel import SocketChannel
from node.stages.message_work import process_seconds, thread_seconds

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it cannot be read")

CARRIER = """
import socket, sys
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
print(flush=True)
while True:
    pass
"""


def test_a_channel_names_the_process_at_its_other_end_whose_work_is_read_until_it_is_gone(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with subprocess.Popen([sys.executable, "-c", CARRIER, path], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(path)
            channel = SocketChannel(connection)
            assert channel.carried_by == process.pid
            before = process_seconds(process.pid)
            while process_seconds(process.pid) < before + 0.02:
                pass
            channel.close()
            assert channel.carried_by is None
        finally:
            process.kill()
    assert process_seconds(process.pid) == process_seconds(None) == 0.0


def test_a_channel_within_one_process_is_carried_by_no_other() -> None:
    ours, theirs = socket.socketpair()
    assert SocketChannel(ours).carried_by is None
    ours.close()
    theirs.close()


def test_the_work_of_one_thread_is_read_without_that_of_others() -> None:
    ended = threading.Event()
    waits, works = threading.Thread(target=ended.wait), threading.Thread(target=lambda: spin(ended))
    for each in (waits, works):
        each.start()
    while thread_seconds(works) < 0.02:
        pass
    assert thread_seconds(waits) < 0.02
    ended.set()
    for each in (waits, works):
        each.join()


def spin(ended: threading.Event) -> None:
    while not ended.is_set():
        pass
