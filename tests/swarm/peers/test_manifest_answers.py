"""A peer that knows an address alone learns which open swarm it met."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from trio.testing import MockClock

from protocol.errors import ConfigurationError, StarlingError, UnreachableError, WrongSwarmError
from protocol.limits import MANIFEST_BYTES
from protocol.manifest import Manifest
from protocol.streams.manifest_messages import MANIFEST_PROTOCOL, decode_manifest_of
from swarm.host import PeerId
from swarm.hosts.simulated.network import SimulatedHost, SimulatedNetwork
from swarm.peers.manifest_answers import QUESTION_EVERY_SECONDS, QUESTIONS, ManifestAnswers
from swarm.settings import ServiceSettings
from swarm.stream_reader import StreamReader, read_frame

MANIFEST = Manifest("lab", (("chain_sum", 1, b"\x01" * 16), ("basic_arithmetic", 2, b"\x02" * 16)))


async def ask(asker: SimulatedHost, peer: PeerId) -> bytes:
    stream = await asker.open_stream(peer, MANIFEST_PROTOCOL, deadline_seconds=5.0)
    await stream.close()
    try:
        reader = StreamReader(stream, stall_seconds=5.0)
        body = await read_frame(reader.exactly, max_bytes=MANIFEST_BYTES, what="manifest")
        assert await reader.at_end()
        return body
    finally:
        await stream.reset()


def test_a_stranger_learns_the_manifest_whose_hash_is_the_swarm_id_and_asks_no_more_often_than_it_may() -> None:
    async def story() -> None:
        network = SimulatedNetwork(seed=1)
        member, stranger = network.host("member"), network.host("stranger")
        ManifestAnswers(member, MANIFEST)
        async with member.run(), stranger.run():
            await stranger.connect(member.addresses()[0], deadline_seconds=5.0)
            body = await ask(stranger, member.peer_id)
            assert sorted(decode_manifest_of(body, MANIFEST.swarm_id).tasks) == sorted(MANIFEST.tasks)
            with pytest.raises(WrongSwarmError):
                decode_manifest_of(body, bytes(16))
            answered = 1
            for _ in range(4 * QUESTIONS):
                try:
                    await ask(stranger, member.peer_id)
                    answered += 1
                except UnreachableError:
                    pass
            assert answered == QUESTIONS
            assert member.faults["unreachable"] == 4 * QUESTIONS + 1 - QUESTIONS
            await anyio.sleep(QUESTION_EVERY_SECONDS)
            assert await ask(stranger, member.peer_id) == body

    anyio.run(story, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})


def test_a_manifest_of_another_swarm_id_is_refused_before_it_is_given_to_anybody(tmp_path: Path) -> None:
    def settings(manifest: str) -> ServiceSettings:
        return ServiceSettings(str(tmp_path), "lab", MANIFEST.swarm_id.hex(), manifest)

    given = settings(MANIFEST.encode().hex()).open_manifest()
    assert given is not None
    assert given.swarm_id == MANIFEST.swarm_id
    assert settings("").open_manifest() is None
    for wrong in (Manifest("another", ()).encode().hex(), "c0", "no hexadecimal"):
        with pytest.raises(ConfigurationError, match="manifest"):
            settings(wrong).open_manifest()


def test_every_failure_is_one_of_ours() -> None:
    for raw in (b"", b"\xc1", b"\x92\xa0\x91\x93\xa1a\x01\xc4\x0f" + bytes(15)):
        with pytest.raises(StarlingError):
            decode_manifest_of(raw, bytes(16))
