"""Peers ask each other to be dialled back: seldom, and rubbish for an answer is a failure of the peer."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from protocol.errors import StarlingError
from protocol.streams.dial_back_messages import DIAL_BACK_PROTOCOL, DialBackAnswer, DialBackQuestion
from protocol.streams.framing import framed_message
from swarm.host import Stream
from swarm.peers.dial_back import QUESTIONS, DialBack, ports_of
from swarm.peers.reachability import REPORT_SECONDS
from tests.swarm.test_service import Swarm, play


def test_a_peer_that_asks_again_and_again_to_be_dialled_is_dialled_seldom(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        one, other = swarm.network.host("one"), swarm.network.host("other")
        async with one.run(), other.run():
            DialBack(one)
            asking = DialBack(other)
            await other.connect(one.addresses()[0], deadline_seconds=5)
            ports = ports_of(other.addresses())
            assert ports == (4001,)
            reached = [(await asking.ask(one.peer_id, ports)).reached for _ in range(3 * QUESTIONS)]
            assert reached == [True] * QUESTIONS + [None] * 2 * QUESTIONS
            await anyio.sleep(REPORT_SECONDS)
            assert (await asking.ask(one.peer_id, ports)).reached

    play(story)


@pytest.mark.parametrize(
    "answer",
    [
        framed_message(DialBackAnswer(True, "203.0.113.9" * 50, (4001,))),
        framed_message(DialBackAnswer(True, "203.0.113.9", (0,))),
        framed_message(DialBackQuestion((4001,))),
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x02\xc1\xc1",
        b"",
    ],
)
def test_rubbish_for_an_answer_is_a_failure_of_the_peer(tmp_path: Path, answer: bytes) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        one, other = swarm.network.host("one"), swarm.network.host("other")

        async def answer_rubbish(stream: Stream) -> None:
            await stream.receive(1000)
            await stream.send(answer or b"\x00")

        async with one.run(), other.run():
            asking = DialBack(other)
            one.handle(DIAL_BACK_PROTOCOL, answer_rubbish)
            await other.connect(one.addresses()[0], deadline_seconds=5)
            with pytest.raises(StarlingError):
                await asking.ask(one.peer_id, (4001,))

    play(story)
