"""Which machines an owner waits for, and what follows when one is lost: also in the middle of a learner's rounds."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from node.configuration import EvaluationSection, LearnerSection
from node.engines.donors.donor_source import WaitingDonor
from node.events import Evaluated, OutOfMemory, StagesHeld
from node.fit.fitted import Sizes
from node.fit.settings import MemorySettings
from node.fit.stages.plan import HeldLayers, Pace, StagePlan
from node.fit.stages.schedule import OwnerOrder
from node.learner.memory.abandoned import WaitAbandoned
from node.learner.memory.phases import SizePlan
from node.policy.held_layers import hold_factors, hold_layers
from node.policy.policy import Policy
from node.stages.gathering import LOOK_SECONDS, Gathering
from node.stages.link import StageFacts
from node.stages.policy import StagedPolicy
from node.stages.stages import Stages
from protocol.errors import StageLostError
from tests.node.learner.letter_node import Node, character_tokens
from tests.node.stages.machines import LAYERS, Machine, saved, scatter, section_of, worker

ROOM, NEEDED = 4_000, 3_000  # bytes
PACE = Pace(1e9, 1e9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("qwen2", tmp_path_factory.mktemp("qwen2"))


@dataclass
class Machines:
    """``StageSource`` of machines of this process; time passes while somebody waits."""

    folder: Path
    arrives: list[tuple[float, str, int]]  # seconds, peer, bytes
    seconds: float = 0.0
    used: dict[str, Machine] = field(default_factory=dict)
    refuses: set[str] = field(default_factory=set)
    stop_at: float = 1e9

    def waiting(self) -> list[WaitingDonor]:
        return [WaitingDonor(peer, "") for at, peer, _ in self.arrives if at <= self.seconds and peer not in self.used]

    def use(self, peer: str) -> tuple[Any, StageFacts]:
        self.used[peer] = Machine(worker(self.folder), dies_at="hold" if peer in self.refuses else "")
        return self.used[peer], StageFacts(next(room for _, name, room in self.arrives if name == peer), PACE)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def should_stop(self) -> str | None:
        return "asked" if self.seconds >= self.stop_at else None


@dataclass
class Owner:
    machines: Machines
    gathering: Gathering
    policy: StagedPolicy
    events: list[StagesHeld]


def plan_of(cuts: tuple[int, ...]) -> StagePlan:
    settings = MemorySettings(
        dtype="float32", adapter_rank=4, four_bit=False, rows=16, batch_tokens=64, recompute=True, chunk_tokens=None,
        optimizer="adamw", merge_adapters=False, store_bytes=0,
    )  # fmt: skip
    held = [
        HeldLayers(name="", first=first, last=last, expected_bytes=NEEDED, usable_bytes=ROOM, idle=0.0)
        for first, last in zip((0, *cuts), (*cuts, LAYERS), strict=True)
    ]
    return StagePlan(
        settings=settings, held=tuple(held), order=OwnerOrder(3, 1), generating_seconds=1.0, training_seconds=1.0,
        sent_bytes=0, because="by hand",
    )  # fmt: skip


def gathering_of(machines: Machines, events: list[StagesHeld], wanted: int = 2) -> Gathering:
    return Gathering(machines, wanted, events.append, lambda: machines.seconds, machines.sleep)


def owner_of(machines: Machines) -> Owner:
    events: list[StagesHeld] = []
    gathering = gathering_of(machines, events)
    assert gathering.gathered(machines.should_stop) is not None
    policy, plan = Policy.without_weights(section_of(machines.folder)), plan_of((1, 3))
    hold_factors(policy)
    hold_layers(policy, machines.folder, range(1), ends=True, factors=False)
    scatter(policy)
    stages = Stages(policy.trainable(), [range(1, 3), range(3, 4)], gathering.lost)
    assert gathering.seat(stages, plan)
    staged = StagedPolicy.of(replace(policy, tokens=character_tokens()), 1, stages, plan.order)
    return Owner(machines, gathering, staged, events)


def test_an_owner_waits_until_all_are_there_and_says_for_how_many(folder: Path) -> None:
    machines, events = Machines(folder, [(3.0, "ann", ROOM), (9.0, "bob", ROOM)]), list[StagesHeld]()
    found = gathering_of(machines, events).gathered(machines.should_stop)
    assert found is not None
    assert [each.usable_bytes for each in found] == [ROOM, ROOM]
    assert machines.seconds == pytest.approx(9.0, abs=LOOK_SECONDS)
    assert [(each.connected, each.waits[:1]) for each in events] == [(0, "2"), (1, "1")]


def test_an_owner_that_is_to_stop_waits_no_longer(folder: Path) -> None:
    machines = Machines(folder, [(3.0, "ann", ROOM)], stop_at=20.0)
    assert gathering_of(machines, []).gathered(machines.should_stop) is None


def test_an_owner_that_is_to_stop_does_not_wait_for_a_machine_that_loads_its_model(folder: Path) -> None:
    class Loading(Machines):
        def use(self, peer: str) -> tuple[Any, StageFacts]:
            self.stop_at = self.seconds  # asked to stop from here on
            stopped.wait()
            found = super().use(peer)
            closed.set()
            return found

    stopped, closed = threading.Event(), threading.Event()
    machines = Loading(folder, [(0.0, "ann", ROOM)])
    gathering = gathering_of(machines, [])
    assert gathering.gathered(machines.should_stop) is None
    stopped.set()
    assert closed.wait(60)


def test_a_machine_that_is_lost_before_it_had_its_layers_is_not_counted(folder: Path) -> None:
    machines = Machines(folder, [(0.0, "ann", ROOM), (0.0, "bob", ROOM), (5.0, "cid", ROOM)], refuses={"ann"})
    gathering = gathering_of(machines, [])
    policy = Policy.without_weights(section_of(folder))
    hold_factors(policy)
    for expected in (False, True):
        assert gathering.gathered(machines.should_stop) is not None
        stages = Stages(policy.trainable(), [range(1, 3), range(3, 4)], gathering.lost)
        assert gathering.seat(stages, plan_of((1, 3))) is expected
    assert machines.used["bob"].worker.layers == range(1, 3)
    assert machines.used["cid"].worker.layers == range(3, 4)


def test_layers_of_a_machine_that_is_lost_go_to_one_with_room_for_them(folder: Path) -> None:
    machines = Machines(
        folder, [(0.0, "ann", ROOM), (0.0, "bob", ROOM), (30.0, "cid", NEEDED - 1), (50.0, "eve", ROOM)]
    )
    owner = owner_of(machines)
    machines.used["ann"].dies_at = "begin"
    with pytest.raises(StageLostError):
        owner.policy.stages.begin()
    assert owner.gathering.regained(machines.should_stop)
    assert machines.used["eve"].worker.layers == range(1, 3)
    assert machines.seconds == pytest.approx(50.0, abs=LOOK_SECONDS)
    waited, *_, regained = owner.events[-3:]
    assert waited.stages[0].peer == ""
    assert "plug" in waited.stages[0].because
    assert "layers 2 to 3" in waited.waits
    assert (regained.connected, [each.peer for each in regained.stages], regained.waits) == (2, ["eve", "bob"], "")


MANY = LearnerSection(own_groups=6, completions=6, learning_rate=3e-3, batch_tokens=64)


def node_of(owner: Owner, section: LearnerSection = MANY, batch_tokens: int = 64) -> Node:
    begin = Sizes(16, batch_tokens, recompute=True)
    return Node(
        "ann",
        own_policy=owner.policy,
        learner=section,
        evaluation=EvaluationSection(every_rounds=2, prompts=4),
        size_plan=SizePlan(begin, begin, should_stop=owner.machines.should_stop, regain=owner.gathering.regained),
    )


def weights_hash(policy: Policy) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in policy.trainable().values())).hexdigest()


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> list[tuple[str, float | None]]:
    owner = owner_of(Machines(folder, [(0.0, "ann", ROOM), (0.0, "bob", ROOM)]))
    node = node_of(owner)
    rounds = []
    for _ in range(4):
        done = node.round()
        rounds.append((weights_hash(owner.policy), done.loss))
    assert len({each for each, _ in rounds}) == len(rounds)  # every round has learnt
    assert any(isinstance(event, Evaluated) for event in node.events)
    return rounds


REQUESTS = ["forward", "backward", "gradients", "load", "begin", "prefill", "join", "step", "leave"]


@pytest.mark.parametrize("dies_at", REQUESTS)
def test_rounds_in_which_machines_are_lost_have_the_weights_of_rounds_in_which_none_is(
    folder: Path, undisturbed: list[tuple[str, float | None]], dies_at: str
) -> None:
    spare = [(0.0, f"spare {number}", ROOM) for number in range(4)]
    machines = Machines(folder, [(0.0, "ann", ROOM), (0.0, "bob", ROOM), *spare])
    owner = owner_of(machines)
    node = node_of(owner)
    found = []
    for number in range(4):
        victims = [place.link for place in owner.policy.stages.places]
        victim: Any = victims[number % 2]
        victim.dies_at, victim.survives = dies_at, number if dies_at in ("forward", "backward", "step") else 0
        done = node.round()
        found.append((weights_hash(owner.policy), done.loss))
    assert len(machines.used) >= 5  # each round lost one, but those that did not ask for it
    assert found == undisturbed
    assert not any(isinstance(event, OutOfMemory) for event in node.events)


def test_passes_are_halved_where_it_was_a_machines_memory_that_ran_out(folder: Path) -> None:
    machines = Machines(folder, [(0.0, peer, ROOM) for peer in ("ann", "bob", "cid")])
    owner = owner_of(machines)
    node = node_of(owner, batch_tokens=512)
    machines.used["bob"].dies_at, machines.used["bob"].runs_out = "backward", True
    done = node.round()
    assert done.loss is not None
    [event] = [event for event in node.events if isinstance(event, OutOfMemory)]
    assert (event.phase, event.then, event.key, event.before, event.after) == (
        "learn", "halve", "learner.batch_tokens", 512, 256,
    )  # fmt: skip
    assert owner.policy.stages.empty == []


def test_a_learner_that_is_to_stop_while_it_waits_for_a_machine_leaves_the_round_undone(folder: Path) -> None:
    machines = Machines(folder, [(0.0, "ann", ROOM), (0.0, "bob", ROOM)])
    owner = owner_of(machines)
    node = node_of(owner)
    node.round()
    before = weights_hash(owner.policy)
    machines.used["bob"].dies_at, machines.stop_at = "backward", machines.seconds + 40
    with pytest.raises(WaitAbandoned):
        node.round()
    assert node.learner.state.round == 1
    assert weights_hash(owner.policy) == before
