"""Which machines an owner waits for, and what follows when one is lost: also in the middle of a learner's rounds."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from node.configuration import EvaluationSection, LearnerSection
from node.engines.donors.donor_source import WaitingDonor
from node.events import Evaluated, OutOfMemory, RoundDone, StagesHeld
from node.fit.fitted import Sizes
from node.fit.settings import MemorySettings
from node.fit.stages.plan import HeldLayers, Pace, StageMachine, StagePlan
from node.fit.stages.schedule import OwnerOrder
from node.learner.answers.right_answers import RightAnswer
from node.learner.memory.abandoned import WaitAbandoned
from node.learner.memory.phases import SizePlan
from node.learner.state.persistence import snapshot_of
from node.policy.held_layers import hold_factors, hold_layers
from node.policy.policy import Policy
from node.stages.attendance import AWAY_SECONDS, BETWEEN_PLANS_SECONDS, NEW_PLAN, Attendance
from node.stages.gathering import LOOK_SECONDS, Gathering
from node.stages.link import StageFacts
from node.stages.policy import StagedPolicy
from node.stages.stages import Stages
from protocol.errors import ConfigurationError, StageLostError
from tests.node.learner.letter_node import LetterTask, Node, character_tokens
from tests.node.stages.machines import LAYERS, Machine, empty, saved, scatter, worker

ROOM, NEEDED = 4_000, 3_000  # bytes
PACE = Pace(1e9, 1e9)
UNIX = 1_000_000.0  # when the seconds of ``Machines`` begin


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

    def leaves(self, peer: str) -> None:
        """It is gone, and the others come again."""
        self.arrives = [each for each in self.arrives if each[1] != peer]
        self.used.clear()

    def should_stop(self) -> str | None:
        return "asked" if self.seconds >= self.stop_at else None


class Here(Executor):
    """Does at once what it is given."""

    def submit(self, work: Any, /, *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*given, **named))
        except Exception as error:  # noqa: BLE001  for whoever waits
            done.set_exception(error)
        return done


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
        settings=settings, held=tuple(held), order=OwnerOrder(3, 1), batches=2,
        generating_seconds=1.0, training_seconds=1.0, sent_bytes=0, because="by hand",
    )  # fmt: skip


def gathering_of(machines: Machines, events: list[StagesHeld], wanted: int = 2) -> Gathering:
    def seconds() -> float:
        return machines.seconds

    return Gathering(
        machines, wanted, planned, events.append, lambda: UNIX + seconds(), seconds, machines.sleep, connecting=Here()
    )


def planned(machines: Sequence[StageMachine]) -> StagePlan:
    """Every machine has room for two layers, and the owner for one; the owner has more where there is but one other."""
    rooms = sum(each.usable_bytes >= NEEDED for each in machines)
    if rooms < len(machines) or rooms == 0:
        raise ConfigurationError(f"{rooms} of {len(machines)} have room: 1 kB more would do")
    return plan_of({1: (2,), 2: (1, 3)}[rooms])


def owner_of(machines: Machines, attendance: Attendance | None = None) -> Owner:
    events: list[StagesHeld] = []
    gathering = gathering_of(machines, events)
    if attendance is not None:
        gathering.attendance = attendance
    gathering.attendance.starts(machines.seconds, goes_on=False)
    plan = gathering.gathered(machines.should_stop)
    assert plan is not None
    policy = empty(machines.folder)
    hold_factors(policy)
    hold_layers(policy, machines.folder, range(plan.held[0].last), ends=True, factors=False)
    scatter(policy)
    stages = Stages(policy.trainable(), [range(each.first, each.last) for each in plan.held[1:]], gathering.lost)
    assert gathering.seat(stages, plan)
    own = plan.held[0].last
    staged = StagedPolicy.of(replace(policy, tokens=character_tokens()), own, stages, plan.order, plan.batches)
    return Owner(machines, gathering, staged, events)


def test_an_owner_waits_until_all_are_there_and_says_for_how_many(folder: Path) -> None:
    machines, events = Machines(folder, [(3.0, "ann", ROOM), (9.0, "bob", ROOM)]), list[StagesHeld]()
    found = gathering_of(machines, events).gathered(machines.should_stop)
    assert found == plan_of((1, 3))
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
    gathering.connecting = ThreadPoolExecutor(1)
    assert gathering.gathered(machines.should_stop) is None
    stopped.set()
    assert closed.wait(60)


def test_a_machine_that_is_lost_before_it_had_its_layers_is_not_counted(folder: Path) -> None:
    machines = Machines(folder, [(0.0, "ann", ROOM), (0.0, "bob", ROOM), (5.0, "cid", ROOM)], refuses={"ann"})
    gathering = gathering_of(machines, [])
    policy = empty(folder)
    hold_factors(policy)
    for expected in (False, True):
        plan = gathering.gathered(machines.should_stop)
        assert plan is not None
        stages = Stages(policy.trainable(), [range(1, 3), range(3, 4)], gathering.lost)
        assert gathering.seat(stages, plan) is expected
    assert machines.used["bob"].worker.layers == range(1, 3)
    assert machines.used["cid"].worker.layers == range(3, 4)


def test_layers_of_a_machine_that_is_lost_go_to_one_with_room_for_them(folder: Path) -> None:
    machines = Machines(
        folder, [(0.0, "ann", ROOM), (0.0, "bob", ROOM), (30.0, "cid", NEEDED - 1), (50.0, "eve", ROOM)]
    )
    owner = owner_of(machines)
    machines.used["ann"].dies_at = "begin"
    with pytest.raises(StageLostError):
        owner.policy.stages.begin(0)
    assert owner.gathering.regained(machines.should_stop)
    assert machines.used["eve"].worker.layers == range(1, 3)
    assert machines.seconds == pytest.approx(50.0, abs=LOOK_SECONDS)
    waited, *_, regained = owner.events[-3:]
    assert waited.stages[0].peer == ""
    assert "plug" in waited.stages[0].because
    assert "layers 2 to 3" in waited.waits
    assert (regained.connected, [each.peer for each in regained.stages], regained.waits) == (2, ["eve", "bob"], "")


def lost(owner: Owner, *peers: str) -> None:
    """Machines of the owner are lost, and never seen again."""
    for peer in peers:
        owner.machines.used[peer].dies_at = "begin"
        with pytest.raises(StageLostError):
            owner.policy.stages.begin(0)
    owner.machines.arrives = [each for each in owner.machines.arrives if each[1] not in peers]


def test_an_owner_whose_machine_stays_away_plans_anew_with_the_other_one(folder: Path) -> None:
    machines = Machines(folder, [(0.0, "ann", ROOM), (0.0, "bob", ROOM)])
    owner = owner_of(machines)
    machines.seconds = 1000.0
    lost(owner, "bob")
    assert not owner.gathering.regained(machines.should_stop)
    attendance = owner.gathering.attendance
    assert attendance.new_plan == NEW_PLAN
    assert machines.seconds == pytest.approx(1000.0 + AWAY_SECONDS, abs=LOOK_SECONDS)

    # Both are awaited then, and the one that has been away for long is not waited for once more.
    owner.gathering.close()
    machines.leaves("bob")
    machines.arrives = [(machines.seconds + 9.0, "ann", ROOM)]
    began = machines.seconds
    again = owner_of(machines, attendance)
    assert machines.seconds == pytest.approx(began + 9.0, abs=LOOK_SECONDS)
    assert attendance.new_plan is None
    assert again.policy.own_layers == 2 and machines.used["ann"].worker.layers == range(2, 4)
    told = again.events[-1]
    assert (told.wanted, told.connected, told.waits, [each.peer for each in told.stages]) == (2, 1, "", ["ann"])
    [away] = told.away
    assert (away.peer, away.since_seconds) == ("bob", UNIX + 1000.0) and "plug" in away.because


def test_a_machine_that_comes_back_in_time_gets_its_layers_and_no_new_plan_is_made(folder: Path) -> None:
    machines = Machines(folder, [(0.0, "ann", ROOM), (0.0, "bob", ROOM)])
    owner = owner_of(machines)
    lost(owner, "bob")
    machines.arrives.append((AWAY_SECONDS - 5.0, "bob", ROOM))
    del machines.used["bob"]
    assert owner.gathering.regained(machines.should_stop)
    assert owner.gathering.attendance.new_plan is None
    assert owner.events[-1].away == ()


def test_an_owner_waits_on_where_the_others_cannot_hold_the_model_and_says_how_much_is_missing(folder: Path) -> None:
    machines = Machines(folder, [(0.0, "ann", ROOM), (0.0, "bob", ROOM)])
    owner = owner_of(machines)

    def refuse(_: Sequence[StageMachine]) -> StagePlan:
        raise ConfigurationError("1.2 GB more memory in all would do")

    owner.gathering.planned = refuse
    lost(owner, "bob")
    machines.arrives.append((AWAY_SECONDS + 3000.0, "bob", ROOM))
    del machines.used["bob"]
    assert owner.gathering.regained(machines.should_stop)
    assert owner.gathering.attendance.new_plan is None
    waits = [event.waits for event in owner.events if event.waits]
    assert "1.2 GB more" in waits[-1] and "1.2 GB more" not in waits[-2]
    assert machines.used["bob"].worker.layers == range(3, 4)


def test_an_owner_all_of_whose_machines_are_lost_waits_for_one_at_least(folder: Path) -> None:
    machines = Machines(folder, [(0.0, "ann", ROOM), (0.0, "bob", ROOM)], stop_at=AWAY_SECONDS + 3000.0)
    owner = owner_of(machines)
    machines.used["ann"].dies_at = "forget"  # which nobody notices before it is asked something
    lost(owner, "bob")
    assert not owner.gathering.regained(machines.should_stop)
    assert owner.gathering.attendance.new_plan is None
    assert [each.peer for each in owner.events[-1].away] == ["bob", "ann"]


def test_a_machine_that_is_too_small_is_left_out_of_a_new_plan(folder: Path) -> None:
    machines = Machines(folder, [(0.0, "ann", ROOM), (0.0, "bob", ROOM), (40.0, "cid", NEEDED - 1)])
    owner = owner_of(machines)
    lost(owner, "bob")
    assert not owner.gathering.regained(machines.should_stop)
    assert owner.gathering.attendance.new_plan == NEW_PLAN


def alone(folder: Path, *others: tuple[float, str, int]) -> Owner:
    """Returns an owner that has planned anew without one of its two machines, at second 0."""
    attendance = Attendance()
    attendance.starts(-2 * AWAY_SECONDS, goes_on=True)
    return owner_of(Machines(folder, [(0.0, "ann", ROOM), *others]), attendance)


def test_a_machine_that_comes_later_is_taken_in_at_the_end_of_a_round_and_not_too_soon_after_the_last_plan(
    folder: Path,
) -> None:
    owner = alone(folder, (60.0, "bob", ROOM))
    machines, attendance = owner.machines, owner.gathering.attendance
    for machines.seconds in (30.0, 90.0, BETWEEN_PLANS_SECONDS - 1.0):
        owner.gathering.round_done()
        assert attendance.new_plan is None
    assert set(machines.used) == {"ann", "bob"}  # connected meanwhile
    machines.seconds = BETWEEN_PLANS_SECONDS + 1.0
    owner.gathering.round_done()
    assert attendance.new_plan == NEW_PLAN
    owner.gathering.close()
    machines.used.clear()
    again = owner_of(machines, attendance)
    assert again.policy.own_layers == 1
    assert [each.peer for each in again.events[-1].stages] == ["ann", "bob"]


@pytest.mark.parametrize("unfit", ["too small", "gone again", "no other one"])
def test_a_machine_that_is_of_no_use_causes_no_new_plan(folder: Path, unfit: str) -> None:
    other = (60.0, "bob", 1 if unfit == "too small" else ROOM)
    owner = alone(folder, *([] if unfit == "no other one" else [other]))
    machines = owner.machines
    machines.seconds = 90.0
    owner.gathering.round_done()
    if unfit == "gone again":
        machines.used["bob"].dies_at = "forget"
    machines.seconds = BETWEEN_PLANS_SECONDS + 1.0
    owner.gathering.round_done()
    assert owner.gathering.attendance.new_plan is None
    assert owner.policy.stages.empty == []


MANY = LearnerSection(own_groups=4, completions=5, learning_rate=3e-3, batch_tokens=64)


def node_of(owner: Owner, section: LearnerSection = MANY, batch_tokens: int = 64, folder: Path | None = None) -> Node:
    begin = Sizes(16, batch_tokens, recompute=True)
    return Node(
        "ann",
        own_policy=owner.policy,
        learner=section,
        evaluation=EvaluationSection(every_rounds=2, prompts=4),
        folder=folder,
        size_plan=SizePlan(begin, begin, should_stop=owner.machines.should_stop, regain=owner.gathering.regained),
    )


def weights_hash(policy: Policy) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in policy.trainable().values())).hexdigest()


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> list[tuple[str, float | None]]:
    owner = owner_of(Machines(folder, [(0.0, "ann", ROOM), (0.0, "bob", ROOM)]))
    node = node_of(owner)
    rounds = []
    for _ in range(3):
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
    for number in range(3):
        victims = [place.link for place in owner.policy.stages.places]
        victim: Any = victims[number % 2]
        victim.dies_at, victim.survives = dies_at, number if dies_at in ("forward", "backward", "step") else 0
        done = node.round()
        found.append((weights_hash(owner.policy), done.loss))
    assert len(machines.used) >= 4  # each round lost one, but those that did not ask for it
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


def everything(node: Node) -> str:
    """Returns the hash of all that a checkpoint has: weights, moments, counters, and where draws go on."""
    state, position = node.learner.state, node.intake.position
    snapshot = snapshot_of(node.config, node.policy, node.optimizer, state, position)
    parts = [name.encode() + tensor.numpy().tobytes() for name, tensor in sorted(snapshot.tensors.items())]
    return hashlib.sha256(b"".join(parts) + repr((snapshot.round, snapshot.state)).encode()).hexdigest()


@pytest.mark.parametrize("dies_at", ["step", "forward", "backward", "gradients"])
def test_a_new_plan_goes_on_from_the_last_round_that_was_done_and_leaves_out_none(
    folder: Path, tmp_path: Path, dies_at: str
) -> None:
    machines = Machines(folder, [(0.0, "ann", ROOM), (0.0, "bob", ROOM)])
    owner = owner_of(machines)
    attendance = owner.gathering.attendance
    node = node_of(owner, folder=tmp_path)
    for _ in range(2):
        node.round()
    before = everything(node)
    machines.used["bob"].dies_at = dies_at
    stopped = node.learner.run(lambda: attendance.new_plan)
    node.checkpoints.close()
    owner.gathering.close()
    assert (stopped.because, stopped.round, stopped.lost) == (NEW_PLAN, 2, None)

    machines.leaves("bob")
    owner = owner_of(machines, attendance)
    assert owner.policy.own_layers == 2
    again = node_of(owner, folder=tmp_path)
    assert everything(again) == before
    done = again.round()
    again.checkpoints.close()
    assert done.round == 3 and done.loss is not None
    assert everything(again) != before


def test_a_round_whose_own_step_is_taken_ends_without_its_further_lessons_where_a_machine_stays_away(
    folder: Path, tmp_path: Path
) -> None:
    machines = Machines(folder, [(0.0, "ann", ROOM), (0.0, "bob", ROOM)])
    owner = owner_of(machines)
    attendance = owner.gathering.attendance
    node = node_of(owner, folder=tmp_path)
    for seed in range(90):
        prompt = LetterTask("first").prompt(LetterTask("first").ref(seed))
        answer = (*node.policy.tokens.prompt_ids(str(prompt.answer)), node.policy.tokens.eos_id)
        question = tuple(node.policy.tokens.prompt_ids(prompt.text))
        node.learner.state.imitation.keep("first", question, RightAnswer(answer, 1.0, "peer"))
    machines.used["bob"].dies_at, machines.used["bob"].survives = "gradients", 1
    stopped = node.learner.run(lambda: attendance.new_plan)
    node.checkpoints.close()
    owner.gathering.close()
    assert machines.used["bob"].asked == 2  # in the round's own step, and in the first lesson
    assert (stopped.because, stopped.round) == (NEW_PLAN, 1)
    assert [event.round for event in node.events if isinstance(event, RoundDone)] == [1]

    machines.leaves("bob")
    again = node_of(owner_of(machines, attendance), folder=tmp_path)
    assert everything(again) == everything(node)
    machines.used["ann"].dies_at, machines.used["ann"].survives = "gradients", 99
    again.round()
    assert machines.used["ann"].asked > 1  # lessons go on
    again.checkpoints.close()
