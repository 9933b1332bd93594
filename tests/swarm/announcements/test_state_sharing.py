"""States that members announce, in virtual time: heard in time, not too often, kept on disk, and dropped."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import anyio
import pytest
from trio.testing import MockClock

from protocol.errors import StorageError
from protocol.messages import CATCHING_UP, Heartbeat, StateAdvert, StateBlob, TaskSuccess
from swarm import api
from swarm.announcements import state_pool
from swarm.announcements.state_pool import AGE_SECONDS, StatePool
from swarm.announcements.state_sharing import ANNOUNCE_SECONDS, MIN_SECONDS_BETWEEN_STATES
from swarm.hosts.simulated.network import SimulatedNetwork
from swarm.service import SwarmService
from swarm.settings import ServiceSettings

FAMILY, OTHER = b"f" * 16, b"o" * 16
EPOCH = 1_790_000_000.0
SIZE = 400_000


def content(seed: int) -> bytes:
    return Random(seed).randbytes(SIZE)


def advert(number: int, family: bytes = FAMILY, *diffs: StateBlob) -> StateAdvert:
    anchor = StateBlob(bytes([number]) * 32, SIZE, bytes([number]) * 32)
    return StateAdvert(family, bytes(16), number, 0, (TaskSuccess("add", 0.5, 9),), anchor, diffs)


def stored(service: SwarmService, seed: int, version: int = 1) -> StateAdvert:
    """A state whose anchor is in the member's store."""
    anchor = StateBlob(service.store.put(content(seed)), SIZE, bytes([seed]) * 32)
    return StateAdvert(FAMILY, bytes(16), version, 0, (), anchor, ())


def heartbeat(phase: str = "learning", family: bytes = FAMILY) -> Heartbeat:
    return Heartbeat("n", "s", "m", family, bytes(16), 1, 1, phase, 1.0, 0, 0, ())


class Swarm:
    def __init__(self, directory: Path) -> None:
        self.network = SimulatedNetwork(seed=3)
        self._directory = directory

    @asynccontextmanager
    async def member(self, name: str, *peers: SwarmService, **changes: object) -> AsyncIterator[SwarmService]:
        home = self._directory / name
        home.mkdir(exist_ok=True)
        fields: dict[str, object] = {
            "home": str(home), "swarm_name": "test", "swarm_id": "ab" * 16, "name": name,
            "peers": tuple(p.host.addresses()[0] for p in peers),
        }  # fmt: skip
        host = self.network.host(name)
        service = SwarmService(
            host,
            host.key,
            ServiceSettings(**{**fields, **changes}),  # type: ignore[arg-type]
            wall_clock=lambda: EPOCH + anyio.current_time(),
            random=Random(name),
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(service.run)
            await service.started.wait()
            yield service
            tasks.cancel_scope.cancel()


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Callable[[Swarm], Awaitable[None]]], None]:
    def run(story: Callable[[Swarm], Awaitable[None]]) -> None:
        async def main() -> None:
            await story(Swarm(tmp_path))

        anyio.run(main, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})

    return run


Play = Callable[[Callable[[Swarm], Awaitable[None]]], None]


async def seen(service: SwarmService, family: bytes = FAMILY) -> list[api.SeenState]:
    reply = await service.answer(api.AskStates(family))
    assert isinstance(reply, api.States)
    return list(reply.states)


async def states_heard(service: SwarmService, seconds: float) -> int:
    """Counts the announcements of states that arrive within the time."""
    before = service.gossip.accepted["state"]
    await anyio.sleep(seconds)
    return service.gossip.accepted["state"] - before


def test_a_shared_state_is_heard_by_others_with_the_sender_s_reputation(play: Play) -> None:
    async def story(swarm: Swarm) -> None:
        async with swarm.member("a") as a, swarm.member("b", a) as b:
            await anyio.sleep(10.0)
            state = stored(a, 1)
            assert await a.answer(api.ShareState(state)) == api.Done()
            await anyio.sleep(1.0)
            (found,) = await seen(b)
            assert (found.peer, found.advert, found.reputation) == (a.host.peer_id, state, 0.5)
            assert await seen(a) == []
            assert await seen(b, OTHER) == []
            newer = stored(a, 2, version=2)
            await a.answer(api.ShareState(newer))
            await anyio.sleep(MIN_SECONDS_BETWEEN_STATES + 1.0)
            assert [s.advert for s in await seen(b)] == [newer]

    play(story)


def test_whoever_is_catching_up_hears_of_it_within_seconds(play: Play) -> None:
    async def story(swarm: Swarm) -> None:
        async with swarm.member("a") as a:
            await a.answer(api.ShareState(stored(a, 1)))
            await anyio.sleep(2 * ANNOUNCE_SECONDS + 7.0)
            async with swarm.member("b", a) as b:
                await b.answer(api.Beat(heartbeat(CATCHING_UP)))
                await anyio.sleep(12.0)
                assert len(await seen(b)) == 1

    play(story)


def test_a_peer_of_another_family_that_is_catching_up_costs_nothing(play: Play) -> None:
    async def story(swarm: Swarm) -> None:
        async with swarm.member("a") as a, swarm.member("b", a) as b:
            await anyio.sleep(5.0)
            await a.answer(api.ShareState(stored(a, 1)))
            await b.answer(api.Beat(heartbeat(CATCHING_UP, OTHER)))
            await anyio.sleep(1.0)
            assert await states_heard(b, ANNOUNCE_SECONDS - 5.0) == 0

    play(story)


