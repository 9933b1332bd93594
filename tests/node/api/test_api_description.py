"""The API as its own description says: every endpoint over a real socket, asked for right and wrong by schemathesis."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec
import pytest
import schemathesis
from aiohttp.test_utils import TestServer
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from node.api.answers import peer_view
from node.api.endpoints import ENDPOINTS
from node.api.event_feed import EventFeed
from node.api.openapi import description
from node.api.record import RunRecord
from node.api.server import application
from node.api.types import (
    ChildStatus,
    JoinLine,
    NodeState,
    NodeStatus,
    PeersAnswer,
    RolloutsAnswer,
    SamplesAnswer,
    SwarmAnswer,
)
from node.events import (
    CheckpointSaved,
    Fault,
    ForeignGroups,
    GroupOutcome,
    LearnerReady,
    Loading,
    NamedPeer,
    PeersChanged,
    RoundDone,
    SampledAnswer,
    SampledGroup,
    Samples,
    Usage,
)
from node.printable import printable, printable_lines
from node.version import SOFTWARE, VERSION
from protocol.messages import Heartbeat, TaskSuccess
from swarm.api import ExchangeStatus, PeerStatus, SwarmStatus
from tests.factories import round_done
from tests.hang_guard import HANG_SECONDS
from tests.node.api.asked import Asked

TOKEN = "t" * 43
HOSTILE = "\x1b[31m<script>\u202e\n"
EXAMPLES = 25  # of each endpoint, right and wrong


def full_round(number: int) -> RoundDone:
    return round_done(
        number,
        time_seconds=100.0 + number,
        reward_by_task={"add": 0.5},
        success_by_task={"add": 0.75},
        samples_by_task={"add": 80},
        own_groups=8,
        own_groups_informative=3,
        foreign_groups_replayed=1,
        foreign_rejected={"stale": 2, "false_reward": 1},
        foreign_fetched=2,
        foreign_waiting=3,
        loss=0.1 if number % 2 else None,
        divergence_by_peer={"self": 0.1},
        gradient_mass_by_task={"add": {"self": 1.0, "12D3KooWbob": 2.0}},
    )


def recorded() -> RunRecord:
    record = RunRecord()
    for number in range(1, 700):
        record.add(full_round(number))
        record.add(
            Usage(
                time_seconds=100.0 + number,
                supervisor_bytes=1,
                learner_bytes=None,
                swarm_bytes=3,
                sent_bytes_total=number,
                received_bytes_total=None,
            )
        )
    outcome = GroupOutcome("12D3KooWbob", "add", 8, 0.5, 0.5, "false_reward", f"claimed 1 {HOSTILE}")
    counts = {"12D3KooWbob": {"used": 3, "false_reward": 1}}
    record.add(ForeignGroups(time_seconds=800.0, round=699, by_peer=counts, groups=(outcome,)))
    bob = NamedPeer("12D3KooWbob", printable(HOSTILE), "wren")
    record.add(PeersChanged(time_seconds=801.0, round=699, came=(bob,), left=(), came_total=1, left_total=0, present=1))
    answers = (SampledAnswer(printable_lines(f"15\n{HOSTILE}", 600), False, 1.0), SampledAnswer("7", False, 0.0))
    ours = SampledGroup(None, "add", "12+3=", "15", answers, 8, 0.25)
    theirs = SampledGroup("12D3KooWbob", "add", "1+1=", "2", answers, 4, 0.5)
    record.add(Samples(time_seconds=802.0, round=699, ours=ours, learnt_from=theirs))
    record.add(Samples(time_seconds=803.0, round=700, ours=ours, learnt_from=None))
    return record


class Node(Asked):
    """A made-up node with a value in every field."""

    def __init__(self) -> None:
        self.record = recorded()
        super().__init__()
        self.broken = False

    def status(self) -> NodeStatus:
        if self.broken:
            raise RuntimeError("a bug of ours")
        return NodeStatus(
            version=VERSION, pid=1, home="/data", name="ann", peer="12D3KooWann", model="builtin:wren",
            state=NodeState.TRAINING, uptime_seconds=5.0, swarm_process=ChildStatus(2, 0, None),
            learner_process=ChildStatus(3, 1, "it was killed"),
            swarm=SwarmStatus(
                "12D3KooWann", "starling", "00", ("/ip4/127.0.0.1/tcp/1",), 1.0, 2, None, 10, 20, 30,
                {"heartbeat": 4}, {"clock": 1, "rate": 7},
            ),
            loading=Loading(time_seconds=1.0, what="policy", seconds=1.0),
            ready=LearnerReady(
                time_seconds=2.0, model="wren", family="77" * 16, tokenizer="77" * 16, parameters=9,
                trainable_parameters=9, device="cpu", dtype="float32", tasks=("add",), round=0, checkpoint=None,
                seconds=2.0,
            ),
            round=full_round(699),
            checkpoint=CheckpointSaved(time_seconds=99.0, round=5, path="/data/c", size_bytes=1000, seconds=0.1),
            fault=Fault(time_seconds=3.0, kind="transport", detail="away", round=3, fatal=False),
            notes=("a note",),
            gained=self.record.changes.gains().sentence,
            losses=self.record.changes.losses,
            join=JoinLine(False, (f"starling up --peer {printable(HOSTILE)}",), None, True),
            waiting_for="round 700 under way",
        )  # fmt: skip

    def peers(self) -> PeersAnswer:
        beat = Heartbeat(
            HOSTILE, SOFTWARE, "wren", b"w" * 16, b"w" * 16, 3, 3, "learning", 10.0, 4, 2,
            (TaskSuccess("add", 0.5, 10), TaskSuccess(HOSTILE, 0.5, 10)),
        )  # fmt: skip
        exchange = ExchangeStatus("12D3KooWbob", 1.0, 2.0, False, HOSTILE, 3, 4)
        known = PeerStatus(
            "12D3KooWbob", True, (HOSTILE,), 0.01, beat, 1.0, 4, 3, 1, 0.9, None, 0.5, 1, 1, exchange, 5,
            {"used": 3, "false_reward": 1}, True,
        )  # fmt: skip
        banned = PeerStatus("12D3KooWeve", False, (), None, None, None, 0, 0, 0, 0.0, f"lies {HOSTILE}")
        return PeersAnswer((peer_view(known, self.record.rollouts.outcomes_of(known.peer)), peer_view(banned)))


class Served:
    """The application on a port of 127.0.0.1, on a thread and a loop of its own."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(HANG_SECONDS)
        self.url = f"http://127.0.0.1:{self.port}"

    async def _start(self) -> int:
        self._server = TestServer(application(self.node, EventFeed(), token=TOKEN))
        await self._server.start_server()
        assert self._server.port is not None
        return self._server.port

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._server.close(), self._loop).result(HANG_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(HANG_SECONDS)
        self._loop.close()

    def get(self, path: str, method: str = "GET") -> tuple[int, str, bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=HANG_SECONDS)
        try:
            connection.request(method, path, headers={"Authorization": f"Bearer {TOKEN}"})
            answer = connection.getresponse()
            return answer.status, answer.headers["Content-Type"], answer.read()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    server = Served(Node())
    yield server
    server.close()


@pytest.fixture(scope="module")
def operations(served: Served) -> dict[str, Any]:
    """By path."""
    schema = schemathesis.openapi.from_dict(json.loads(served.get("/api/v1/openapi.json")[2]))
    found: list[Any] = [operation.ok() for operation in schema.get_all_operations()]  # type: ignore[union-attr]
    return {operation.path: operation for operation in found}


# Server-sent events never end, so a client that reads whole answers cannot read them; test_api.py does.
WHOLE = [endpoint for endpoint in ENDPOINTS if endpoint.content_type != "text/event-stream"]
ASKED = [(endpoint.path, GenerationMode.POSITIVE) for endpoint in WHOLE]
ASKED += [(endpoint.path, GenerationMode.NEGATIVE) for endpoint in WHOLE if endpoint.query]  # others take nothing


@pytest.mark.parametrize(("path", "mode"), ASKED)
def test_each_endpoint_keeps_to_its_description_whatever_it_is_asked(
    served: Served, operations: dict[str, Any], path: str, mode: GenerationMode
) -> None:

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operations[path].as_strategy(generation_mode=mode))
    def keeps_to_it(case: schemathesis.Case[Any]) -> None:
        case.call_and_validate(served.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=HANG_SECONDS)

    keeps_to_it()


