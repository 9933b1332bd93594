"""Small models taught the form of several games, and to play some of them well.

A lesson is an episode with the environment's own actions. Of a game that is not taught, the actions are those of
another episode, played all the same: the model then knows what an action looks like, and is right only by chance.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import torch
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from node.environments.conversation import ConversationTask
from node.tasks.registry import BUILT_IN_TASKS
from node.tasks.split import training_prompt
from scripts.build_models import IGNORED, padded
from scripts.experiments.models import LEARNING_RATE, SHAPE, character_tokenizer, network

ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz0123456789 :*+-?=,.'\n"
CONTEXT: Final = 192
BATCH: Final = 32
SEEDS: Final = 1 << 32

Lesson = tuple[str, list[tuple[str, str]]]  # the first text; each action with what is read before it


@dataclass(frozen=True)
class GameModel:
    """``games``: how often a lesson is of this game, and the share of these that go well."""

    name: str
    seed: int
    games: tuple[tuple[str, float, float], ...]
    steps: int
    hidden_size: int = 96
    reversed_alphabet: bool = False  # other token ids

    @property
    def shape(self) -> Mapping[str, Any]:
        return {**SHAPE, "max_position_embeddings": CONTEXT, "hidden_size": self.hidden_size}

    @property
    def key(self) -> str:
        """Names the folder: equal keys, equal models."""
        hashes = {name: game(name).config_hash.hex() for name, _, _ in self.games}
        shape = [asdict(self), dict(self.shape), hashes, ALPHABET, BATCH, LEARNING_RATE]
        return f"game-{self.name}-{hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:12]}"


def game(name: str) -> ConversationTask:
    task = BUILT_IN_TASKS[name]
    assert isinstance(task, ConversationTask)
    return task


def lesson(task: ConversationTask, draws: Random, *, goes_well: bool) -> Lesson:
    """Returns the first text of a training episode, and each action with what is read before it."""
    prompt = training_prompt(task, draws.randrange(SEEDS))
    other = prompt if goes_well else training_prompt(task, draws.randrange(SEEDS))
    exchanges = task.exchanges(prompt.ref, task.example(other.ref.seed) or [])
    heard = ["", *(f"\n{each.observation}\n" for each in exchanges)]
    return prompt.text, [(before, each.action) for before, each in zip(heard, exchanges, strict=False)]


def ensure(model: GameModel, root: Path) -> str:
    """Returns the name of the model's folder under ``root``, after making the model where it is missing."""
    folder = root / model.key
    if (folder / "tokenizer.json").is_file():
        return model.key
    torch.set_num_threads(1)
    draws = Random(model.seed)
    weights = [weight for _, weight, _ in model.games]

    def lessons() -> list[Lesson]:
        drawn = draws.choices(model.games, weights, k=BATCH)
        return [lesson(game(name), draws, goes_well=draws.random() < share) for name, _, share in drawn]

    alphabet = ALPHABET[::-1] if model.reversed_alphabet else ALPHABET
    teach(folder, character_tokenizer(alphabet), model.shape, lessons, seed=model.seed, steps=model.steps)
    return model.key


def teach(
    folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    shape: Mapping[str, Any],
    lessons: Callable[[], Sequence[Lesson]],
    *,
    seed: int,
    steps: int,
) -> None:
    """Saves in ``folder`` a network of ``shape`` that has imitated the actions of ``steps`` batches of ``lessons``."""
    torch.manual_seed(seed)
    learner = network(tokenizer, shape)
    optimizer = torch.optim.AdamW(learner.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    encode = partial(tokenizer.encode, add_special_tokens=False)
    for step in range(steps):
        rows, labels = list[list[int]](), list[list[int]]()
        for text, turns in lessons():
            row = tokenizer.encode(text)
            label = [IGNORED] * len(row)
            for heard, action in turns:
                said = [*encode(action), tokenizer.eos_token_id]
                row += [*encode(heard), *said]
                label += [IGNORED] * len(encode(heard)) + said
            rows.append(row)
            labels.append(label)
        wanted = padded(labels, IGNORED, left=False)
        logits = learner(padded(rows, tokenizer.pad_token_id, left=False)).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), wanted[:, 1:].flatten())
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, step / 30, 4 * (1 - step / steps))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch
        optimizer.step()
    shutil.rmtree(folder, ignore_errors=True)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers
    learner.eval().save_pretrained(folder)  # type: ignore[no-untyped-call]  # transformers
    tokenizer.save_pretrained(folder)  # last: it marks a complete model