def test_a_crowd_that_is_catching_up_gets_one_announcement_in_five_seconds(play: Play) -> None:
    async def story(swarm: Swarm) -> None:
        async with swarm.member("a") as a:
            names = [f"b{number}" for number in range(4)]
            async with (
                swarm.member(names[0], a, heartbeat_seconds=0.5) as b,
                swarm.member(names[1], a, heartbeat_seconds=0.5) as c,
                swarm.member(names[2], a, heartbeat_seconds=0.5) as d,
            ):
                await anyio.sleep(5.0)
                for newcomer in (b, c, d):
                    await newcomer.answer(api.Beat(heartbeat(CATCHING_UP)))
                await a.answer(api.ShareState(stored(a, 1)))
                heard = await states_heard(b, 50.0)
                assert 8 <= heard <= 50.0 / MIN_SECONDS_BETWEEN_STATES + 1

    play(story)


def test_a_state_is_announced_again_every_minute_and_forgotten_when_it_is_not(play: Play) -> None:
    async def story(swarm: Swarm) -> None:
        async with swarm.member("b") as b:
            async with swarm.member("a", b) as a:
                await anyio.sleep(5.0)
                await a.answer(api.ShareState(stored(a, 1)))
                await anyio.sleep(1.0)
                assert 4 <= await states_heard(b, 5 * (ANNOUNCE_SECONDS + MIN_SECONDS_BETWEEN_STATES)) <= 6
                swarm.network.crash(a.host)  # type: ignore[arg-type]
            assert len(await seen(b)) == 1
            await anyio.sleep(AGE_SECONDS + 1.0)
            assert await seen(b) == []

    play(story)


def test_a_peer_that_leaves_or_is_banned_takes_its_state_with_it(play: Play) -> None:
    async def story(swarm: Swarm) -> None:
        async with swarm.member("c") as c, swarm.member("a", c) as a, swarm.member("b", c) as b:
            await anyio.sleep(10.0)
            for member, seed in ((a, 1), (b, 2)):
                await member.answer(api.ShareState(stored(member, seed)))
            await anyio.sleep(1.0)
            assert {s.peer for s in await seen(c)} == {a.host.peer_id, b.host.peer_id}
            a.leave("done")
            await anyio.sleep(1.0)
            assert {s.peer for s in await seen(c)} == {b.host.peer_id}
            for _ in range(3):
                judged = api.Judge(b.host.peer_id, bytes(32), api.Judgement.UNFIT_WEIGHTS, "leads elsewhere")
                await c.answer(judged)
            assert await seen(c) == []

    play(story)


def test_a_state_whose_blobs_are_not_here_is_refused_and_the_one_before_stays(play: Play) -> None:
    async def story(swarm: Swarm) -> None:
        async with swarm.member("a") as a, swarm.member("b", a) as b:
            await anyio.sleep(5.0)
            await a.answer(api.ShareState(stored(a, 1)))
            with pytest.raises(StorageError, match=advert(9).blobs[0].blob.hex()):
                await a.answer(api.ShareState(advert(9)))
            await anyio.sleep(ANNOUNCE_SECONDS + MIN_SECONDS_BETWEEN_STATES)
            assert [s.advert.policy_version for s in await seen(b)] == [1]

    play(story)


def test_blobs_of_the_announced_state_are_never_evicted_and_those_of_the_one_before_may_be(play: Play) -> None:
    async def story(swarm: Swarm) -> None:
        async with swarm.member("a", store_bytes=1 << 20) as a:
            first, second = stored(a, 1), stored(a, 2)
            await a.answer(api.ShareState(first))
            await anyio.sleep(120.0)
            a.store.put(content(3))  # more than there is room for: the unused blob is evicted
            assert a.store.has(first.anchor.blob)
            assert not a.store.has(second.anchor.blob)
            third = stored(a, 3)
            await a.answer(api.ShareState(third))
            await anyio.sleep(120.0)
            a.store.put(content(4))
            assert not a.store.has(first.anchor.blob)
            assert a.store.has(third.anchor.blob)

    play(story)


def test_a_late_announcement_does_not_replace_a_newer_one() -> None:
    pool = StatePool()
    pool.add("a", advert(2), 100.0, sequence=7, family=FAMILY)
    pool.add("a", advert(1), 101.0, sequence=6, family=FAMILY)
    assert [s.advert.policy_version for s in pool.of(FAMILY, 102.0)] == [2]


def test_a_flood_of_other_families_pushes_out_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_pool, "PEERS", 8)
    pool = StatePool()
    pool.add("ours", advert(1), 100.0, sequence=1, family=FAMILY)
    for number in range(100):
        pool.add(f"stranger {number}", advert(2, OTHER), 101.0, sequence=1, family=FAMILY)
    assert len(pool) == 8
    assert [s.peer for s in pool.of(FAMILY, 102.0)] == ["ours"]


def test_crowd_of_new_identities_pushes_out_neither_those_heard_before_nor_a_peer_that_proved_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_pool, "PEERS", 8)
    pool = StatePool(lambda peer: 0.9 if peer == "proved" else 0.5)
    pool.add("early", advert(1), 100.0, sequence=1, family=FAMILY)
    for number in range(100):
        pool.add(f"sybil {number}", advert(2), 101.0, sequence=1, family=FAMILY)
    pool.add("proved", advert(3), 102.0, sequence=1, family=FAMILY)
    pool.add("early", advert(4), 103.0, sequence=2, family=FAMILY)
    held = [s.peer for s in pool.of(FAMILY, 104.0)]
    assert len(held) == 8
    assert held[:2] == ["early", "proved"]
