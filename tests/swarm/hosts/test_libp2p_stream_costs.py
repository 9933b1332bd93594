"""What a stream costs: turns of the loop for a frame, a short wait for a window, and nothing once it has ended."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.abc

from protocol.errors import UnreachableError
from swarm.host import Stream
from swarm.hosts.libp2p.yamux import PAYLOAD_BYTES, REST_BYTES, frame_bytes

FRAMES = 64
SENDER_TURNS_PER_FRAME = 3  # the socket, and a window now and then; the library takes seven
TURNS_PER_FRAME = 8  # of both ends; the library takes some thirty


class Turns(trio.abc.Instrument):
    """Counts how often the task that made it has its turn, and how often any task."""

    def __init__(self) -> None:
        self.of_this_task = self.of_all = 0
        self._task = trio.lowlevel.current_task()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.of_this_task += task is self._task
        self.of_all += 1


def test_a_frame_costs_both_ends_few_turns_of_the_loop(tell_on_sockets) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        receiver, sender = await world.start(tasks, 2)
        received = trio.Event()

        async def receive_all(stream: Stream) -> None:
            left = FRAMES * PAYLOAD_BYTES
            while left:
                left -= len(await stream.receive(left))
            received.set()

        receiver.handle("/all/1", receive_all)
        peer = await sender.connect(receiver.addresses()[0], deadline_seconds=10)
        stream = await sender.open_stream(peer, "/all/1", deadline_seconds=10)
        turns = Turns()
        trio.lowlevel.add_instrument(turns)
        try:
            await stream.send(bytes(FRAMES * PAYLOAD_BYTES))
            await received.wait()
        finally:
            trio.lowlevel.remove_instrument(turns)
        assert turns.of_this_task <= SENDER_TURNS_PER_FRAME * FRAMES
        assert turns.of_all <= TURNS_PER_FRAME * FRAMES
        await stream.reset()

    tell_on_sockets(story)


@pytest.mark.parametrize(
    ("left", "window", "frames"),
    [
        (1 << 18, 1 << 20, [PAYLOAD_BYTES] * 3 + [(1 << 18) - 3 * PAYLOAD_BYTES]),  # a chunk: four writes, not five
        (PAYLOAD_BYTES + REST_BYTES, 1 << 20, [PAYLOAD_BYTES + REST_BYTES]),
        (PAYLOAD_BYTES + REST_BYTES + 1, 1 << 20, [PAYLOAD_BYTES, REST_BYTES + 1]),
        (PAYLOAD_BYTES + 1, PAYLOAD_BYTES, [PAYLOAD_BYTES, 1]),  # no more than the peer accepts
        (100, 60, [60, 40]),
    ],
)
def test_a_short_rest_goes_with_the_frame_before_it_if_the_window_has_room(
    left: int, window: int, frames: list[int]
) -> None:
    found = []
    while left:
        found.append(frame_bytes(left, window))
        left -= found[-1]
    assert found == frames


def test_a_reader_that_is_cancelled_has_taken_nothing(tell_on_sockets) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        receiver, sender = await world.start(tasks, 2)
        received: list[bytes] = []

        async def receive(stream: Any) -> None:
            await world.eventually(lambda: stream._yamux.conn.stream_buffers[stream._yamux.stream_id] == b"some")
            with trio.CancelScope() as scope:
                scope.cancel()
                received.append(await stream.receive(10))
            received.append(await stream.receive(10))

        receiver.handle("/cancelled/1", receive)
        peer = await sender.connect(receiver.addresses()[0], deadline_seconds=10)
        stream = await sender.open_stream(peer, "/cancelled/1", deadline_seconds=10)
        await stream.send(b"some")
        await world.eventually(lambda: bool(received))
        assert received == [b"some"]
        await stream.reset()

    tell_on_sockets(story)


def test_a_sender_without_a_window_goes_on_as_soon_as_it_is_granted_one(tell_on_sockets) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        receiver, sender = await world.start(tasks, 2)
        may_read = trio.Event()

        async def receive_late(stream: Stream) -> None:
            await may_read.wait()
            while await stream.receive(1 << 20):
                pass

        receiver.handle("/late/1", receive_late)
        peer = await sender.connect(receiver.addresses()[0], deadline_seconds=10)
        stream = await sender.open_stream(peer, "/late/1", deadline_seconds=10)
        with trio.move_on_after(0.5):
            await stream.send(bytes(16 << 20))
        assert stream._yamux.send_window == 0
        may_read.set()
        await stream._yamux.wait_for_window()
        assert stream._yamux.send_window > 0
        await stream.reset()

    tell_on_sockets(story)


def test_streams_that_ended_leave_nothing_behind_on_their_connection(tell_on_sockets) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        receiver, sender = await world.start(tasks, 2)
        waiting = 0

        async def wait_for_more(stream: Stream) -> None:
            nonlocal waiting
            await stream.receive(10)
            waiting += 1
            with pytest.raises(UnreachableError):
                await stream.receive(10)
            await stream.reset()
            waiting -= 1

        receiver.handle("/wait/1", wait_for_more)
        peer = await sender.connect(receiver.addresses()[0], deadline_seconds=10)
        for _ in range(5):
            stream = await sender.open_stream(peer, "/wait/1", deadline_seconds=10)
            await stream.send(b"some")
            await world.eventually(lambda: waiting == 1)
            await stream.reset()
            await world.eventually(lambda: waiting == 0)
        for host in (receiver, sender):
            (connection,) = [each.muxed_conn for each in host._network.get_connections()]
            assert connection.stream_events.keys() == connection.stream_buffers.keys() == connection.streams.keys()

    tell_on_sockets(story)
