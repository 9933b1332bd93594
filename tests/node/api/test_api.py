"""The HTTP API over a made-up node, in this process: aiohttp's own client and server, on loopback."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import ClientSession, UnixConnector, web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families

from node.api import event_feed
from node.api.access import load_or_create_token
from node.api.answers import PHASES, escaped_event, escaped_swarm_status, health_of, waiting_for
from node.api.event_feed import EventFeed, message_of
from node.api.history import History
from node.api.metrics import MAX_LABEL_VALUES, metrics_text
from node.api.record import RunRecord
from node.api.run_changes import RunChanges
from node.api.server import application, served
from node.api.types import (
    ChildStatus,
    HealthAnswer,
    HistoryAnswer,
    NodeState,
    NodeStatus,
    PeersAnswer,
    PeerView,
)
from node.events import (
    CheckpointSaved,
    DeviceUsage,
    Fault,
    Loading,
    PhaseBegan,
    Phases,
    RoundDone,
    TurnsUsed,
    Usage,
    encode_event,
    kind_of,
)
from node.version import VERSION
from protocol.errors import IdentityError, StorageError, UnreachableError
from swarm.api import SwarmStatus
from tests.factories import round_done
from tests.hang_guard import HANG_SECONDS
from tests.node.api.asked import Asked

TOKEN = "t" * 43
SWARM = SwarmStatus(
    peer="12D3KooWx",
    swarm="starling",
    swarm_id="00",
    addresses=(),
    uptime_seconds=1.0,
    connected_peers=2,
    alone_because=None,
    sent_bytes=10,
    received_bytes=20,
    store_bytes=30,
    accepted={"heartbeat": 4},
    rejected={"clock": 1},
)
ROUND = round_done(
    time_seconds=1.0,
    reward_by_task={'odd"\\\nname': 0.5},
    turns_by_task={"grid": (TurnsUsed(2, 3, 3), TurnsUsed(6, 4, 1)), "lost": (TurnsUsed(6, 4, 0),)},
    success_by_task={"add": 0.75},
    foreign_rejected={"late": 2},
)


def peer(name: str, banned_because: str | None = None) -> PeerView:
    return PeerView(name, True, (), 0.01, None, None, 0, 0, 0, 1.0, banned_because)


class Node(Asked):
    """A made-up supervisor; ``stops`` holds the reasons of the requests to stop."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NodeStatus(
            version=VERSION,
            pid=1,
            home="/data",
            name="ann",
            peer="12D3KooWx",
            model="m",
            state=NodeState.TRAINING,
            uptime_seconds=5.0,
            swarm_process=ChildStatus(2, 0, None),
            learner_process=ChildStatus(3, 1, "it was killed"),
            swarm=SWARM,
            loading=None,
            ready=None,
            round=ROUND,
            checkpoint=CheckpointSaved(time_seconds=99.0, round=5, path="/data/c", size_bytes=1000, seconds=0.1),
            fault=None,
            notes=(),
            usage=Usage(
                time_seconds=99.0,
                supervisor_bytes=1,
                learner_bytes=2,
                swarm_bytes=None,
                sent_bytes_total=10,
                received_bytes_total=20,
            ),
        )
        self.record = RunRecord()

    def status(self) -> NodeStatus:
        return self.now

    def peers(self) -> PeersAnswer:
        return PeersAnswer((peer("ann"), peer("bob", "lies")))

    def change(self, **changes: Any) -> None:
        self.now = msgspec.structs.replace(self.now, **changes)


@asynccontextmanager
async def client_of(
    node: Node, feed: EventFeed | None = None, token: str | None = None
) -> AsyncIterator[TestClient[web.Request, web.Application]]:
    """A client of the API of ``node``, served for as long as the block runs."""
    async with TestClient(TestServer(application(node, feed or EventFeed(), token=token))) as client:
        yield client


async def test_status_and_peers_are_answered_as_json_that_decodes_to_their_types() -> None:
    node = Node()
    async with client_of(node) as client:
        async with client.get("/api/v1/status") as answer:
            assert answer.content_type == "application/json"
            assert msgspec.json.decode(await answer.read(), type=NodeStatus) == node.now
        async with client.get("/api/v1/peers") as answer:
            assert msgspec.json.decode(await answer.read(), type=PeersAnswer) == node.peers()


