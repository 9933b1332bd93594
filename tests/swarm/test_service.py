"""A whole member of a swarm, in virtual time: sharing, judging, banning, leaving, being alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import anyio
import anyio.lowlevel
import msgspec
import pytest
from trio.testing import MockClock

from protocol import limits
from protocol.blob_id import blob_id
from protocol.connections import connections_field
from protocol.errors import ConfigurationError, StorageError
from protocol.messages import Announcement, Goodbye, GroupAdvert, Heartbeat, PromptRef, TaskSuccess
from swarm import api
from swarm.announcements.crowding import Standing
from swarm.announcements.own_heartbeats import LEARNER_SILENT_SECONDS
from swarm.api import Judgement
from swarm.hosts.simulated.network import SimulatedHost, SimulatedNetwork
from swarm.peers.claimed_addresses import claims_of
from swarm.peers.peer_listing import MAX_BANNED_LISTED, MAX_PEERS_LISTED
from swarm.peers.peering import Peering
from swarm.peers.reputation import Conduct
from swarm.router import Router
from swarm.service import SwarmService
from swarm.settings import ServiceSettings, decode_settings
from swarm.upkeep import MAINTENANCE_SECONDS

FAMILY, TOKENIZER = bytes([1]) * 16, bytes([2]) * 16
EPOCH = 1_700_000_000.0


def now_seconds() -> float:
    return EPOCH + anyio.current_time()


def content(seed: int, size: int = 2000) -> bytes:
    return Random(seed).randbytes(size)


def only(member: SwarmService) -> bytes:
    """Whom a node says it is connected to where that is ``member`` alone."""
    return connections_field([member.host.peer_id])


def at(member: SwarmService) -> tuple[str, ...]:
    """Where a node says it can be dialled."""
    return claims_of(member.host.addresses(), member.host.peer_id)


def heartbeat(name: str, **changes: object) -> Heartbeat:
    fields: dict[str, object] = {
        "name": name, "software": "starling 0", "model": "builtin:wren", "family": FAMILY, "tokenizer": TOKENIZER,
        "round": 3, "policy_version": 3, "phase": "learning", "tokens_per_second": 10.0, "groups_offered": 1,
        "groups_used": 2, "tasks": (),
    }  # fmt: skip
    return Heartbeat(**{**fields, **changes})  # type: ignore[arg-type]


class Swarm:
    """Members on one simulated network, each with a data directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.network = SimulatedNetwork(seed=3)
        self.events: dict[str, list[str]] = {}
        self._directory = directory

    @asynccontextmanager
    async def member(
        self,
        name: str,
        *peers: SwarmService,
        host: SimulatedHost | None = None,
        ahead_seconds: float = 0.0,
        router: Router | None = None,
        **changes: object,
    ) -> AsyncIterator[SwarmService]:
        home = self._directory / name
        home.mkdir(exist_ok=True)
        fields: dict[str, object] = {
            "home": str(home), "swarm_name": "test", "swarm_id": "ab" * 16, "name": name,
            "peers": tuple(p.host.addresses()[0] for p in peers),
        }  # fmt: skip
        settings = ServiceSettings(**{**fields, **changes})  # type: ignore[arg-type]
        host = host or self.network.host(name)
        events = self.events.setdefault(name, [])
        service = SwarmService(
            host,
            host.key,
            settings,
            wall_clock=lambda: now_seconds() + ahead_seconds,
            random=Random(name),
            emit=lambda event, fields: events.append(event),
            router=router,
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(service.run)
            await service.started.wait()
            yield service
            tasks.cancel_scope.cancel()


def play(story: Callable[[], Awaitable[None]]) -> None:
    anyio.run(story, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})


async def share(service: SwarmService, *seeds: int, reward: float = 1.0) -> None:
    """Does what ``SwarmClient.share`` does: stores the blobs, then announces them."""
    adverts = []
    for seed in seeds:
        blob = service.store.put(content(seed))
        prompt = PromptRef("reverse", 1, bytes(16), seed)
        adverts.append(GroupAdvert(blob, len(content(seed)), prompt, (reward, 0.0), (5, 6), (-0.5, -0.25)))
    assert await service.answer(api.Share(FAMILY, TOKENIZER, 7, tuple(adverts))) == api.Done()


