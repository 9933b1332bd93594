"""Gossip: every refusal of a message, its verdict and its count; memory that strangers cannot make grow."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random

import anyio
import msgspec
import numpy as np
import pytest
from trio.testing import MockClock

from protocol import limits, wire
from protocol.identity import NodeKey
from protocol.meeting_points import gossip_topic
from protocol.messages import Announcement, Body, Goodbye, GroupAdvert, Heartbeat, PromptRef, RolloutAdvert
from swarm.announcements import gossip as gossip_module
from swarm.announcements.gossip import UNPACED, Gossip, ReplayWindow, SenderLimits, split_adverts
from swarm.announcements.sender_slots import RESERVE, RESERVE_SECONDS, phase_seconds
from swarm.host import GossipVerdict, Receiver, Validator
from swarm.hosts.simulated.network import SimulatedNetwork

SWARM = bytes(range(16))
NOW = 1_700_000_000.0
AT_ONCE = UNPACED.messages_a_slot + RESERVE


class RecordingHost:
    """The part of a host that gossip uses; a test hands raw messages in."""

    def __init__(self) -> None:
        self.published: list[bytes] = []
        self.topic = ""

    async def subscribe(self, topic: str, validate: Validator, receive: Receiver) -> None:
        self.topic, self.validate, self.receive = topic, validate, receive

    async def publish(self, topic: str, message: bytes) -> None:
        self.published.append(message)

    def arrive(self, raw: bytes, forwarder: str = "forwarder") -> GossipVerdict:
        verdict = self.validate(forwarder, raw)
        if verdict is GossipVerdict.ACCEPT:
            self.receive(forwarder, raw)
        return verdict


class Setting:
    def __init__(self, *, is_banned: Callable[[str], bool] = lambda peer: False) -> None:
        self.now_seconds = NOW
        self.host = RecordingHost()
        self.key = NodeKey(bytes([1]) * 32)
        self.gossip = Gossip(
            self.host,  # type: ignore[arg-type]
            self.key,
            SWARM,
            wall_clock=lambda: self.now_seconds,
            is_banned=is_banned,
        )
        self.heard: list[Announcement] = []
        self.gossip.listen(self.heard.append)
        anyio.run(self.gossip.start, backend="trio")

    def sealed(self, *, sequence: int = 1, swarm: bytes = SWARM, body: Body | None = None, key: int = 2) -> bytes:
        return wire.seal(
            NodeKey(bytes([key]) * 32),
            swarm_id=swarm,
            sequence=sequence,
            time_seconds=self.now_seconds,
            body=body or Goodbye("bye"),
        )


def advert(number: int, completions: int = 8) -> GroupAdvert:
    return GroupAdvert(
        number.to_bytes(32, "big"),
        1000,
        PromptRef("reverse", 1, bytes(16), number),
        (1.0,) * completions,
        (64,) * completions,
        (-0.5,) * completions,
    )


def test_an_announcement_reaches_the_listeners_typed_and_is_counted() -> None:
    setting = Setting()
    assert setting.host.topic == gossip_topic(SWARM) == f"starling/1/{SWARM.hex()}"
    assert setting.host.arrive(setting.sealed()) is GossipVerdict.ACCEPT
    assert [a.body for a in setting.heard] == [Goodbye("bye")]
    assert setting.heard[0].sender == NodeKey(bytes([2]) * 32).peer_id
    assert setting.gossip.accepted == {"goodbye": 1}


def flipped(raw: bytes) -> bytes:
    return raw[:-1] + bytes([raw[-1] ^ 1])


@pytest.mark.parametrize(
    ("reason", "spoil", "verdict"),
    [
        ("malformed", lambda s: s.sealed()[:-20], GossipVerdict.REJECT),
        ("malformed", lambda s: b"", GossipVerdict.REJECT),
        ("oversized", lambda s: s.sealed() + bytes(limits.ANNOUNCEMENT_BYTES), GossipVerdict.REJECT),
        ("oversized", lambda s: b"\x91" * 1000 + b"\xc0", GossipVerdict.REJECT),
        ("signature", lambda s: flipped(s.sealed()), GossipVerdict.REJECT),
        ("wrong_swarm", lambda s: s.sealed(swarm=bytes(16)), GossipVerdict.REJECT),
        ("version", lambda s: msgspec.msgpack.encode((msgspec.msgpack.encode((2, 0)), b"")), GossipVerdict.REJECT),
    ],
)
def test_what_no_honest_peer_forwards_is_rejected(
    reason: str, spoil: Callable[[Setting], bytes], verdict: GossipVerdict
) -> None:
    setting = Setting()
    assert setting.host.arrive(spoil(setting)) is verdict
    assert setting.gossip.rejected == {reason: 1}
    assert not setting.heard


@pytest.mark.parametrize("late_seconds", [-2 * limits.CLOCK_WINDOW_SECONDS, 2 * limits.CLOCK_WINDOW_SECONDS])
def test_a_message_from_the_past_or_the_far_future_is_ignored(late_seconds: float) -> None:
    setting = Setting()
    raw = setting.sealed()
    setting.now_seconds += late_seconds
    assert setting.host.arrive(raw) is GossipVerdict.IGNORE
    assert setting.gossip.rejected == {"clock": 1}
    assert list(setting.gossip.refused_offsets.values()) == [pytest.approx(-late_seconds)]


def test_a_replay_is_ignored_and_counted() -> None:
    setting = Setting()
    assert setting.host.arrive(setting.sealed(sequence=5)) is GossipVerdict.ACCEPT
    assert setting.host.arrive(setting.sealed(sequence=5)) is GossipVerdict.IGNORE
    assert setting.host.arrive(setting.sealed(sequence=5, body=Heartbeat(*HEARTBEAT))) is GossipVerdict.IGNORE
    assert setting.gossip.rejected == {"replay": 2}
    assert len(setting.heard) == 1


HEARTBEAT = ("n", "s", "m", bytes(16), bytes(16), 0, 0, "p", 0.0, 0, 0, ())


def test_our_own_messages_that_come_back_are_neither_delivered_nor_held_against_anybody() -> None:
    setting = Setting()
    assert setting.host.arrive(setting.sealed(key=1)) is GossipVerdict.IGNORE
    assert not setting.heard
    assert not setting.gossip.rejected


def test_a_banned_sender_is_ignored() -> None:
    liar = NodeKey(bytes([2]) * 32).peer_id
    setting = Setting(is_banned=lambda peer: peer == liar)
    assert setting.host.arrive(setting.sealed()) is GossipVerdict.IGNORE
    assert setting.gossip.rejected == {"banned": 1}


def test_a_sender_above_its_rate_is_ignored_until_time_has_passed() -> None:
    setting = Setting()
    setting.now_seconds -= (setting.now_seconds + phase_seconds(NodeKey(bytes([2]) * 32).peer_id)) % RESERVE_SECONDS
    count = AT_ONCE + 5
    verdicts = [setting.host.arrive(setting.sealed(sequence=i)) for i in range(count)]
    assert verdicts.count(GossipVerdict.ACCEPT) == AT_ONCE
    assert setting.gossip.rejected == {"rate": 5}
    assert setting.host.arrive(setting.sealed(sequence=count, key=3)) is GossipVerdict.ACCEPT
    setting.now_seconds += UNPACED.slot_seconds
    assert setting.host.arrive(setting.sealed(sequence=count + 1)) is GossipVerdict.ACCEPT


def test_a_sender_that_signs_wrong_times_brings_no_more_at_once_than_two_slots_and_two_reserves() -> None:
    limits_of_senders = SenderLimits()
    window = int(limits.CLOCK_WINDOW_SECONDS)
    times = [NOW + ahead for ahead in range(-window, window) for _ in range(5)]
    refusals = [
        limits_of_senders.refusal("liar", number, 100, NOW, signed_seconds=signed, forwarder="liar")
        for number, signed in enumerate(times)
    ]
    assert refusals.count(None) == UNPACED.messages_at_once < len(times) / 10


def test_a_sender_is_limited_in_bytes_as_well_as_in_messages() -> None:
    limits_of_senders = SenderLimits()
    size = limits.ANNOUNCEMENT_BYTES
    refusals = [
        limits_of_senders.refusal("peer", i, size, NOW, signed_seconds=NOW, forwarder="forwarder") for i in range(20)
    ]
    assert refusals == [None] * 16 + ["rate"] * 4


def test_strangers_without_number_take_bounded_memory_and_are_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gossip_module, "SENDERS_REMEMBERED", 100)
    of_senders = SenderLimits()
    refusals = [
        of_senders.refusal(f"stranger {i}", 1, 100, NOW, signed_seconds=NOW, forwarder="forwarder") for i in range(5000)
    ]
    assert refusals.count(None) == gossip_module.NEWCOMERS_AT_ONCE
    assert set(refusals) == {None, "newcomers"}
    assert len(of_senders) == 100
    assert of_senders.refusal("another", 1, 100, NOW + 1.0, signed_seconds=NOW, forwarder="forwarder") is None


def test_forwarder_that_invents_senders_keeps_out_neither_itself_nor_those_of_another_forwarder() -> None:
    of_senders = SenderLimits()
    for number in range(5000):
        of_senders.refusal(f"invented {number}", 1, 100, NOW, signed_seconds=NOW, forwarder="sybil")
    assert of_senders.refusal("newcomer", 1, 100, NOW, signed_seconds=NOW, forwarder="sybil") == "newcomers"
    assert of_senders.refusal("newcomer", 1, 100, NOW, signed_seconds=NOW, forwarder="honest") is None
    assert of_senders.refusal("sybil", 1, 100, NOW, signed_seconds=NOW, forwarder="sybil") is None


def test_forwarders_without_number_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gossip_module, "FORWARDERS_REMEMBERED", 100)
    of_senders = SenderLimits()
    for number in range(500):
        of_senders.refusal(f"sender {number}", 1, 100, NOW, signed_seconds=NOW, forwarder=f"forwarder {number}")
    assert len(of_senders._newcomers_of) == 100


def test_body_of_a_sender_above_its_rate_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting()
    walked: list[wire.Envelope] = []
    open_body = wire.open_body

    def walk(envelope: wire.Envelope) -> Announcement:
        walked.append(envelope)
        return open_body(envelope)

    monkeypatch.setattr(wire, "open_body", walk)
    for sequence in range(2 * AT_ONCE):
        setting.host.arrive(setting.sealed(sequence=sequence))
    assert len(walked) == AT_ONCE


def test_the_replay_window_admits_each_number_once_in_any_order() -> None:
    random = Random(1)
    window = ReplayWindow()
    base = int(NOW * 1e6)
    numbers = list(range(base, base + 500))
    random.shuffle(numbers)
    assert all(window.admit(n) for n in numbers)
    assert not any(window.admit(n) for n in numbers)


def test_the_replay_window_refuses_everything_older_than_it_remembers() -> None:
    window = ReplayWindow()
    assert window.admit(10 * gossip_module.REPLAY_WINDOW)
    assert not window.admit(9 * gossip_module.REPLAY_WINDOW)
    assert window.admit(9 * gossip_module.REPLAY_WINDOW + 1)
    assert window.admit(2**62)
    assert not window.admit(10 * gossip_module.REPLAY_WINDOW + 1)


def test_a_restarted_node_announces_above_what_it_announced_before() -> None:
    before, now = Setting(), Setting()
    now.gossip = Gossip(now.host, now.key, SWARM, wall_clock=lambda: NOW + 1.0)  # type: ignore[arg-type]

    async def announce() -> None:
        for setting in (before, now):
            for _ in range(100):
                await setting.gossip.announce(Goodbye("bye"))

    anyio.run(announce, backend="trio")
    window = ReplayWindow()
    for raw in before.host.published + now.host.published:
        assert window.admit(wire.open_announcement(raw, swarm_id=SWARM, now_seconds=NOW).sequence)


def test_adverts_are_split_to_fit_an_announcement_and_lose_no_group() -> None:
    small = split_adverts(bytes(16), bytes(16), 3, [advert(i) for i in range(4)])
    assert len(small) == 1
    many = [advert(i, completions=64) for i in range(150)]
    parts = split_adverts(bytes(16), bytes(16), 3, many)
    assert [g.blob for part in parts for g in part.groups] == [g.blob for g in many]
    key = NodeKey(bytes([2]) * 32)
    for part in parts:
        raw = wire.seal(key, swarm_id=SWARM, sequence=2**60, time_seconds=NOW, body=part)
        arrived = wire.open_announcement(raw, swarm_id=SWARM, now_seconds=NOW).body
        assert isinstance(arrived, RolloutAdvert)
        assert arrived.groups == tuple(many[: len(part.groups)])
        many = many[len(part.groups) :]
    assert many == []
    assert split_adverts(bytes(16), bytes(16), 3, []) == []


def test_numbers_of_an_advert_travel_in_one_byte_or_five_and_arrive_as_floats() -> None:
    rewards, mean_logps = (0.0, 1.0, -3.0, float(np.float32(0.3)), 1000.0), (0.0, -1.0, -0.1, -1e-9, -9999.9)
    group = msgspec.structs.replace(advert(1, completions=5), rewards=rewards, mean_logps=mean_logps)
    (part,) = split_adverts(bytes(16), bytes(16), 3, [group])
    raw = wire.seal(NodeKey(bytes([2]) * 32), swarm_id=SWARM, sequence=1, time_seconds=NOW, body=part)
    arrived = wire.open_announcement(raw, swarm_id=SWARM, now_seconds=NOW).body
    assert isinstance(arrived, RolloutAdvert)
    (found,) = arrived.groups
    assert found.rewards == rewards
    assert found.mean_logps == tuple(float(np.float32(logp)) for logp in mean_logps)
    assert all(type(number) is float for number in found.rewards + found.mean_logps)
    saved = len(msgspec.msgpack.encode(group)) - len(msgspec.msgpack.encode(part.groups[0]))
    assert saved >= 8 * 6 + 4 * 4 - 4  # six whole numbers, of which -3 and 1000 take one and two bytes, and four others


def test_gossip_crosses_a_lossless_network_to_everybody_once_despite_duplicates() -> None:
    async def main() -> None:
        network = SimulatedNetwork(seed=7, duplicates=0.5)
        hosts = [network.host(f"node {i}") for i in range(5)]
        heard: list[list[Announcement]] = [[] for _ in hosts]
        async with anyio.create_task_group() as tasks:
            stop = anyio.Event()

            async def member(index: int, *, task_status: anyio.abc.TaskStatus[Gossip]) -> None:
                host = hosts[index]
                gossip = Gossip(host, host.key, SWARM, wall_clock=lambda: NOW + anyio.current_time())
                gossip.listen(heard[index].append)
                async with host.run():
                    await gossip.start()
                    task_status.started(gossip)
                    await stop.wait()

            members = [await tasks.start(member, i) for i in range(len(hosts))]
            for one, other in itertools.pairwise(hosts):
                await one.connect(other.addresses()[0], deadline_seconds=5.0)
            for round_ in range(10):
                await members[round_ % 5].announce(Goodbye(f"{round_}"))
                await anyio.sleep(1.0)
            await anyio.sleep(130.0)
            stop.set()
        for index, announcements in enumerate(heard):
            said = [a.body.reason for a in announcements if isinstance(a.body, Goodbye)]
            assert sorted(said) == sorted(str(r) for r in range(10) if r % 5 != index)
        assert sum(m.rejected["replay"] for m in members) > 0

    anyio.run(main, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})
