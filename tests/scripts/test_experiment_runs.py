"""The experiments' harness for real: nodes that learn, over their own swarm code on the simulated network."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from node.learner.allocation.success import SuccessTracker
from node.learner.answers.right_answers import Rehearsal, RightAnswer
from node.learner.objective import training_groups
from node.learner.objective.advantages import turn_advantages
from node.learner.steps import step
from node.tasks.split import Part, part_of
from protocol.errors import StarlingError
from protocol.messages import PromptRef
from protocol.rollouts import Completion, FinishReason, Group
from scripts.experiments.harness import staged_run, tuned_run
from scripts.experiments.harness.crossings import Crosses
from scripts.experiments.harness.experiment import Condition, Experiment
from scripts.experiments.harness.learner_ablations import ABLATIONS
from scripts.experiments.harness.nodes_run import execute, tasks_named, trained_prompts
from scripts.experiments.harness.plans import NodePlan, RunPlan, RunResult, load_result, save_result
from scripts.experiments.harness.runs import missing, run_all
from scripts.experiments.harness.simulated_swarm import EPOCH, MEETING_SECONDS, SimulatedSwarm
from scripts.experiments.harness.skills import SEEDS, SKILLS
from scripts.experiments.harness.staged_run import StagedPlan
from scripts.experiments.harness.tuned_run import Rule, TunedPlan, TunedResult
from swarm.api import Wanted


@given(st.sampled_from(sorted(SKILLS)), st.integers(0, SEEDS - 1))
def test_exact_answer_alone_is_rewarded(name: str, seed: int) -> None:
    task = SKILLS[name]
    asked = task.prompt(task.ref(seed))
    assert task.rewards(asked, [str(asked.answer), "", f"{asked.answer} "]) == [1.0, 0.0, 0.0]


def test_skills_answer_differently() -> None:
    assert {name: task.answer("abcd") for name, task in SKILLS.items()} == {
        "reverse": "dcba",
        "rotate": "bcda",
        "swap": "badc",
        "halves": "cdab",
    }


def small_plan(**changes: Any) -> RunPlan:
    learner = {"own_groups": 4, "foreign_groups": 4, "completions": 4, "share_groups": 4}
    fields: dict[str, Any] = {
        "experiment": "test", "condition": "two", "seed": 3, "rounds": 3,
        "nodes": tuple(NodePlan(name, f"builtin:{name}", {"learner": learner}) for name in ("wren", "robin")),
        "tasks": ("basic_arithmetic", "spell_backward"),
        "measure_at": (0, 3), "measure_prompts": 4, "measure_samples": 0,
    }  # fmt: skip
    return RunPlan(**{**fields, **changes})


def a_group(seed: int) -> Group:
    text = b"4"
    completion = Completion(
        text, np.array([5, 1]), np.array([1, 0]), np.full(2, -0.5, np.float32), FinishReason.STOP, 1.0
    )
    return Group(PromptRef("basic_arithmetic", 1, bytes(16), seed), bytes(16), bytes(16), 1, (completion,) * 2)


def without_time(result: RunResult) -> object:
    return (result.key, result.condition, result.seed, result.nodes)


@pytest.mark.parametrize(("strangers", "influence"), [(False, 1.0), (True, 0.25)])
def test_nodes_of_an_experiment_trust_each_other_unless_they_are_strangers(
    strangers: bool, influence: float, tmp_path: Path
) -> None:
    found: list[float] = []
    plan = small_plan(rounds=0, measure_at=(), strangers=strangers)
    execute(plan, tmp_path, made=lambda node, _: found.append(node.state.influence.standings.influence("p", 1)))
    assert found == [influence, influence]


def test_two_nodes_learn_from_each_other_and_the_same_plan_is_the_same_run(tmp_path: Path) -> None:
    first, second = (execute(small_plan(), tmp_path) for _ in range(2))
    assert without_time(first) == without_time(second)
    for node in first.nodes:
        assert len(node.reward) == len(node.tokens) == 3
        assert [m.round for m in node.measurements] == [0, 3]
        assert node.foreign_groups_used > 0
        assert 0 < node.bytes_fetched <= node.bytes_announced
        assert node.foreign_completions_trained > 0


def test_questions_that_are_trained_on_are_measured_beside_those_held_out_and_change_no_run(tmp_path: Path) -> None:
    plan = small_plan(rounds=1, measure_at=(1,), nodes=small_plan().nodes[:1])
    without, beside = (execute(structs.replace(plan, measure_trained=each), tmp_path).nodes[0] for each in (0, 4))
    assert beside.measurements[0].trained.keys() == set(plan.tasks) and without.measurements[0].trained == {}
    assert without.reward == beside.reward and without.measurements[0].greedy == beside.measurements[0].greedy
    prompts = trained_prompts(tasks_named(plan.tasks), 30)
    assert {part_of(each) for of_task in prompts.values() for each in of_task} == {Part.TRAINING}


def test_run_in_stages_is_the_plain_run_where_nothing_is_lost_at_the_cuts(tmp_path: Path) -> None:
    alone = small_plan(rounds=2, measure_at=(2,), nodes=small_plan().nodes[:1])
    fields = {name: getattr(alone, name) for name in alone.__struct_fields__}
    exact, lossy = (
        staged_run.execute(StagedPlan(**fields, crosses=crosses), tmp_path)
        for crosses in (Crosses("exact"), Crosses("subspace", 1 / 128))
    )
    (plain,), (same,), (other,) = (run.nodes for run in (execute(alone, tmp_path), exact, lossy))
    assert same == plain
    assert exact.token_bytes == 2 * 2 * 128
    assert other.reward[0] == plain.reward[0] and other.entropy[0] != plain.entropy[0]
    assert {exact.key, lossy.key}.isdisjoint({alone.key})


def test_learner_rate_is_changed_by_the_rule_of_the_plan_alone(tmp_path: Path) -> None:
    alone = small_plan(rounds=2, measure_at=(0, 2), nodes=small_plan().nodes[:1])
    fields = {name: getattr(alone, name) for name in alone.__struct_fields__}

    def run(rule: Rule) -> TunedResult:
        return tuned_run.execute(TunedPlan(**fields, rule=rule), tmp_path)

    fixed, found = (run(Rule(kind, 30.0)) for kind in ("fixed", "kl"))
    assert fixed.factors == [30.0, 30.0] and (fixed.kl[0] or 0.0) > 0
    assert found.factors[0] == 30.0 > found.factors[1] and found.kl[0] == fixed.kl[0]
    arms = run(Rule("arms", 1.0, every=1))
    assert len(arms.nodes[0].reward) == len(arms.factors) == 2
    assert set(arms.factors) <= {1 / 3, 1.0, 3.0, 9.0}
    assert [each.round for each in arms.nodes[0].measurements] == [0, 1, 2]
    assert 0 < arms.rule_seconds < arms.cpu_at[-1]


def with_first(plan: RunPlan, settings: dict[str, Any]) -> RunPlan:
    """The plan with more settings of the first node."""
    first, *others = plan.nodes
    return structs.replace(plan, nodes=(structs.replace(first, settings={**first.settings, **settings}), *others))


def test_node_whose_engine_is_a_process_of_its_own_samples_as_the_embedded_one_from_equal_weights(
    tmp_path: Path,
) -> None:
    embedded = with_first(small_plan(rounds=1, measure_at=(1,)), {"policy": {"dtype": "bfloat16"}})
    elsewhere = with_first(embedded, {"engine": {"backend": "process"}})
    (one, other), (same, other_again) = (execute(each, tmp_path).nodes for each in (embedded, elsewhere))
    assert one.name == same.name == "wren"
    assert (same.reward, same.tokens) == (one.reward, one.tokens)
    assert other_again.reward == other.reward


def test_engine_that_cannot_be_had_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STARLING_ENGINES", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"'vllm'.*'torch' generates.*not installed"):
        execute(with_first(small_plan(rounds=1), {"engine": {"backend": "vllm"}}), tmp_path)


def test_run_whose_experiment_has_ended_ends_too(tmp_path: Path) -> None:
    with pytest.raises(InterruptedError):
        execute(small_plan(), tmp_path, lambda: True)


def test_finished_runs_are_not_run_again(tmp_path: Path) -> None:
    plans = [small_plan(seed=seed) for seed in range(3)]
    results = [RunResult(plan.key, plan.condition, plan.seed, 1.0, 1.0, [], plan) for plan in plans]
    for plan, result in zip(plans, results, strict=True):
        save_result(tmp_path, plan, result)
    assert missing([*plans, small_plan(seed=9)], tmp_path) == [small_plan(seed=9)]
    run_all(plans, tmp_path, tmp_path, jobs=2)
    assert [load_result(tmp_path, plan) for plan in plans] == results


def test_report_on_finished_runs_runs_nothing_and_takes_those_that_are_there(tmp_path: Path) -> None:
    def planned(condition: Condition, seed: int, rounds: int) -> RunPlan:
        return small_plan(condition=condition.name, seed=seed, rounds=rounds)

    experiment = Experiment("test", "", [Condition("two", "", {}), Condition("none", "", {})], planned, rounds=3)
    plan = small_plan(seed=1)
    save_result(tmp_path, plan, RunResult(plan.key, plan.condition, plan.seed, 1.0, 1.0, [], plan))
    options = Namespace(finished=True, rounds=3, seeds=3, only=None, results=tmp_path, jobs=1)
    assert {name: [run.seed for run in runs] for name, runs in experiment.results(options).items()} == {"two": [1]}
    assert experiment.command(options).endswith(" --finished")


def test_members_that_are_parted_hear_nothing_more_of_each_other(tmp_path: Path) -> None:
    with SimulatedSwarm(["ann", "bob", "cat"], tmp_path, seed=1) as swarm:
        members = [swarm.member(name) for name in ("ann", "bob", "cat")]
        members[0].share([a_group(1)])
        swarm.pass_time(5.0)
        assert [len(each.seen_groups(0, 9)) for each in members] == [0, 1, 1]
        swarm.part()
        members[1].share([a_group(2)])
        swarm.pass_time(120.0)
        assert [len(each.seen_groups(0, 9)) for each in members] == [0, 1, 1]


def test_a_part_of_the_learner_is_replaced_for_as_long_as_a_run_lasts() -> None:
    with ABLATIONS["whole steps"]():
        assert vars(step)["signal_share"]([], 8) == 1.0
    assert vars(step)["signal_share"]([], 8) == 0.0
    remembered = Rehearsal({"t": {(1,): RightAnswer((2,), 1.0)}})
    with ABLATIONS["nothing seen again"]():
        assert remembered.drawn(1, ["t"], SuccessTracker(), Random(0)) == []
    assert len(remembered.drawn(1, ["t"], SuccessTracker(), Random(0))) == 1


def test_advantages_dealt_out_are_those_of_the_group_and_not_always_of_the_conversation() -> None:
    earned = [[[0.0, 1.0], [0.0], [0.5], [0.0, 0.0, 0.2 * number]] for number in range(1, 9)]
    kept = 0
    for group in earned:
        expected = turn_advantages(group, 3)
        with ABLATIONS["advantages dealt out"]():
            found, again = (vars(training_groups)["turn_advantages"](group, 3) for _ in range(2))
        assert np.array_equal(found, again)
        assert sorted(map(tuple, found)) == sorted(map(tuple, expected))
        kept += np.array_equal(found, expected)
    assert kept < len(earned) / 2


def test_time_stands_still_in_the_network_until_somebody_asks(tmp_path: Path) -> None:
    with SimulatedSwarm(["ann", "bob"], tmp_path, seed=1) as swarm:
        began = swarm.now_seconds()
        assert began == pytest.approx(EPOCH + MEETING_SECONDS)
        assert swarm.now_seconds() == began
        swarm.pass_time(5.0)
        assert swarm.now_seconds() == pytest.approx(began + 5.0)
        ann = swarm.member("ann")
        assert ann.status().connected_peers == 1
        assert [each.peer for each in ann.peers()] == [swarm.member("bob").peer]
        missing_blob = Wanted(bytes(32), 10, (swarm.member("bob").peer,))
        (outcome,) = ann.fetch([missing_blob], deadline_seconds=5.0)
        assert outcome.path is None


def test_what_goes_wrong_in_the_network_reaches_who_asked(tmp_path: Path) -> None:
    async def fails() -> None:
        raise StarlingError("told")

    with SimulatedSwarm(["ann"], tmp_path, seed=1) as swarm:
        with pytest.raises(StarlingError, match="told"):
            swarm.ask(fails)
        swarm.pass_time(1.0)