async def seen(service: SwarmService, after: int = 0, limit: int = 100) -> list[api.SeenGroup]:
    reply = await service.answer(api.AskSeenGroups(after, limit))
    assert isinstance(reply, api.SeenGroups)
    return list(reply.groups)


async def fetch(service: SwarmService, groups: list[api.SeenGroup]) -> list[api.Fetched]:
    wanted = tuple(api.Wanted(g.advert.blob, g.advert.size, (g.peer,)) for g in groups)
    reply = await service.answer(api.Fetch(wanted, 60.0))
    assert isinstance(reply, api.FetchedList)
    return list(reply.fetched)


async def status(service: SwarmService) -> api.SwarmStatus:
    reply = await service.answer(api.AskStatus())
    assert isinstance(reply, api.SwarmStatus)
    return reply


async def peer(service: SwarmService, other: SwarmService) -> api.PeerStatus | None:
    reply = await service.answer(api.AskPeers())
    assert isinstance(reply, api.PeerList)
    return next((p for p in reply.peers if p.peer == other.host.peer_id), None)


async def judge(service: SwarmService, other: SwarmService, judgement: Judgement) -> None:
    await service.answer(api.Judge(other.host.peer_id, bytes(32), judgement, "recomputed 0.0, claimed 1.0"))


def test_a_shared_group_is_seen_by_all_others_and_fetched_as_it_was(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("a") as a, swarm.member("b", a) as b, swarm.member("c", a) as c:
            await anyio.sleep(10.0)
            await share(b, 1, 2)
            await anyio.sleep(1.0)
            assert await seen(b) == []
            for other in (a, c):
                groups = await seen(other)
                assert [g.advert.blob for g in groups] == [blob_id(content(1)), blob_id(content(2))]
                assert {(g.peer, g.family, g.tokenizer, g.policy_version) for g in groups} == {
                    (b.host.peer_id, FAMILY, TOKENIZER, 7)
                }
                fetched = await fetch(other, groups)
                assert [f.read() for f in fetched] == [content(1), content(2)]
            assert await seen(c, after=2) == []
            received = await peer(a, b)
            assert received is not None
            assert received.groups_announced == 2
            given = await peer(b, a)
            assert given is not None and given.groups_fetched == 2
            counted = await status(b)
            assert (counted.groups_announced, counted.groups_fetched) == (2, 2)  # two peers fetched each
            (again,) = await fetch(c, [(await seen(c))[0]])  # it is here: nothing is sent
            assert again.is_here
            relayed = await peer(a, c)
            assert relayed is not None and relayed.groups_fetched == 0  # it gave none of its own groups

    play(story)


def test_groups_offered_without_a_peer_are_neither_announced_to_one_nor_fetched(tmp_path: Path) -> None:
    async def story() -> None:
        async with Swarm(tmp_path).member("a") as a:
            await share(a, 1, 2)
            counted = await status(a)
            assert (counted.groups_announced, counted.groups_fetched) == (0, 0)

    play(story)


def test_our_own_group_advertised_by_another_is_not_offered_back(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("a") as a, swarm.member("b", a) as b:
            await anyio.sleep(5.0)
            await share(a, 1)
            await share(b, 1, 2)
            await anyio.sleep(1.0)
            assert [g.advert.blob for g in await seen(a)] == [blob_id(content(2))]

    play(story)


def test_more_groups_than_fit_one_announcement_all_arrive(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("a") as a, swarm.member("b", a) as b:
            await anyio.sleep(5.0)
            await share(a, *range(3 * limits.GROUPS_PER_ADVERT + 1))
            await anyio.sleep(1.0)
            assert len(await seen(b, limit=4096)) == 3 * limits.GROUPS_PER_ADVERT + 1
            assert (await status(b)).accepted["rollouts"] == 4

    play(story)


def test_heartbeats_tell_how_far_a_peers_clock_is_from_ours(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("a", ahead_seconds=120.0) as a, swarm.member("b", a) as b:
            await anyio.sleep(10.0)
            ahead, behind = await peer(b, a), await peer(a, b)
            assert ahead is not None and behind is not None
            assert ahead.clock_offset_seconds == pytest.approx(120.0, abs=1.0)
            assert behind.clock_offset_seconds == pytest.approx(-120.0, abs=1.0)

    play(story)


def test_a_node_whose_address_nobody_gives_is_reached_where_its_heartbeats_say(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("a") as a, swarm.member("b", a) as b:
            await anyio.sleep(10.0)
            await share(b, 1)
            await anyio.sleep(1.0)
            for address in b.host.addresses():
                a.peering.book.drop(address)
            await a.host.disconnect(b.host.peer_id)
            (fetched,) = await fetch(a, await seen(a))
            assert fetched.read() == content(1)

    play(story)


def test_heartbeats_tell_peers_what_the_learner_said_last(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("a") as a, swarm.member("b", a) as b:
            await anyio.sleep(10.0)
            before = await peer(b, a)
            assert before is not None
            assert before.heartbeat is not None
            assert (before.heartbeat.name, before.heartbeat.phase) == ("a", "starting")
            await a.answer(api.Beat(heartbeat("a", round=4)))
            await anyio.sleep(6.0)
            now = await peer(b, a)
            assert now is not None
            assert now.heartbeat == heartbeat("a", round=4, connected=only(b), addresses=at(a))
            assert 0.0 <= (now.heartbeat_age_seconds or -1.0) <= 6.0
            assert now.connected
            await anyio.sleep(LEARNER_SILENT_SECONDS + 10.0)
            silent = await peer(b, a)
            assert silent is not None
            assert silent.heartbeat == heartbeat(
                "a", round=4, phase="learner silent", tokens_per_second=0.0, connected=only(b), addresses=at(a)
            )

    play(story)


def test_a_model_that_has_loaded_is_told_at_once_not_with_the_next_regular_heartbeat(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("a") as a, swarm.member("b", a) as b:
            await anyio.sleep(10.0)
            await a.answer(api.Beat(heartbeat("a", model="wren")))
            await anyio.sleep(1.0)
            now = await peer(b, a)
            assert now is not None and now.heartbeat == heartbeat("a", model="wren", connected=only(b), addresses=at(a))

    play(story)


def without_addresses(peer: api.PeerStatus) -> Heartbeat:
    assert peer.heartbeat is not None
    return msgspec.structs.replace(peer.heartbeat, connected=b"", addresses=())


def test_a_node_that_rests_says_so_at_once_and_for_as_long_as_it_does(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("a") as a, swarm.member("b", a) as b:
            await a.answer(api.Beat(heartbeat("a")))
            await anyio.sleep(10.0)
            for paused in (True, False):
                await a.answer(api.SetPaused(paused))
                status = await a.answer(api.AskStatus())
                assert isinstance(status, api.SwarmStatus) and status.paused is paused
                await anyio.sleep(1.0)
                now = await peer(b, a)
                expected = heartbeat("a", phase="paused" if paused else "starting", tokens_per_second=0.0)
                assert now is not None and now.connected and without_addresses(now) == expected
                await anyio.sleep(LEARNER_SILENT_SECONDS + 10.0 if paused else 0.0)
                later = await peer(b, a)
                assert later is not None and without_addresses(later) == expected

    play(story)


def test_under_a_limit_on_downloads_a_slow_peer_is_not_to_blame_and_a_wrong_one_is(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with (
            swarm.member("limited", download_bytes_per_second=16_000.0) as limited,
            swarm.member("free") as free,
            swarm.member("peer", limited, free) as other,
        ):
            await anyio.sleep(10.0)
            for member in (limited, free):
                member._fetcher.report(other.host.peer_id, Conduct.STALLED, "")
                member._fetcher.report(other.host.peer_id, Conduct.MISSING, "")
            seen = [await peer(member, other) for member in (limited, free)]
            assert [each.conduct for each in seen if each is not None] == [
                {"missing": 1},
                {"stalled": 1, "missing": 1},
            ]

    play(story)


def test_a_liar_is_banned_after_enough_false_rewards_with_its_groups_and_its_connection(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("honest") as honest, swarm.member("liar", honest) as liar:
            await anyio.sleep(5.0)
            await share(liar, *range(5))
            await anyio.sleep(1.0)
            for count in range(3):
                assert len(await seen(honest)) == 5
                assert (await peer(honest, liar)).banned_because is None, count  # type: ignore[union-attr]
                await judge(honest, liar, Judgement.FALSE_REWARD)
            assert await seen(honest) == []
            banned = await peer(honest, liar)
            assert banned is not None
            assert "3 false rewards" in (banned.banned_because or "")
            assert (banned.reputation, banned.groups_rejected, banned.connected) == (0.0, 3, False)
            assert swarm.events["honest"].count("banned") == 1
            await anyio.sleep(10.0)
            assert liar.host.peer_id not in honest.host.peers()
            (refused,) = await fetch(honest, [group(liar)])
            assert not refused.is_here

        async with (
            swarm.member("honest", host=swarm.network.restart(honest.host)) as again,  # type: ignore[arg-type]
            swarm.member("liar", again, host=swarm.network.restart(liar.host)),  # type: ignore[arg-type]
        ):
            await anyio.sleep(30.0)
            assert again.host.peers() == []
            assert again.reputations.banned(now_seconds()) == [liar.host.peer_id]

    def group(of: SwarmService) -> api.SeenGroup:
        advert = GroupAdvert(bytes(32), 10, PromptRef("reverse", 1, bytes(16), 0), (1.0,), (1,), (0.0,))
        return api.SeenGroup(1, of.host.peer_id, EPOCH, FAMILY, TOKENIZER, 1, advert)

    play(story)


def test_a_banned_liar_is_not_heard_through_others_either(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with (
            swarm.member("honest") as honest,
            swarm.member("between", honest) as between,
            swarm.member("liar", between) as liar,
        ):
            await anyio.sleep(10.0)
            for _ in range(3):
                await judge(honest, liar, Judgement.MALFORMED)
            await share(liar, 1)
            await anyio.sleep(2.0)
            assert len(await seen(between)) == 1
            assert await seen(honest) == []
            assert (await status(honest)).rejected["banned"] >= 1
            assert between.host.scores[honest.host.peer_id].rejected == 0  # type: ignore[attr-defined]

    play(story)


def test_standing_in_the_pool_follows_from_connection_and_from_claims_that_held(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("ann") as ann, swarm.member("bob", ann) as bob:
            await anyio.sleep(20)
            assert bob._conduct.standing(ann.host.peer_id) is Standing.STRANGER
            assert bob._conduct.standing("nobody we know") is Standing.LAST
            await judge(bob, ann, Judgement.USED)
            assert bob._conduct.standing(ann.host.peer_id) is Standing.PROVEN
            await judge(bob, ann, Judgement.FALSE_REWARD)
            assert bob._conduct.standing(ann.host.peer_id) is Standing.LAST

    play(story)


def test_a_peer_is_of_use_while_it_is_heard_and_its_claims_are_not_found_false(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("a") as a, swarm.member("b", a) as b:
            assert not a._conduct.is_of_use(b.host.peer_id)
            await anyio.sleep(10.0)
            assert a._conduct.is_of_use(b.host.peer_id)
            await judge(a, b, Judgement.FALSE_REWARD)
            assert not a._conduct.is_of_use(b.host.peer_id)
            for _ in range(8):
                await judge(a, b, Judgement.USED)
            assert a._conduct.is_of_use(b.host.peer_id)

    play(story)


def test_a_peer_that_is_connected_and_never_heard_is_of_no_use_after_its_trial(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        mute = swarm.network.host("mute")
        async with swarm.member("a") as a, mute.run():
            await mute.connect(a.host.addresses()[0], deadline_seconds=10.0)
            await anyio.sleep(5.0)
            (early,) = a.peering._connections(a.host.peers(), anyio.current_time())
            await anyio.sleep(60.0)
            (late,) = a.peering._connections(a.host.peers(), anyio.current_time())
            assert (early.is_useless, late.is_useless) == (False, True)
            assert mute.peers() == [a.host.peer_id]  # there is room, and nobody else to connect to

    play(story)


def test_good_judgements_raise_reputation_and_are_counted(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("a") as a, swarm.member("b", a) as b:
            await anyio.sleep(5.0)
            await judge(a, b, Judgement.USED)
            await judge(a, b, Judgement.UNUSED)
            known = await peer(a, b)
            assert known is not None
            assert known.reputation > 0.5
            assert (known.groups_used, known.groups_rejected) == (1, 0)
            assert known.conduct == {"used": 1, "unused": 1}

    play(story)


def test_of_a_crowd_the_connected_and_the_latest_heard_are_told_and_fit_one_frame(tmp_path: Path) -> None:
    name = "\U0001f600" * limits.NAME_BYTES  # four bytes each
    longest = tuple(
        TaskSuccess(f"{i:02}{name}"[: limits.NAME_BYTES], 0.5, 2**62) for i in range(limits.TASKS_PER_HEARTBEAT)
    )

    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("a") as a, swarm.member("b", a) as b:
            await anyio.sleep(5.0)
            for number in range(1000):
                notes = a._table.of(f"12D3KooW{number:044}")
                notes.heartbeat = heartbeat(name, software=name, model=name, phase=name, tasks=longest)
                notes.heartbeat_sequence = number
            reply = await a.answer(api.AskPeers())
            assert isinstance(reply, api.PeerList) and len(reply.peers) == MAX_PEERS_LISTED
            assert [reply.peers[0].peer, reply.peers[1].peer] == [b.host.peer_id, f"12D3KooW{999:044}"]
            assert len(msgspec.msgpack.encode(reply)) < api.MAX_FRAME_BYTES

    play(story)


def test_hundreds_of_bans_hide_no_peer_from_the_list(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("a") as a:
            a._table.of("friend").groups_used = 1
            for number in range(MAX_PEERS_LISTED):
                for _ in range(3):
                    a.reputations.observe(f"liar {number}", Conduct.FALSE_REWARD, now_seconds())
            reply = await a.answer(api.AskPeers())
            assert isinstance(reply, api.PeerList)
            listed = [peer.peer for peer in reply.peers]
            assert "friend" in listed and f"liar {MAX_PEERS_LISTED - 1}" in listed
            assert len(listed) == MAX_BANNED_LISTED + 1

    play(story)


def test_a_peer_that_says_goodbye_keeps_its_name_and_counts_as_absent_until_it_is_back(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("a") as a:
            async with swarm.member("b", a) as b:
                await anyio.sleep(10.0)
                await share(b, 1)
                await anyio.sleep(1.0)
                assert len(await seen(a)) == 1
                assert await b.answer(api.Leave("maintenance")) == api.Done()
                await anyio.sleep(0.25)
                left = await peer(a, b)
                assert left is not None and left.heartbeat is not None and left.heartbeat.name == "b"
                assert left.heartbeat_age_seconds is None and left.groups_announced == 1
                assert await seen(a) == [] and a._table.heard_since(0.0) == 0
                await anyio.sleep(5.0)
            assert swarm.events["b"] == ["ready", "connected", "left"]
            async with swarm.member("b", a, host=swarm.network.restart(b.host)) as back:  # type: ignore[arg-type]
                await anyio.sleep(10.0)
                here = await peer(a, back)
                assert here is not None and here.heartbeat_age_seconds is not None and here.groups_announced == 1

    play(story)


@pytest.mark.parametrize("turns", range(8))
def test_a_goodbye_that_arrives_in_any_moment_of_our_own_end_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    goodbye = Announcement(sender="another", sequence=1, time_seconds=EPOCH, body=Goodbye("later"))
    ending = anyio.Event()

    async def run_until_the_end(_peering: Peering) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ending.set()

    async def receive_goodbye(service: SwarmService) -> None:
        await ending.wait()
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        service._on_announcement(goodbye)

    async def story() -> None:
        nonlocal ending
        ending = anyio.Event()
        swarm = Swarm(tmp_path)
        async with anyio.create_task_group() as network, swarm.member("a") as a:
            network.start_soon(receive_goodbye, a)
            a.leave("maintenance")
            await anyio.sleep(5.0)
        assert swarm.events["a"] == ["ready", "left"]

    monkeypatch.setattr(Peering, "run", run_until_the_end)
    for _ in range(10):  # whoever has a turn at one moment has it in any order
        play(story)


def test_a_peer_that_crashes_is_no_longer_connected_and_its_groups_say_why_they_are_not_here(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("a") as a, swarm.member("b", a) as b:
            await anyio.sleep(10.0)
            await share(b, 1)
            await anyio.sleep(1.0)
            swarm.network.crash(b.host)  # type: ignore[arg-type]
            (lost,) = await fetch(a, await seen(a))
            assert not lost.is_here
            assert b.host.peer_id in (lost.reason or "")
            gone = await peer(a, b)
            assert gone is not None
            assert not gone.connected

    play(story)


def test_a_lonely_member_says_why_and_stops_saying_it_in_company(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("a") as a:
            await anyio.sleep(10.0)
            assert "--peer" in ((await status(a)).alone_because or "")
            assert swarm.events["a"] == ["ready", "alone"]
            async with swarm.member("b", a):
                await anyio.sleep(10.0)
                alone = await status(a)
                assert alone.alone_because is None
                assert alone.connected_peers == 1
                assert alone.received_bytes > 0
            await anyio.sleep(10.0)
            assert swarm.events["a"] == ["ready", "alone", "connected", "alone"]

    play(story)


def test_a_group_fetched_by_one_peer_is_served_by_it_when_its_maker_is_gone(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("a") as a, swarm.member("b", a) as b, swarm.member("maker", a) as maker:
            await anyio.sleep(10.0)
            await share(maker, 1)
            await anyio.sleep(1.0)
            groups = await seen(a)
            assert (await fetch(b, groups))[0].reason is None
            swarm.network.crash(maker.host)  # type: ignore[arg-type]
            assert (await fetch(a, groups))[0].reason is None

    play(story)


def test_reputation_survives_a_full_disk_and_is_saved_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("a") as a, swarm.member("b", a) as b:
            await anyio.sleep(5.0)
            await judge(a, b, Judgement.USED)
            with monkeypatch.context() as full:
                full.setattr("swarm.peers.reputation.write_atomically", no_space)
                await anyio.sleep(2 * MAINTENANCE_SECONDS)
            assert not (tmp_path / "a" / "trust.json").exists()
            await anyio.sleep(2 * MAINTENANCE_SECONDS)
            assert (tmp_path / "a" / "trust.json").exists()
            assert (await status(a)).connected_peers == 1

    def no_space(path: Path, content: bytes) -> None:
        raise StorageError(f"cannot write {path}: no space left on device")

    play(story)


def test_settings_with_a_typo_or_a_wrong_value_are_refused_by_name() -> None:
    for line, named in (
        (b'{"home": "/h", "swarm_name": "s", "swarm_id": "abc"}', "swarm_id"),
        (b'{"home": "/h", "swarm_name": "s", "swarm_id": "' + b"0" * 32 + b'", "heartbeat": 1}', "heartbeat"),
        (b"", "truncated"),
    ):
        with pytest.raises(ConfigurationError, match=named):
            decode_settings(line)


def test_the_learner_raises_the_stores_limit_and_never_lowers_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with Swarm(tmp_path).member("a", store_bytes=1 << 20) as service:
            large = content(1, 3 << 20)
            with pytest.raises(StorageError, match=r"swarm\.store_bytes"):
                service.store.put(large)
            for asked in (4 << 20, 1 << 20):
                assert await service.answer(api.RaiseStore(asked)) == api.Done()
            assert service.store.has(service.store.put(large))

    play(story)


def test_all_machines_sleep_for_ten_minutes_and_go_on_as_one_swarm_that_blames_nobody(tmp_path: Path) -> None:
    clock = MockClock(autojump_threshold=0)

    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("a") as a, swarm.member("b", a) as b, swarm.member("c", a) as c:
            members = (a, b, c)
            await anyio.sleep(10.0)
            for number, member in enumerate(members):
                await member.answer(api.Beat(heartbeat(f"n{number}")))
                await share(member, number)
            await anyio.sleep(5.0)
            groups = await seen(a)
            fetched: list[api.Fetched] = []

            async def fetch_over_the_sleep() -> None:
                fetched.extend(await fetch(a, groups))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(fetch_over_the_sleep)
                await anyio.sleep(0.01)
                clock.jump(600.0)
            assert len(fetched) == len(groups) == 2
            await anyio.sleep(60.0)
            for number, member in enumerate(members):
                assert len(member.host.peers()) == 2
                await share(member, 10 + number)
            await anyio.sleep(10.0)
            for number, member in enumerate(members):
                news = [group for group in await seen(member) if group.advert.prompt.seed >= 10]
                assert {group.advert.prompt.seed for group in news} == {10, 11, 12} - {10 + number}
                assert all(each.is_here for each in await fetch(member, news))
                others = [other.host.peer_id for other in members if other is not member]
                assert [member.reputations.of(peer, now_seconds()) for peer in others] == [0.5, 0.5]

    anyio.run(story, backend="trio", backend_options={"clock": clock})