async def test_answers_that_take_long_are_made_one_at_a_time_and_hold_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node, released, under_way = Node(), threading.Event(), threading.Semaphore(1)
    made: list[int] = []
    empty = History().answer()

    def slow(points: int) -> HistoryAnswer:
        assert under_way.acquire(blocking=False), "two at once"
        assert released.wait(HANG_SECONDS)
        made.append(points)
        under_way.release()
        return empty

    monkeypatch.setattr(History, "excerpt", lambda _, points, **__: partial(slow, points))
    async with client_of(node) as client:

        async def ask(points: int) -> int:
            async with client.get(f"/api/v1/history?points={points}") as answer:
                return int(answer.status)

        asked = [asyncio.create_task(ask(points)) for points in (10, 20, 30)]
        for path in ("/api/v1/status", "/api/v1/openapi.json", "/metrics"):
            async with client.get(path) as answer:
                assert answer.status == 200
        assert made == []
        released.set()
        assert await asyncio.gather(*asked) == [200] * 3 and sorted(made) == [10, 20, 30]


async def test_what_reads_needs_no_token_and_what_changes_something_does() -> None:
    node = Node()
    async with client_of(node, token=TOKEN) as client:
        for path in ("/api/v1/status", "/api/v1/peers", "/health", "/metrics"):
            async with client.get(path) as answer:
                assert answer.status == 200
        for headers in (
            {},
            {"Authorization": TOKEN},
            {"Authorization": f"Bearer {TOKEN}x"},
            {"Authorization": "Bearer ü"},
        ):
            async with client.post("/api/v1/stop", headers=headers) as answer:
                assert answer.status == 401 and answer.headers["WWW-Authenticate"] == "Bearer"
                assert "api.token" in (await answer.json())["error"]
        assert node.stops == []
        async with client.post("/api/v1/stop", headers={"Authorization": f"Bearer {TOKEN}"}) as answer:
            assert await answer.json() == {"stopping": True}
        assert len(node.stops) == 1


async def test_pausing_and_resuming_need_the_token_and_answer_what_holds_from_now_on() -> None:
    node = Node()
    allowed = {"Authorization": f"Bearer {TOKEN}"}
    async with client_of(node, token=TOKEN) as client:
        for path in ("/api/v1/pause", "/api/v1/resume"):
            async with client.post(path) as answer:
                assert answer.status == 401
            async with client.get(path, headers=allowed) as answer:
                assert answer.status == 405
            for query in ("?seconds=0", "?seconds=soon", "?hours=2"):
                async with client.post(path + query, headers=allowed) as answer:
                    assert answer.status == 400 and "seconds" in (await answer.json())["error"]
        assert node.stops == []
        async with client.post("/api/v1/pause?seconds=60", headers=allowed) as answer:
            expected = {"since": 100.0, "because": "asked by its owner", "until": 160.0}
            assert await answer.json() == {"paused": expected}
        async with client.post("/api/v1/pause?at_once=true", headers=allowed) as answer:
            assert (await answer.json())["paused"]["until"] is None
        async with client.post("/api/v1/resume?seconds=5", headers=allowed) as answer:
            assert await answer.json() == {"paused": None}
        assert node.stops == ["pause for 60.0, at once False", "pause for None, at once True", "resume for 5.0"]


async def test_a_request_addressed_to_another_host_is_refused_also_with_the_token() -> None:
    node = Node()
    async with client_of(node, token=TOKEN) as client:
        headers = {"Host": "evil.example:80", "Authorization": f"Bearer {TOKEN}"}
        async with client.get("/api/v1/status", headers=headers) as answer:
            assert answer.status == 403 and "127.0.0.1" in (await answer.json())["error"]
        async with client.post("/api/v1/stop", headers=headers) as answer:
            assert answer.status == 403
        async with client.get("/api/v1/status", headers={"Host": "localhost:9999"}) as answer:
            assert answer.status == 200  # as through a tunnel
    assert node.stops == []


@pytest.mark.parametrize(
    ("changes", "healthy"),
    [
        ({}, True),
        ({"state": NodeState.STARTING, "swarm": None}, True),
        ({"swarm": None}, False),
        ({"hangs": "nothing for 75 s"}, False),
        ({"state": NodeState.RECOVERING}, False),
        ({"state": NodeState.STOPPING}, False),
    ],
)
async def test_health_is_503_with_the_reason_where_the_node_is_not_healthy(
    changes: dict[str, Any], healthy: bool
) -> None:
    node = Node()
    node.change(**changes)
    async with client_of(node) as client, client.get("/health") as answer:
        health = msgspec.json.decode(await answer.read(), type=HealthAnswer)
        assert answer.status == (200 if healthy else 503)
        assert health == health_of(node.now) and (health.healthy, health.state) == (healthy, node.now.state)
        assert (health.because is None) == healthy
        if node.now.state is NodeState.RECOVERING:
            assert health.because is not None and "it was killed" in health.because  # how the learner ended


