"""The guarantees of the simulated network alone: virtual time, and faults from a seed."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
import trio
import trio.testing

from protocol.errors import DeadlineError, UnreachableError
from protocol.identity import NodeKey
from swarm.host import GossipVerdict, PeerId, Stream
from swarm.hosts.simulated.network import DETECTION_SECONDS, SEEN_SECONDS, SimulatedHost, SimulatedNetwork

ECHO, TOPIC = "/test/echo/1", "test"


def simulate(story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        with trio.fail_after(1e6):
            await story()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def echo(stream: Stream) -> None:
    while piece := await stream.receive(65_536):
        await stream.send(piece)


async def connected(network: SimulatedNetwork, stack: AsyncExitStack, *names: str) -> list[SimulatedHost]:
    """Running hosts, all connected to each other."""
    hosts = [network.host(name) for name in names]
    for host in hosts:
        host.handle(ECHO, echo)
        await stack.enter_async_context(host.run())
    for number, host in enumerate(hosts):
        for other in hosts[:number]:
            await host.connect(other.addresses()[0], deadline_seconds=10)
    return hosts


async def hear(host: SimulatedHost, verdict: GossipVerdict = GossipVerdict.ACCEPT) -> list[bytes]:
    heard: list[bytes] = []

    def validate(peer: PeerId, message: bytes) -> GossipVerdict:
        return verdict

    await host.subscribe(TOPIC, validate, lambda peer, message: heard.append(message))
    return heard


async def hear_lossy(seed: int, *, loss: float = 0.0, duplicates: float = 0.0) -> list[tuple[float, bytes]]:
    """Which of 200 messages of one host another hears, and when."""
    network = SimulatedNetwork(seed, loss=loss, duplicates=duplicates)
    heard: list[tuple[float, bytes]] = []
    async with AsyncExitStack() as stack:
        one, other = await connected(network, stack, "one", "other")
        start = trio.current_time()
        await hear(one)
        await other.subscribe(
            TOPIC,
            lambda p, m: GossipVerdict.ACCEPT,
            lambda p, m: heard.append((round(trio.current_time() - start, 6), m)),
        )
        for number in range(200):
            await one.publish(TOPIC, b"%d" % number)
        await trio.sleep(2 * SEEN_SECONDS)
    return heard


def test_peer_ids_come_from_real_keys_of_the_seed() -> None:
    one, again, other_seed = (SimulatedNetwork(seed).host("wren") for seed in (1, 1, 2))
    assert one.peer_id == again.peer_id == one.key.peer_id
    assert one.peer_id != other_seed.peer_id
    assert one.addresses()[0].endswith(f"/p2p/{one.peer_id}")
    key = NodeKey.generate()
    assert SimulatedNetwork(1).host(key).peer_id == key.peer_id


def test_same_seed_same_losses_and_same_times() -> None:
    async def story() -> None:
        runs = [await hear_lossy(seed, loss=0.3) for seed in (5, 5, 6)]
        assert runs[0] == runs[1]
        assert runs[0] != runs[2]
        assert 100 < len(runs[0]) < 180

    simulate(story)


def test_duplicates_come_after_the_host_forgot_the_message() -> None:
    async def story() -> None:
        heard = await hear_lossy(5, duplicates=0.25)
        first = [message for when, message in heard if when < SEEN_SECONDS]
        second = [message for when, message in heard if when >= SEEN_SECONDS]
        assert sorted(first) == sorted(b"%d" % number for number in range(200))
        assert 20 < len(second) < 80

    simulate(story)


def test_stream_takes_the_delay_and_the_time_of_its_bytes() -> None:
    async def story() -> None:
        network = SimulatedNetwork(1, delay_seconds=(0.25, 0.25))
        async with AsyncExitStack() as stack:
            one, other = await connected(network, stack, "one", "other")
            network.set_bandwidth(1e9)
            network.set_bandwidth(100_000, of=other)
            stream = await one.open_stream(other.peer_id, ECHO, deadline_seconds=10)
            start = trio.current_time()
            async with trio.open_nursery() as tasks:
                tasks.start_soon(stream.send, bytes(200_000))
                received = 0
                while received < 200_000:
                    received += len(await stream.receive(65_536))
            # 2 s there, which the way back overlaps except for the last piece, and two delays
            assert trio.current_time() - start == pytest.approx(2.0 + 0.5, abs=65_536 / 100_000)
            assert one.round_trip_seconds(other.peer_id) == pytest.approx(0.5)

    simulate(story)


def test_partition_stalls_streams_and_healing_delivers_what_was_held_back() -> None:
    async def story() -> None:
        network = SimulatedNetwork(1)
        async with AsyncExitStack() as stack:
            one, other = await connected(network, stack, "one", "other")
            heard = await hear(other)
            stream = await one.open_stream(other.peer_id, ECHO, deadline_seconds=10)
            network.partition([one], [other])
            await stream.send(b"through the cut")
            await one.publish(TOPIC, b"lost")
            with trio.move_on_after(DETECTION_SECONDS / 2) as scope:
                await stream.receive(100)
            assert scope.cancelled_caught
            with pytest.raises(DeadlineError):
                await one.open_stream(other.peer_id, ECHO, deadline_seconds=1)
            network.heal()
            assert await stream.receive(100) == b"through the cut"
            await one.publish(TOPIC, b"heard")
            await trio.sleep(DETECTION_SECONDS)
            assert heard == [b"heard"]
            assert one.peers() == [other.peer_id]

    simulate(story)


def test_partition_that_lasts_breaks_connections_and_dials_meet_silence_until_it_heals() -> None:
    async def story() -> None:
        network = SimulatedNetwork(1)
        async with AsyncExitStack() as stack:
            one, other, bridge = await connected(network, stack, "one", "other", "bridge")
            stream = await one.open_stream(other.peer_id, ECHO, deadline_seconds=10)
            network.partition([one], [other])
            with pytest.raises(UnreachableError):
                await stream.receive(1)
            assert one.peers() == [bridge.peer_id]
            assert other.peers() == [bridge.peer_id]
            with pytest.raises(DeadlineError):
                await one.connect(other.addresses()[0], deadline_seconds=30)
            network.heal()
            await one.connect(other.addresses()[0], deadline_seconds=30)
            assert other.peer_id in one.peers()

    simulate(story)


def test_crash_ends_what_ran_on_the_host_and_a_restart_remembers_nothing() -> None:
    async def story() -> None:
        network = SimulatedNetwork(1)
        reached: list[str] = []

        async def live(host: SimulatedHost) -> None:
            async with host.run():
                reached.append("up")
                await trio.sleep_forever()
            reached.append("run() is left quietly")

        async with trio.open_nursery() as tasks, AsyncExitStack() as stack:
            (one,) = await connected(network, stack, "one")
            doomed = network.host("doomed")
            doomed.handle(ECHO, echo)
            tasks.start_soon(live, doomed)
            await trio.testing.wait_all_tasks_blocked()
            address = doomed.addresses()[0]
            await one.connect(address, deadline_seconds=10)
            network.crash(doomed)
            await trio.testing.wait_all_tasks_blocked()
            assert reached == ["up", "run() is left quietly"]
            assert not one.peers()
            with pytest.raises(UnreachableError, match="crashed"):
                await doomed.connect(one.addresses()[0], deadline_seconds=10)

            reborn = network.restart(doomed)
            await stack.enter_async_context(reborn.run())
            assert await one.connect(address, deadline_seconds=10) == doomed.peer_id
            with pytest.raises(UnreachableError, match=ECHO):
                await one.open_stream(reborn.peer_id, ECHO, deadline_seconds=10)

    simulate(story)


def test_a_key_lives_once_on_a_network() -> None:
    async def story() -> None:
        network = SimulatedNetwork(1)
        async with network.host("one").run():
            with pytest.raises(ValueError, match="already"):
                network.host("one")

    simulate(story)


def test_silent_host_accepts_everything_and_answers_nothing_until_healed() -> None:
    async def story() -> None:
        network = SimulatedNetwork(1)
        async with AsyncExitStack() as stack:
            one, mute = await connected(network, stack, "one", "mute")
            heard = await hear(one)
            await hear(mute)
            earlier = await one.open_stream(mute.peer_id, ECHO, deadline_seconds=10)
            network.silence(mute)
            await earlier.send(b"before")
            stream = await one.open_stream(mute.peer_id, ECHO, deadline_seconds=10)
            await stream.send(b"anyone?")
            await mute.publish(TOPIC, b"unheard")
            with trio.move_on_after(3600) as scope:
                await stream.receive(1)
            assert scope.cancelled_caught
            assert one.peers() == [mute.peer_id]
            assert not heard
            network.heal()
            assert await earlier.receive(100) == b"before"

    simulate(story)


def test_messages_on_their_way_arrive_although_the_host_that_was_first_here_ends() -> None:
    async def story() -> None:
        network = SimulatedNetwork(1, delay_seconds=(1.0, 2.0))
        async with AsyncExitStack() as stack:
            first, sender, other = await connected(network, stack, "first", "sender", "other")
            heard = await hear(other)
            await sender.publish(TOPIC, b"one")
            await trio.testing.wait_all_tasks_blocked()
            first.end("left")
            await sender.publish(TOPIC, b"two")
            await trio.sleep(5)
            assert sorted(heard) == [b"one", b"two"]

    simulate(story)


def test_a_later_copy_arrives_where_the_connection_of_an_earlier_one_breaks() -> None:
    async def story() -> None:
        for seed in range(8):  # either neighbour's copy is the earlier one
            network = SimulatedNetwork(seed, delay_seconds=(1.0, 2.0))
            async with AsyncExitStack() as stack:
                one, other, ear = await connected(network, stack, "one", "other", "ear")
                heard = await hear(ear)
                await one.disconnect(other.peer_id)
                await one.publish(TOPIC, b"news")
                await other.publish(TOPIC, b"news")
                await trio.sleep(0.5)
                network.crash(one)
                await trio.sleep(5)
                assert heard == [b"news"]
                assert ear.scores[other.peer_id].accepted == 1

    simulate(story)


def test_copies_after_the_first_are_counted_as_duplicates_and_as_bytes() -> None:
    async def story() -> None:
        network = SimulatedNetwork(1)
        async with AsyncExitStack() as stack:
            one, *others, ear = await connected(network, stack, "one", "a", "b", "c", "ear")
            for host in (*others, ear):
                await hear(host)
            await one.publish(TOPIC, b"news")
            await trio.sleep(1)
            scores = ear.scores.values()
            assert sum(score.accepted for score in scores) == 1
            assert ear.traffic().received_bytes == len(b"news") * sum(s.accepted + s.duplicates for s in scores)
            assert sum(score.duplicates for score in scores) >= 1

    simulate(story)


def test_a_bug_of_a_receiver_is_raised_out_of_its_own_host() -> None:
    async def story() -> None:
        network = SimulatedNetwork(1)
        raised: list[str] = []

        def stumble(peer: PeerId, message: bytes) -> None:
            raise ZeroDivisionError

        async def live(host: SimulatedHost) -> None:
            try:
                async with host.run():
                    await trio.sleep_forever()
            except ZeroDivisionError:
                raised.append(host.peer_id)

        async with AsyncExitStack() as stack:
            one, other = await connected(network, stack, "one", "other")
            buggy = network.host("buggy")
            tasks = await stack.enter_async_context(trio.open_nursery())
            tasks.start_soon(live, buggy)
            await trio.testing.wait_all_tasks_blocked()
            for host in (one, other):
                await host.connect(buggy.addresses()[0], deadline_seconds=10)
            await buggy.subscribe(TOPIC, lambda peer, message: GossipVerdict.ACCEPT, stumble)
            heard = await hear(other)
            await one.publish(TOPIC, b"news")
            await trio.sleep(1)
            assert raised == [buggy.peer_id] and heard == [b"news"]

    simulate(story)


def test_hosts_on_one_lan_hear_each_other_and_no_others() -> None:
    async def story() -> None:
        network = SimulatedNetwork(1)
        async with AsyncExitStack() as stack:
            one, other, _ = await connected(network, stack, "one", "other", "elsewhere")
            asleep = network.host("asleep")
            assert not one.heard_on_lan()
            network.join_lan(one, other, asleep)
            assert one.heard_on_lan() == other_addresses(other)
            network.partition([one], [other])
            assert not one.heard_on_lan()

    def other_addresses(host: SimulatedHost) -> list[str]:
        return list(host.addresses())

    simulate(story)


def test_an_hour_of_a_hundred_hosts_costs_no_real_time() -> None:
    async def story() -> None:
        network = SimulatedNetwork(1, delay_seconds=(0.01, 0.3))
        async with AsyncExitStack() as stack:
            hosts = [network.host(f"host {number}") for number in range(100)]
            ears = []
            for host in hosts:
                await stack.enter_async_context(host.run())
                ears.append(await hear(host))
            for number in range(100):  # a ring with chords, so that gossip takes many hops
                for step in (1, 7, 30):
                    await hosts[number].connect(hosts[(number + step) % 100].addresses()[0], deadline_seconds=10)
            start = trio.current_time()
            for _ in range(6):
                await trio.sleep(600)
                await hosts[0].publish(TOPIC, b"%f" % trio.current_time())
            await trio.sleep(10)
            assert trio.current_time() - start > 3600
            assert [len(ear) for ear in ears] == [0] + [6] * 99

    simulate(story)


def test_a_refused_bandwidth_of_nothing() -> None:
    with pytest.raises(ValueError, match="bandwidth"):
        SimulatedNetwork(1).set_bandwidth(0)
    SimulatedNetwork(1).set_bandwidth(math.inf)


def test_mesh_brings_every_message_to_everybody_for_a_fraction_of_the_copies() -> None:
    async def copies(mesh_degree: int | None) -> int:
        network = SimulatedNetwork(3, mesh_degree=mesh_degree)
        async with AsyncExitStack() as stack:
            hosts = await connected(network, stack, *map(str, range(16)))
            heard = [await hear(host) for host in hosts]
            for number in range(32):
                await hosts[number % 16].publish(TOPIC, bytes([number]) * 400)
                await trio.sleep(0.25)
            await trio.sleep(3)
            assert [len(each) for each in heard] == [30] * 16
        return sum(host.traffic().received_bytes for host in hosts)

    async def story() -> None:
        assert await copies(4) < 0.6 * await copies(None)

    simulate(story)


def test_what_the_mesh_did_not_bring_is_asked_for_once_it_is_offered() -> None:
    async def story() -> None:
        network = SimulatedNetwork(3, mesh_degree=1)
        async with AsyncExitStack() as stack:
            hosts = await connected(network, stack, *map(str, range(12)))
            heard = [await hear(host) for host in hosts]
            await hosts[0].publish(TOPIC, b"first")
            await trio.sleep(10)
            for number in range(20):
                await hosts[0].publish(TOPIC, bytes([number]))
            await trio.sleep(0.9)
            at_once = sum(map(len, heard))
            await trio.sleep(5)
            assert at_once < sum(map(len, heard)) == 11 * 21

    simulate(story)


def test_a_message_that_a_host_refused_is_offered_to_none_of_its_neighbours() -> None:
    async def story() -> None:
        network = SimulatedNetwork(3, mesh_degree=2)
        async with AsyncExitStack() as stack:
            middle, first, *others = await connected(network, stack, *map(str, range(10)))
            for host in others:
                await host.disconnect(first.peer_id)
            heard = [await hear(host) for host in (first, *others)]
            refused = await hear(middle, GossipVerdict.IGNORE)
            await first.publish(TOPIC, b"refused")
            await trio.sleep(10)
            assert not refused
            assert not any(heard)
            assert first.traffic().sent_bytes > 0
            assert [host.traffic().received_bytes for host in others] == [0] * 8

    simulate(story)


def test_messages_pass_between_two_meshes_that_only_one_link_joins() -> None:
    async def story() -> None:
        network = SimulatedNetwork(3, mesh_degree=3)
        async with AsyncExitStack() as stack:
            one, other = [await connected(network, stack, *(f"{half}{i}" for i in range(6))) for half in "ab"]
            heard = [await hear(host) for host in (*one, *other)]
            await one[0].publish(TOPIC, b"first")
            await trio.sleep(3)
            await one[0].connect(other[0].addresses()[0], deadline_seconds=10)
            await one[5].publish(TOPIC, b"second")
            await trio.sleep(5)
            assert all(b"second" in each for each in [*heard[:5], *heard[6:]])

    simulate(story)


def test_mesh_brings_a_host_s_own_messages_to_known_peers_beside_a_crowd_that_forwards_nothing() -> None:
    async def story() -> None:
        network = SimulatedNetwork(3, mesh_degree=2)
        publisher, friend, *crowd = (network.host(f"host {number}") for number in range(40))
        heard: list[bytes] = []
        publisher.prefer(lambda: [friend.peer_id])
        async with AsyncExitStack() as stack:
            for host in (publisher, friend, *crowd):
                await stack.enter_async_context(host.run())
                on_message = (lambda _, message: heard.append(message)) if host is friend else (lambda *_: None)
                verdict = GossipVerdict.ACCEPT if host in (publisher, friend) else GossipVerdict.IGNORE
                await host.subscribe("test", lambda *_, verdict=verdict: verdict, on_message)
            for host in (*crowd, friend):
                await host.connect(publisher.addresses()[0], deadline_seconds=5.0)
            await publisher.publish("test", b"first")
            await trio.sleep(0.5)  # less than a heartbeat, at which it would be offered
            assert heard == [b"first"]
            await trio.sleep(3.0)
            assert friend.gossip.number in publisher.gossip.mesh

    simulate(story)
