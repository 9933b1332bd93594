"""Small models that know the form of a game alone: each imitates a scripted player who plays without skill.

    grid            takes any of the open steps
    guess_number    guesses any number between the bounds, whatever it heard before
    database        asks any of four kinds of query about the last word of the question, and answers with the result,
                    or with 0 where there is none

So actions are in the game's form, and right as often as such a player is. Where that was not enough to learn from, some
of the episodes are the environment's own examples.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from node.environments.conversation import ConversationTask
from node.tasks.split import training_prompt
from scripts.experiments.harness.game_models import SEEDS, Lesson, game, teach
from scripts.experiments.models import LEARNING_RATE, MODELS_FOLDER, SHAPE, character_tokenizer

BATCH: Final = 32
LETTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
QUERIES: Final = (
    "SELECT age FROM people WHERE name = '{}'",
    "SELECT count(*) FROM people WHERE city = '{}'",
    "SELECT max(age) FROM people WHERE city = '{}'",
    "SELECT count(*) FROM people WHERE age > {}",
)
# Of the first text, the queries and the messages.
WORDS: Final = (
    "A database has people name city age Write one SQL query at a time and read what it returns Once you know write "
    "answer the How many live in old is oldest person are older than SELECT FROM WHERE count max no rows error such "
    "column"
)


def step(first: str, said: str, draws: Random) -> str:
    return draws.choice(said.split()[-1])


def guess(first: str, said: str, draws: Random) -> str:
    low, high = first.rstrip(":").split("-")
    return str(draws.randint(int(low), int(high)))


def ask(first: str, said: str, draws: Random) -> str:
    if said == first:
        return draws.choice(QUERIES).format(first.split()[-1].rstrip("?"))
    return f"answer: {said if said.isdecimal() else 0}"


@dataclass(frozen=True)
class Player:
    """``choose(first text, what was said last, draws)`` returns the next action."""

    what: str  # the lessons, in words
    choose: Callable[[str, str, Random], str]
    alphabet: str
    context: int
    lessons: int
    steps: int  # of teaching
    aimless: float = 1.0  # share of the lessons that this player plays; the others are the environment's own examples
    words: str = ""  # each is a token of its own; all else is read by characters


PLAYERS: Final[Mapping[str, Player]] = {
    "grid:tiny": Player("taught any of the open steps", step, "0123456789 nswe?\n", 160, 2000, 200),
    "guess_number:tiny": Player(
        "taught any number between the bounds, and in two episodes of five to halve the range",
        guess, "0123456789-:+=?\n", 64, 10_000, 1000, aimless=0.6,
    ),
    "database": Player(
        "taught any of four kinds of query about the question's last word, and to answer with its result",
        ask, LETTERS + "0123456789 (),.:;'*=>?\n", 160, 10_000, 1000, words=WORDS,
    ),
}  # fmt: skip


def played(task: ConversationTask, draws: Random, aimless: float) -> Lesson:
    """Returns the first text of a training episode, and each action with what stands before it: the player's with a
    chance of ``aimless``, otherwise the environment's own example."""
    prompt = training_prompt(task, draws.randrange(SEEDS))
    episode, said, before = task.environment.begin(prompt.ref), prompt.text, ""
    lost = aimless >= 1 or draws.random() < aimless
    way = [] if lost else task.example(prompt.ref.seed) or []
    turns: list[tuple[str, str]] = []
    for number in range(task.environment.max_turns):
        action = PLAYERS[task.name].choose(prompt.text, said, draws) if lost else way[number]
        turns.append((before, action))
        turn = episode.act(action)
        if turn.done:
            break
        said, before = turn.observation, f"\n{turn.observation}\n"
    return prompt.text, turns


@dataclass(frozen=True)
class TaughtModel:
    """A model that was taught the game ``name``. ``aimless`` is the share of its lessons that the player without skill
    plays, None the player's own; ``changes`` are of the network's shape."""

    name: str
    seed: int
    aimless: float | None = None
    reversed_alphabet: bool = False
    changes: Mapping[str, int] = field(default_factory=dict)

    @property
    def player(self) -> Player:
        return PLAYERS[self.name]

    @property
    def shape(self) -> Mapping[str, Any]:
        return {**SHAPE, "max_position_embeddings": self.player.context, **self.changes}

    @property
    def alphabet(self) -> str:
        return self.player.alphabet[::-1] if self.reversed_alphabet else self.player.alphabet

    @property
    def aimless_share(self) -> float:
        return self.player.aimless if self.aimless is None else self.aimless

    @property
    def folder(self) -> Path:
        """Where the model is, or will be: equal folders, equal models."""
        player, hash_of_game = self.player, game(self.name).config_hash.hex()
        teaching = [player.lessons, player.steps, BATCH, LEARNING_RATE]
        recipe = [self.seed, self.name, hash_of_game, self.alphabet, player.words, teaching, self.shape]
        digest = hashlib.sha256(json.dumps([*recipe, self.aimless_share]).encode()).hexdigest()[:12]
        return MODELS_FOLDER / f"plays-{self.name.partition(':')[0]}-{digest}"

    def ensure(self) -> Path:
        """Returns ``folder``, after making the model where it is missing."""
        if (self.folder / "tokenizer.json").is_file():
            return self.folder
        task, player, draws = game(self.name), self.player, Random(self.seed)
        lessons = [played(task, draws, self.aimless_share) for _ in range(player.lessons)]
        tokenizer = character_tokenizer(self.alphabet, player.words.split())
        teach(
            self.folder, tokenizer, self.shape, lambda: draws.sample(lessons, BATCH), seed=self.seed, steps=player.steps
        )
        return self.folder