@pytest.mark.parametrize(
    ("done", "began", "round_name", "phase"),
    [
        (None, None, "first round", None),
        (ROUND, None, "round 8", None),
        (ROUND, (8, "collect"), "round 8", "collect"),
        (ROUND, (7, "publish"), "round 8", None),  # of the round before
        (ROUND, (8, "one that a later version adds"), "round 8", None),
    ],
)
def test_a_training_node_names_its_round_and_the_phase_of_it(
    done: RoundDone | None, began: tuple[int, str] | None, round_name: str, phase: str | None
) -> None:
    newest = None if began is None else PhaseBegan(time_seconds=1.0, round=began[0], phase=began[1])
    text = waiting_for(NodeState.TRAINING, None, done, newest)
    assert text.startswith(round_name)
    assert [name for name, words in PHASES.items() if words in text] == ([] if phase is None else [phase])
    assert set(PHASES) == {*Phases.__struct_fields__, "evaluate"}


def test_a_node_that_does_not_train_names_its_state_and_never_a_phase() -> None:
    began = PhaseBegan(time_seconds=1.0, round=8, phase="learn")
    loading = Loading(time_seconds=1.0, what="policy", seconds=1.0)
    texts = {state: waiting_for(state, None, ROUND, began) for state in NodeState if state is not NodeState.TRAINING}
    assert len(set(texts.values())) == len(texts) and all(texts.values())
    assert not any(words in text for text in texts.values() for words in PHASES.values())
    assert "policy" in waiting_for(NodeState.STARTING, loading, None)
    later = waiting_for(NodeState.STARTING, loading, None, now_seconds=loading.time_seconds + 40.0)
    assert f"({loading.seconds + 40.0:.1f} s since" in later  # it does not stand still while a large model loads


def test_what_may_quote_a_peer_is_escaped_before_anybody_reads_it() -> None:
    hostile = "\x1b[31m\u202e\n"
    fault = Fault(time_seconds=1.0, kind="transport", detail=hostile, round=1, fatal=False)
    lonely = msgspec.structs.replace(ROUND, alone_because=hostile, reward_by_task={})
    shown = encode_event(escaped_event(fault)) + encode_event(escaped_event(lonely))
    shown += msgspec.json.encode(escaped_swarm_status(msgspec.structs.replace(SWARM, alone_because=hostile)))
    shown += msgspec.json.encode(escaped_swarm_status(msgspec.structs.replace(SWARM, other_swarm=hostile)))
    assert not any(mark in shown.decode() for mark in ("\x1b", "\\u001b", "\u202e", "\\n"))
    assert escaped_event(ROUND) is ROUND and escaped_swarm_status(SWARM) is SWARM


