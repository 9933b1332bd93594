"""The summary of the swarm: a pure function of heartbeats, bounded and harmless whatever strangers announce."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.api import swarm_summary
from node.api.answers import peer_view
from node.api.links import STALE_SECONDS
from node.api.swarm_summary import swarm_answer
from node.api.types import ChildStatus, NodeState, NodeStatus, PeersAnswer, SwarmAnswer
from node.cli.wording import peer_lines
from node.events import LearnerReady, RoundDone
from node.version import SOFTWARE, VERSION
from protocol import limits
from protocol.messages import RELAYING, Heartbeat, TaskSuccess
from swarm.api import PeerStatus
from tests.examples import examples
from tests.factories import round_done

WREN, ROBIN = b"w" * 16, b"r" * 16
HOSTILE = "\x1b[31m<script>\u202e\n"


def heartbeat(
    name: str = "bob",
    model: str = "wren",
    family: bytes = WREN,
    tasks: tuple[TaskSuccess, ...] = (),
    rate: float = 10.0,
) -> Heartbeat:
    return Heartbeat(name, SOFTWARE, model, family, family, 3, 3, "learning", rate, 4, 2, tasks)


def peer(
    beat: Heartbeat | None, *, age_seconds: float = 1.0, banned_because: str | None = None, connected: bool = True
) -> PeerStatus:
    return PeerStatus(
        "12D3KooWx", connected, (), 0.01, beat, None if beat is None else age_seconds, 4, 3, 1, 0.9, banned_because
    )


DONE = round_done(policy_version=6, samples_by_task={"add": 100})


READY = LearnerReady(
    time_seconds=0.0, model="builtin:wren", family=WREN.hex(), tokenizer=WREN.hex(), parameters=10,
    trainable_parameters=10,
    device="cpu", dtype="float32", tasks=("add",), round=0, checkpoint=None, seconds=1.0,
)  # fmt: skip


def status(ready: LearnerReady | None = READY, done: RoundDone | None = None) -> NodeStatus:
    child = ChildStatus(12, 0, None)
    return NodeStatus(
        version=VERSION, pid=1, home="/h", name="ann", peer="12D3KooWann", model="wren",
        state=NodeState.TRAINING, uptime_seconds=9.0, swarm_process=child, learner_process=child, swarm=None,
        loading=None, ready=ready, round=done, checkpoint=None, fault=None, notes=(),
    )  # fmt: skip


def seen(*peers: PeerStatus) -> PeersAnswer:
    return PeersAnswer(tuple(map(peer_view, peers)))


def test_models_and_tasks_are_weighted_by_samples_and_this_node_counts_too() -> None:
    peers = seen(
        peer(heartbeat("bob", tasks=(TaskSuccess("add", 0.8, 300), TaskSuccess("sort", 0.1, 50)))),
        peer(heartbeat("eve", "robin", ROBIN, (TaskSuccess("add", 0.2, 100),), rate=30.0)),
    )
    answer = swarm_answer(status(done=DONE), peers)
    wren, robin = answer.models
    assert (wren.model, wren.nodes, wren.names, wren.ours) == ("wren", 2, ("ann", "bob"), True)
    assert wren.success_by_task["add"] == pytest.approx((0.5 * 100 + 0.8 * 300) / 400)
    assert wren.success == pytest.approx((0.5 * 100 + 0.8 * 300 + 0.1 * 50) / 450)
    assert (robin.model, robin.nodes, robin.ours, robin.tokens_per_second) == ("robin", 1, False, 30.0)
    add, sort = answer.tasks
    assert (add.task, add.nodes, add.samples) == ("add", 3, 500)
    assert add.success == pytest.approx((0.5 * 100 + 0.8 * 300 + 0.2 * 100) / 500)
    assert (add.success_least, add.success_most, add.best_name, add.best_model) == (0.2, 0.8, "bob", "wren")
    assert (sort.task, sort.nodes) == ("sort", 1)
    assert answer.tokens_per_second == 240.0 and answer.groups_offered == 17
    assert answer.software == {SOFTWARE: 3} and answer.phases == {"learning": 2, "training": 1}
    assert answer.families == {WREN.hex(): 2, ROBIN.hex(): 1}


def test_before_its_learner_has_loaded_a_node_without_peers_reports_no_node() -> None:
    answer = swarm_answer(status(ready=None), seen())
    assert (answer.nodes, answer.models, answer.tasks, answer.tokens_per_second) == (0, (), (), 0.0)


def test_a_relay_is_a_node_of_the_swarm_and_trains_no_model() -> None:
    relay = Heartbeat("door", SOFTWARE, "", bytes(16), bytes(16), 0, 0, RELAYING, 0.0, 0, 0, ())
    answer = swarm_answer(status(done=DONE), seen(peer(heartbeat()), peer(relay)))
    assert (answer.nodes, answer.phases[RELAYING]) == (3, 1)
    assert [model.model for model in answer.models] == ["wren"]
    assert sum(answer.families.values()) == 2
    assert "door  relays, trains nothing" in peer_lines([peer_view(peer(relay))])[0]


def test_a_silent_and_a_banned_peer_are_counted_and_their_claims_ignored() -> None:
    peers = seen(
        peer(heartbeat("old"), age_seconds=STALE_SECONDS + 1),
        peer(None, connected=False),
        peer(heartbeat("liar"), banned_because="false rewards"),
        peer(heartbeat("bob")),
    )
    answer = swarm_answer(status(), peers)
    assert (answer.nodes, answer.silent, answer.banned, answer.connected) == (2, 2, 1, 3)
    assert {name for model in answer.models for name in model.names} == {"ann", "bob"}


def test_one_claim_of_endless_samples_does_not_outweigh_all_others() -> None:
    honest = [peer(heartbeat(f"h{i}", tasks=(TaskSuccess("add", 0.2, 1000),))) for i in range(9)]
    answer = swarm_answer(status(), seen(*honest, peer(heartbeat("liar", tasks=(TaskSuccess("add", 1.0, 2**63 - 1),)))))
    (add,) = answer.tasks
    assert add.success == pytest.approx(0.28) and add.samples == 10 * swarm_summary.MAX_SAMPLES


def test_a_claim_without_samples_is_no_claim() -> None:
    answer = swarm_answer(status(), seen(peer(heartbeat(tasks=(TaskSuccess("add", 1.0, 0),)))))
    assert answer.tasks == () and answer.models[0].success_by_task == {}


def test_two_thousand_strangers_with_names_of_their_own_make_a_bounded_and_escaped_answer() -> None:
    strangers = [
        peer(
            heartbeat(
                f"{i}{HOSTILE}" + "n" * 40,
                f"{i}{HOSTILE}",
                i.to_bytes(16),
                tuple(TaskSuccess(f"{i}-{j}{HOSTILE}", 0.5, 1) for j in range(limits.TASKS_PER_HEARTBEAT)),
            )
        )
        for i in range(500)
    ]
    answer = swarm_answer(status(done=DONE), seen(*strangers))
    assert answer.nodes == 501
    assert len(answer.models) == swarm_summary.MAX_MODELS and answer.models_left_out == 501 - swarm_summary.MAX_MODELS
    assert len(answer.tasks) == swarm_summary.MAX_TASKS
    assert answer.models[0].ours and answer.tasks[0].task == "add"  # nobody crowds out what is ours
    assert answer.tasks_left_out == 500 * limits.TASKS_PER_HEARTBEAT + 1 - swarm_summary.MAX_TASKS
    assert len(answer.families) == swarm_summary.MAX_FAMILIES + 1 and sum(answer.families.values()) == 501
    raw = msgspec.json.encode(answer)
    assert len(raw) < 2_000_000
    assert not any(mark in raw.decode() for mark in ("\x1b", "\u202e", "\\u001b", "\\n"))


text = st.text(max_size=limits.NAME_BYTES)
beats = st.builds(
    Heartbeat,
    name=text, software=text, model=text, family=st.binary(min_size=16, max_size=16),
    tokenizer=st.binary(min_size=16, max_size=16), round=st.integers(0, 2**63 - 1),
    policy_version=st.integers(0, 2**63 - 1), phase=text, tokens_per_second=st.floats(0.0, 1e12),
    groups_offered=st.integers(0, 2**63 - 1), groups_used=st.integers(0, 2**63 - 1),
    tasks=st.lists(
        st.builds(TaskSuccess, task=text, success=st.floats(0.0, 1.0), samples=st.integers(0, 2**63 - 1)), max_size=5
    ).map(tuple),
)  # fmt: skip


@examples(60)
@given(st.lists(beats, max_size=12))
def test_whatever_heartbeats_say_the_answer_is_json_of_its_type_and_means_stay_within_the_claims(
    heartbeats: list[Heartbeat],
) -> None:
    answer = swarm_answer(status(), seen(*map(peer, heartbeats)))
    assert msgspec.json.decode(msgspec.json.encode(answer), type=SwarmAnswer) == answer
    assert answer.nodes == len(heartbeats) + 1 == sum(model.nodes for model in answer.models)
    for task in answer.tasks:
        assert task.success_least - 1e-9 <= task.success <= task.success_most + 1e-9
