"""The built-in models: small, whole, loadable offline, able to write every answer, as competent as their cards say."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from node.configuration import PolicySection
from node.policy.model_files import BUILTIN_MODELS
from node.policy.policy import Policy
from node.policy.tokens import TokenTable
from node.tasks.default_swarm import DEFAULT_TASKS
from node.tasks.split import Part, held_out_prompts
from scripts import build_models

NAMES = ("finch", "robin", "wren")
ALL_MODELS_BYTES = 8_000_000
MEASURED_PROMPTS = 200

every_model = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module", params=NAMES)
def policy(request: pytest.FixtureRequest) -> Policy:
    return Policy.load(PolicySection(model=f"builtin:{request.param}"))


def card_of(name: str) -> dict[str, tuple[bool, float, float]]:
    """By task: whether it is the model's own, and the card's percentages of right answers, greedy and sampled."""
    card = (BUILTIN_MODELS / name / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| (yes|) ?\| ([\d.]+)% \| ([\d.]+)% \|$", card, re.MULTILINE)
    return {task: (own == "yes", float(greedy), float(sampled)) for task, own, greedy, sampled in rows}


def test_all_models_together_stay_within_their_size() -> None:
    assert sum(path.stat().st_size for path in BUILTIN_MODELS.rglob("*") if path.is_file()) <= ALL_MODELS_BYTES


def test_no_two_models_share_architecture_or_tokenizer() -> None:
    policies = [Policy.load(PolicySection(model=f"builtin:{name}")) for name in NAMES]
    assert len({type(policy.model) for policy in policies}) == len(NAMES)
    assert len({policy.tokens.fingerprint for policy in policies}) == len(NAMES)
    assert len({policy.family for policy in policies}) == len(NAMES)


@every_model
def test_a_model_has_half_a_million_to_two_million_parameters(name: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(BUILTIN_MODELS / name, local_files_only=True)
    assert isinstance(model, PreTrainedModel)
    assert 500_000 <= sum(parameter.numel() for parameter in model.parameters()) <= 2_000_000
    assert all(parameter.isfinite().all() and parameter.dtype == torch.float32 for parameter in model.parameters())


@every_model
def test_each_model_has_two_tasks_of_its_own_and_the_card_is_within_the_bands(name: str) -> None:
    card = card_of(name)
    assert set(card) == {task.name for task in DEFAULT_TASKS}
    assert sum(own for own, _, _ in card.values()) == 2
    for own, _, sampled in card.values():
        assert 20 <= sampled <= 45 if own else sampled < 10


def test_every_task_is_some_models_own_and_no_two_share_one() -> None:
    own = [task for name in NAMES for task, (is_own, _, _) in card_of(name).items() if is_own]
    assert sorted(own) == sorted(task.name for task in DEFAULT_TASKS)


def test_every_tokenizer_writes_every_prompt_and_answer_exactly(policy: Policy) -> None:
    tokens = policy.tokens
    for task in DEFAULT_TASKS:
        for seed in range(50):
            prompt = task.prompt(task.ref(seed))
            assert tokens.text_of(tokens.prompt_ids(prompt.text)).endswith(prompt.text.encode())
            written = tokens.tokenize_completion(str(prompt.answer).encode())
            assert written is not None
            ids, byte_lengths = written
            assert len(ids) + 1 <= task.max_new_tokens
            assert sum(byte_lengths) == len(str(prompt.answer))


def test_a_prompt_begins_with_the_beginning_token_and_an_answer_does_not(policy: Policy) -> None:
    text = DEFAULT_TASKS[0].prompt(DEFAULT_TASKS[0].ref(0)).text
    prompt_ids = policy.tokens.prompt_ids(text)
    written = policy.tokens.tokenize_completion(text.encode())
    assert written is not None
    assert prompt_ids == [prompt_ids[0], *written[0]]
    assert prompt_ids[0] not in written[0]


def test_the_tokenizers_cut_text_differently() -> None:
    text = DEFAULT_TASKS[1].prompt(DEFAULT_TASKS[1].ref(0)).text
    read: Any = AutoTokenizer.from_pretrained
    tables = [TokenTable(read(BUILTIN_MODELS / name)) for name in ("wren", "robin")]
    character, merged = [table.byte_lengths(table.prompt_ids(text)[1:]) for table in tables]
    assert character == [1] * len(text)
    assert sum(merged) == len(text)
    assert len(merged) < len(character)


@every_model
def test_the_cards_figures_are_measured_again(name: str) -> None:
    """Over fewer prompts than the card's, so within four standard errors of a share of half: 0.15."""
    folder = BUILTIN_MODELS / name
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    tasks = {task.name: task for task in DEFAULT_TASKS}
    for task, prompts in held_out_prompts(tasks, Part.TEST, MEASURED_PROMPTS).items():
        _, greedy, _ = card_of(name)[task]
        measured = build_models.knowledge(model, tokenizer, prompts)
        assert abs(measured.greedy - greedy / 100) <= 0.15


@every_model
def test_the_script_makes_the_same_first_weights_and_tokenizer_again(name: str) -> None:
    recipe = build_models.recipe_of(name)

    def first() -> tuple[str, dict[str, torch.Tensor]]:
        torch.manual_seed(recipe.seed)
        tokenizer = build_models.finished_tokenizer(recipe.tokenizer())
        return tokenizer.backend_tokenizer.to_str(), recipe.network(tokenizer).state_dict()

    (one_tokenizer, one), (other_tokenizer, other) = first(), first()
    assert one_tokenizer == other_tokenizer
    assert all(torch.equal(one[key], other[key]) for key in one)
    shipped: Any = AutoTokenizer.from_pretrained(BUILTIN_MODELS / name)
    finished = build_models.finished_tokenizer(recipe.tokenizer())
    assert TokenTable(shipped).fingerprint == TokenTable(finished).fingerprint


def test_the_larger_model_of_benchmarks_has_ten_times_the_weights_of_any_that_is_shipped_and_reads_as_robin() -> None:
    shipped = [recipe for recipe in build_models.RECIPES if recipe.is_shipped]
    (larger,) = [recipe for recipe in build_models.RECIPES if not recipe.is_shipped]
    assert sorted(recipe.name for recipe in shipped) == sorted(NAMES)
    assert larger.folder != BUILTIN_MODELS
    tokenizer = build_models.finished_tokenizer(larger.tokenizer())
    model = larger.network(tokenizer)
    most = max(Policy.load(PolicySection(model=f"builtin:{name}")).parameters for name in NAMES)
    assert sum(parameter.numel() for parameter in model.parameters()) >= 10 * most
    robin: Any = AutoTokenizer.from_pretrained(BUILTIN_MODELS / "robin")
    assert TokenTable(robin).fingerprint == TokenTable(tokenizer).fingerprint