def samples_of(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_metrics_are_read_by_prometheus_with_their_labels_escaped() -> None:
    async with client_of(Node()) as client:
        async with client.get("/metrics") as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            samples = samples_of(await answer.text())
        for name, value in {
            ("starling_build_info", VERSION): 1,
            ("starling_rounds_total",): 7,
            ("starling_generated_tokens_total",): 700,
            ("starling_task_reward", 'odd"\\\nname'): 0.5,
            ("starling_task_won_turns", "grid"): 3,
            ("starling_round_phase_seconds", "learn"): 0.2,
            ("starling_state", "training"): 1,
            ("starling_state", "stopping"): 0,
            ("starling_process_restarts_total", "learner"): 1,
            ("starling_peers_known",): 2,
            ("starling_peers_banned",): 1,
            ("starling_peers_connected",): 2,
            ("starling_announcements_rejected_total", "clock"): 1,
            ("starling_checkpoint_timestamp_seconds",): 99,
            ("starling_memory_bytes", "learner"): 2,
        }.items():
            assert samples[name] == value, name
        assert ("starling_gained_from_others",) not in samples  # no round was recorded
        assert ("starling_task_won_turns", "lost") not in samples
        assert ("starling_loss",) not in samples  # there was no step
        assert ("starling_memory_bytes", "swarm") not in samples  # it does not run


def test_metrics_name_what_came_from_others_what_was_lost_and_the_gpu() -> None:
    node, changes = Node(), RunChanges()
    for number in range(1, 161):
        rewards = {"add": float(number > 2), "sort": 0.8 if number <= 80 else 0.1}
        masses = {"add": {"bob": 1.0}, "sort": {"self": 1.0}}
        done = round_done(number, reward_by_task=rewards, gradient_mass_by_task=masses)
        changes.add(done)
    assert node.now.usage is not None
    device = DeviceUsage("a GPU", 1 << 30, 2 << 30, 0.5, None, 300.0)
    node.change(usage=msgspec.structs.replace(node.now.usage, device=device))
    samples = samples_of(metrics_text(node.now, PeersAnswer(()), changes.gains()))
    assert samples["starling_task_gain_from_others", "add"] == pytest.approx(1.0, abs=0.01)
    assert samples[("starling_gained_from_others",)] == pytest.approx(0.5, abs=0.01)
    assert samples[("starling_tasks_lost",)] == 1 and samples["starling_task_lost", "add"] == 0
    assert samples["starling_task_lost", "sort"] == pytest.approx(0.7, abs=0.01)
    assert samples["starling_task_success_best", "sort"] == pytest.approx(0.8, abs=0.01)
    assert samples[("starling_device_memory_used_bytes",)] == 1 << 30
    assert samples[("starling_device_utilization_ratio",)] == 0.5
    assert ("starling_device_power_watts",) not in samples  # its driver does not report it


def test_metrics_of_a_node_that_has_only_begun_are_those_that_are_known() -> None:
    node = Node()
    node.change(state=NodeState.STARTING, swarm=None, round=None, checkpoint=None)
    samples = samples_of(metrics_text(node.now, PeersAnswer(())))
    assert samples[("starling_peers_known",)] == 0 and ("starling_rounds_total",) not in samples


def test_metrics_do_not_grow_with_peers_and_take_few_values_for_a_label() -> None:
    node = Node()
    node.change(round=msgspec.structs.replace(ROUND, reward_by_task={f"task {n}": 0.0 for n in range(1000)}))
    few = metrics_text(node.now, PeersAnswer((peer("x"),)))
    many = metrics_text(node.now, PeersAnswer(tuple(peer(f"peer {n}") for n in range(1000))))
    assert len(few.splitlines()) == len(many.splitlines()) and "peer 9" not in many
    assert many.count("starling_task_reward{") == MAX_LABEL_VALUES


async def next_event(stream: Any) -> dict[str, str]:
    """The next server-sent event that is not a bare instruction."""
    fields: dict[str, str] = {}
    while True:
        line = (await stream.readline()).decode().rstrip("\n")
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "event" in fields:
            return fields
        else:
            fields = {}


async def test_a_reader_of_events_gets_the_state_at_once_and_then_what_happens_in_order() -> None:
    node, feed = Node(), EventFeed()
    async with client_of(node, feed) as client:
        feed.publish("note", b'"nobody reads yet"')
        async with client.get("/api/v1/events") as answer:
            assert answer.content_type == "text/event-stream"
            first = await next_event(answer.content)
            assert first["event"] == "status" and json.loads(first["data"])["name"] == "ann"
            feed.publish(kind_of(ROUND), encode_event(ROUND))
            feed.publish("note", b'"ending"')
            done, note = await next_event(answer.content), await next_event(answer.content)
            assert done["event"] == "round" and json.loads(done["data"])["round"] == 7
            assert note == {"id": "3", "event": "note", "data": '"ending"'}
            feed.close()
            assert await answer.content.read() == b""
    assert feed.readers == 0


async def test_a_slow_reader_is_dropped_and_the_others_miss_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "MAX_QUEUED_EVENTS", 4)
    feed, body = EventFeed(), b'"%s"' % (b"x" * 100_000)

    async def received_by(loop: asyncio.AbstractEventLoop, slow: socket.socket) -> bytes:
        try:
            return await loop.sock_recv(slow, 1 << 20)
        except ConnectionResetError:
            return b""

    async def read_big(stream: Any) -> dict[str, str]:
        whole = await stream.readuntil(b"\n\n")
        return dict(line.split(": ", 1) for line in whole.decode().strip().split("\n"))

    async with client_of(Node(), feed) as client:
        loop = asyncio.get_running_loop()
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            await loop.sock_connect(slow, ("127.0.0.1", client.server.port))
            await loop.sock_sendall(slow, b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with client.get("/api/v1/events") as answer:
                await next_event(answer.content)
                received = await loop.sock_recv(slow, 1)  # it is being served; it reads no further
                assert feed.readers == 2
                published = 0
                while not feed.dropped:
                    published += 1
                    feed.publish("big", body)
                    assert published == int((await read_big(answer.content))["id"])
                assert (feed.readers, feed.dropped) == (1, 1)
                feed.publish("big", body)
                assert int((await read_big(answer.content))["id"]) == published + 1
            while part := await received_by(loop, slow):
                received += part
            assert b"event: status" in received and received.count(b"event: big") < published


async def test_no_more_readers_than_are_allowed_and_none_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "MAX_READERS", 1)
    feed = EventFeed()
    async with client_of(Node(), feed) as client, client.get("/api/v1/events") as answer:
        await next_event(answer.content)
        async with client.get("/api/v1/events") as refused:
            assert refused.status == 503 and (await refused.json())["error"]
        feed.close()
        async with client.get("/api/v1/events") as refused:
            assert refused.status == 503