def test_the_description_names_every_route_and_its_types_and_follows_the_standard(served: Served) -> None:
    status, content_type, raw = served.get("/api/v1/openapi.json")
    document = json.loads(raw)
    assert (status, content_type) == (200, "application/json") and document["openapi"] == "3.1.0"
    schemathesis.openapi.from_dict(document).validate()
    assert set(document["paths"]) == {endpoint.path for endpoint in ENDPOINTS}
    for endpoint in ENDPOINTS:
        answers = document["paths"][endpoint.path][endpoint.method.lower()]["responses"]
        if endpoint.answer is not None:
            (body,) = answers["200"]["content"].values()
            assert body["schema"]["$ref"].endswith(f"/{endpoint.answer.__name__}")
    assert "401" in document["paths"]["/api/v1/stop"]["post"]["responses"]
    referred = set(_references(document))
    assert referred <= {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert document == msgspec.json.decode(msgspec.json.encode(description(ENDPOINTS)))


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from _references(each)
    elif isinstance(value, list):
        for each in value:
            yield from _references(each)


def test_no_answer_holds_text_of_a_peer_that_could_do_harm_on_a_terminal(served: Served) -> None:
    for endpoint in WHOLE:
        if endpoint.method == "GET":
            text = served.get(endpoint.path)[2].decode()
            assert not any(mark in text for mark in ("\x1b", "\\u001b", "\u202e")), endpoint.path


def test_a_sample_says_whose_its_answers_are_and_keeps_the_newest_of_each(served: Served) -> None:
    answer = msgspec.json.decode(served.get("/api/v1/samples")[2], type=SamplesAnswer)
    assert (answer.round, answer.learnt_round) == (700, 699)
    assert answer.ours is not None and answer.learnt_from is not None
    assert (answer.ours.whose, answer.ours.peer, answer.ours.model) == ("ours", None, "builtin:wren")
    assert (answer.learnt_from.whose, answer.learnt_from.peer) == ("peer", "12D3KooWbob")
    assert answer.learnt_from.model == "wren" and "\\x1b" in (answer.learnt_from.name or "")
    assert [each.right for each in answer.ours.answers] == [True, False]
    assert answer.ours.answers[0].text.startswith("15\n")


def test_the_code_to_join_by_is_an_image_and_without_a_command_there_is_none(served: Served) -> None:
    status, content_type, raw = served.get("/api/v1/join.svg")
    assert (status, content_type) == (200, "image/svg+xml") and raw.startswith(b"<svg")


def test_rollouts_say_in_words_why_groups_were_not_used(served: Served) -> None:
    answer = msgspec.json.decode(served.get("/api/v1/rollouts")[2], type=RolloutsAnswer)
    assert answer.rounds[-1].round == 699 and answer.rounds[-1].fetched == 2 and answer.rounds[-1].waiting == 3
    assert [(each.reason, each.count) for each in answer.not_used] == [("stale", 1398), ("false_reward", 699)]
    assert all(reason.because for reason in answer.not_used)
    assert [(each.reason, each.count) for each in answer.announcements_not_taken] == [("rate", 7), ("clock", 1)]
    (group,) = answer.groups
    assert (group.peer, group.task, group.outcome) == ("12D3KooWbob", "add", "false_reward")
    assert group.because == answer.words["false_reward"]
    assert group.detail is not None and "\\x1b[31m" in group.detail
    assert group.name is not None and "\\x1b" in group.name


def test_the_swarm_counts_peers_and_each_peer_has_its_outcomes_and_conduct(served: Served) -> None:
    swarm = msgspec.json.decode(served.get("/api/v1/swarm")[2], type=SwarmAnswer)
    assert (swarm.nodes, swarm.banned, swarm.silent) == (2, 1, 0)
    bob, eve = msgspec.json.decode(served.get("/api/v1/peers")[2], type=PeersAnswer).peers
    assert bob.outcomes == {"used": 3, "false_reward": 1} and bob.groups_fetched == 5 and bob.conduct["used"] == 3
    assert bob.last_exchange is not None and "\\x1b" in bob.last_exchange.because
    assert eve.banned_because is not None and "lies" in eve.banned_because


@pytest.mark.parametrize(
    "query",
    ["points=1", "points=501", "points=x", "points=", "seconds=0", "seconds=nan", "point=5", "points=5&points=6"],
)
def test_a_query_that_cannot_be_is_refused_with_its_reason(served: Served, query: str) -> None:
    status, content_type, raw = served.get(f"/api/v1/history?{query}")
    assert (status, content_type) == (400, "application/json")
    assert "query" in json.loads(raw)["error"]


def test_an_unknown_address_and_a_wrong_method_are_refused_as_json(served: Served) -> None:
    for path, method, expected in (("/api/v1/none", "GET", 404), ("/api/v1/status", "DELETE", 405)):
        status, content_type, raw = served.get(path, method)
        assert (status, content_type) == (expected, "application/json") and json.loads(raw)["error"]


def test_a_bug_in_one_answer_is_logged_and_hidden_and_the_others_go_on(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.node.broken = True
    try:
        status, _, raw = served.get("/api/v1/status")
        assert status == 500 and json.loads(raw)["error"] and "a bug of ours" not in raw.decode()
        assert "a bug of ours" in caplog.text
        assert served.get("/api/v1/peers")[0] == served.get("/api/v1/history")[0] == 200
    finally:
        served.node.broken = False


def test_the_documentation_names_every_endpoint() -> None:
    text = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
    assert [endpoint.path for endpoint in ENDPOINTS if f"`{endpoint.path}`" not in text] == []
