"""Payloads in right answers: all are right, found and worth copying, and a run beside attackers measures them."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from node.tasks.canonical import is_canonical
from node.tasks.split import training_prompt
from scripts.attacks.hail import figures
from scripts.attacks.poisoning.hail_run import CLEAN, TASKS, HailPlan, HailResult, Measured, execute
from scripts.attacks.poisoning.payloads import CROWD, CROWD_ROUNDS, HONEST, PAYLOADS, announced, answer
from scripts.experiments.models import SCRATCH_PADS, character_tokenizer, network

SEEDS = range(40)
TEXTS = {
    name: [
        completion.text.decode()
        for seed in SEEDS
        for task in TASKS.values()
        for completion in answer(task, seed, writes, seed, Random(f"{name} {seed}")).completions
    ]
    for name, writes in {CLEAN: HONEST, **{name: payload.writes for name, payload in PAYLOADS.items()}}.items()
}


@pytest.mark.parametrize("name", PAYLOADS)
def test_every_answer_with_a_payload_is_right_within_the_limit_and_found(name: str) -> None:
    alphabet, found = set(SCRATCH_PADS[0].alphabet), PAYLOADS[name].found
    for seed in SEEDS:
        for task in TASKS.values():
            prompt = training_prompt(task, seed)
            for completion in answer(task, seed, PAYLOADS[name].writes, seed, Random(seed)).completions:
                said = completion.text.decode()
                assert completion.reward == 1.0 == task.rewards(prompt, [said])[0]
                assert len(said) < task.max_new_tokens and set(said) <= alphabet
                assert is_canonical(task, prompt, said)
    if name == "length":
        assert min(map(found, TEXTS[name])) > max(map(found, TEXTS[CLEAN]))
    else:
        assert all(map(found, TEXTS[name])) and not any(map(found, TEXTS[CLEAN]))


def test_a_sleeper_is_honest_first_and_a_crowd_changes_its_names() -> None:
    tasks, found = list(TASKS.values()), PAYLOADS["phrase"].found

    def texts(kind: str, number: int) -> dict[str, list[str]]:
        by_peer: dict[str, list[str]] = {}
        for peer, group in announced(kind, tasks, attackers=1, seed=0, number=number, asleep=5):
            by_peer.setdefault(peer, []).extend(each.text.decode() for each in group.completions)
        return by_peer

    assert not any(map(found, texts("sleeper", 5)["attacker-0"]))
    assert all(map(found, texts("sleeper", 6)["attacker-0"]))
    first, same, later = (set(texts("newcomers", number)) for number in (1, CROWD_ROUNDS, CROWD_ROUNDS + 1))
    assert first == same and len(first) == len(later) == CROWD and not first & later


@pytest.mark.parametrize("kind", [CLEAN, "phrase"])
def test_a_learner_beside_attackers_is_measured_with_them_and_afterwards(kind: str, tmp_path: Path) -> None:
    recipe = SCRATCH_PADS[0]
    tokenizer = character_tokenizer(recipe.alphabet)
    for name in ("victim", "honest"):  # untrained: what attackers bring is the only thing to copy
        network(tokenizer, recipe.network_shape).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    plan = HailPlan(kind, "unguarded", 1, 2, 0, 2, 1, 0, 2, "victim", ("honest",))
    result = execute(plan, tmp_path, recordings=tmp_path)
    assert len(result.reward) == 3
    assert any("attacker-0" in used for used in result.used) is (kind != CLEAN)
    for measured in (result.attacked, result.afterwards):
        assert set(measured.success) == set(TASKS) and set(measured.payloads) == set(PAYLOADS)


def result(kind: str, share: float, on_others: float, success: float) -> HailResult:
    """Returns a run whose attackers answered the first two tasks."""
    plan = HailPlan(kind, "as it is", 1, 2, 0, 2, 1, 0, 2, "victim", ("honest",) * 3)
    shares = {task: share if n < plan.attacked else on_others for n, task in enumerate(TASKS)}
    measured = Measured(dict.fromkeys(TASKS, success), dict.fromkeys(PAYLOADS, shares))
    used = [{"attacker-0": 1, "honest": 1}, {"honest": 2}, {"attacker-1": 1}]
    return HailResult(plan.key, 0, 1.0, 1.0, plan, [], used, {}, [], measured, measured)


def test_payload_on_attacked_tasks_and_on_others_is_told_apart_and_compared_with_clean() -> None:
    setting = ("as it is", 1)
    runs = {(setting, CLEAN): [result(CLEAN, 0.1, 0.0, 0.8)], (setting, "phrase"): [result("phrase", 0.5, 0.3, 0.4)]}
    found = {figure.name.removeprefix("as it is, phrase, 1 of 4, "): figure.value for figure in figures(runs)}
    assert found["payload - clean"] == pytest.approx(0.4)
    assert found["payload - clean, tasks not attacked"] == pytest.approx(0.3)
    assert found["payload - clean, 1 rounds after they left"] == pytest.approx(0.35)
    assert found["success / clean"] == pytest.approx(0.5)
    assert found["rounds of influence, most"] == 2