async def test_a_reader_that_leaves_is_forgotten_with_the_next_events() -> None:
    feed = EventFeed()
    async with client_of(Node(), feed) as client:
        answer = await client.get("/api/v1/events")
        await next_event(answer.content)
        assert feed.readers == 1
        answer.close()
        while feed.readers:
            feed.publish("note", b'"anybody there?"')
            await asyncio.sleep(0)
    assert feed.dropped == 0


def test_a_message_without_a_number_has_no_id() -> None:
    assert message_of("note", b"{}") == b"event: note\ndata: {}\n\n"


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="st-") as root:  # short: a Unix socket's path has few bytes
        yield Path(root)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


async def test_the_socket_asks_for_no_token_the_port_does_and_readers_do_not_delay_the_end(folder: Path) -> None:
    node, feed, port = Node(), EventFeed(), free_port()
    async with served(node, feed, folder / "s", ports=(port,), token=TOKEN), ClientSession() as client:
        async with ClientSession(connector=UnixConnector(str(folder / "s"))) as local:
            async with local.post("http://localhost/api/v1/stop") as answer:
                assert answer.status == 200
            async with local.get("http://localhost/health") as answer:
                assert answer.status == 200
        async with client.post(f"http://127.0.0.1:{port}/api/v1/stop") as answer:
            assert answer.status == 401
        reading = await client.get(f"http://127.0.0.1:{port}/api/v1/events")
        await next_event(reading.content)
        feed.close()
        assert await reading.content.read() == b""
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    assert len(node.stops) == 1


async def test_the_next_free_port_is_taken_and_where_none_is_free_it_fails_and_nothing_stays_open(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        free = free_port()
        async with served(Node(), EventFeed(), folder / "s", ports=(port, free), token=TOKEN) as taken_port:
            assert taken_port == free
        with pytest.raises(UnreachableError, match=f"{port}.*api.port"):
            async with served(Node(), EventFeed(), folder / "s", ports=(port,), token=TOKEN):
                raise AssertionError("served on a taken port")
    with pytest.raises(ValueError, match="token"):
        async with served(Node(), EventFeed(), folder / "s", ports=(1,)):
            raise AssertionError("served without a token")
    with pytest.raises(FileNotFoundError):
        await asyncio.open_unix_connection(folder / "s")


def test_a_token_is_made_once_for_its_owner_alone(folder: Path) -> None:
    path = folder / "api.token"
    token = load_or_create_token(path)
    assert len(token) >= 43 and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_or_create_token(path) == token
    assert load_or_create_token(folder / "other") != token


def test_a_token_that_others_can_read_or_that_is_short_is_refused_with_the_remedy(folder: Path) -> None:
    path = folder / "api.token"
    load_or_create_token(path)
    path.chmod(0o644)
    with pytest.raises(IdentityError, match=rf"{path}.*644.*delete"):
        load_or_create_token(path)
    path.chmod(0o600)
    path.write_text("secret\n")
    with pytest.raises(IdentityError, match=rf"{path}.*\b6\b.*delete"):
        load_or_create_token(path)
    with pytest.raises(StorageError, match=str(folder / "none" / "api.token")):
        load_or_create_token(folder / "none" / "api.token")
