"""Messages of Noise that are gathered: whatever pieces a connection delivers, the messages are those that were sent."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest
import trio
from libp2p.io.exceptions import IncompleteReadError
from libp2p.security.noise.io import MAX_PLAINTEXT_LENGTH, NoiseTransportReadWriter
from noise.connection import NoiseConnection  # type: ignore[import-untyped]
from noise.exceptions import NoiseInvalidMessage  # type: ignore[import-untyped]

from swarm.hosts.libp2p.noise_messages import GatheredNoise
from swarm.hosts.libp2p.transport import READ_BYTES


class Pieces:
    """A connection that delivers what was written in pieces of given sizes, and then ends."""

    def __init__(self, sizes: Callable[[], int]) -> None:
        self.written = bytearray()
        self.writes = self.reads = 0
        self._sizes = sizes

    async def write(self, data: bytes) -> None:
        self.writes += 1
        self.written += data

    async def read(self, n: int | None = None) -> bytes:
        assert n is not None
        assert n <= READ_BYTES
        self.reads += 1
        taken = bytes(self.written[: min(n, self._sizes())])
        del self.written[: len(taken)]
        return taken


def both_ends() -> tuple[NoiseConnection, NoiseConnection]:
    """Returns two ends after their handshake."""
    ends = [NoiseConnection.from_name(b"Noise_NN_25519_ChaChaPoly_SHA256") for _ in range(2)]
    ends[0].set_as_initiator()
    ends[1].set_as_responder()
    for end in ends:
        end.start_handshake()
    ends[1].read_message(ends[0].write_message())
    ends[0].read_message(ends[1].write_message())
    return ends[0], ends[1]


def gathered(connection: Pieces, end: NoiseConnection) -> GatheredNoise:
    return GatheredNoise(NoiseTransportReadWriter(connection, end), None)  # type: ignore[arg-type]


def play(sizes: Callable[[], int], story: Callable[[GatheredNoise, GatheredNoise, Pieces], Awaitable[None]]) -> None:
    one, other = both_ends()
    connection = Pieces(sizes)
    trio.run(story, gathered(connection, one), gathered(connection, other), connection)


@pytest.mark.parametrize("largest", [1, 2, 3, 100, 70_000])
def test_messages_arrive_whole_and_in_order_in_pieces_of_any_size(largest: int) -> None:
    chance = random.Random(largest)
    sent = [chance.randbytes(chance.choice([1, 12, 2000])) for _ in range(20)] + [chance.randbytes(40_000)]

    async def story(one: GatheredNoise, other: GatheredNoise, connection: Pieces) -> None:
        for message in sent:
            await one.write_msg(message)
        assert [await other.read_msg() for _ in sent] == sent

    play(lambda: chance.randint(1, largest), story)


def test_messages_that_have_arrived_take_one_read() -> None:
    async def story(one: GatheredNoise, other: GatheredNoise, connection: Pieces) -> None:
        for _ in range(100):
            await one.write_msg(b"short")
        assert [await other.read_msg() for _ in range(100)] == [b"short"] * 100
        assert connection.reads == 1

    play(lambda: READ_BYTES, story)


def test_what_fits_no_message_is_written_at_once_in_several_that_the_library_reads() -> None:
    one, other = both_ends()
    connection = Pieces(lambda: READ_BYTES)
    sent = random.Random(1).randbytes(3 * MAX_PLAINTEXT_LENGTH + 5)

    async def story() -> bytes:
        await gathered(connection, one).write_msg(sent)
        assert connection.writes == 1
        library = NoiseTransportReadWriter(connection, other)  # type: ignore[arg-type]
        return b"".join([await library.read_msg() for _ in range(4)])

    assert trio.run(story) == sent


def test_a_connection_that_ends_between_messages_is_told_from_one_that_ends_within_one() -> None:
    async def story(one: GatheredNoise, other: GatheredNoise, connection: Pieces) -> None:
        await one.write_msg(b"whole")
        await one.write_msg(b"cut")
        del connection.written[-1:]
        assert await other.read_msg() == b"whole"
        with pytest.raises(IncompleteReadError) as within:
            await other.read_msg()
        assert not within.value.is_clean_close

    async def clean(one: GatheredNoise, other: GatheredNoise, connection: Pieces) -> None:
        with pytest.raises(IncompleteReadError) as between:
            await other.read_msg()
        assert between.value.is_clean_close

    play(lambda: 7, story)
    play(lambda: 7, clean)


def test_a_message_that_was_changed_on_the_way_is_refused() -> None:
    async def story(one: GatheredNoise, other: GatheredNoise, connection: Pieces) -> None:
        await one.write_msg(b"some payload")
        connection.written[5] ^= 1
        with pytest.raises(NoiseInvalidMessage):
            await other.read_msg()

    play(lambda: READ_BYTES, story)
