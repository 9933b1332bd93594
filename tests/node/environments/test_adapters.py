"""Environments of other interfaces: gymnasium's ``reset`` and ``step``, tools, TextArena's games."""

from __future__ import annotations

import json
import random
from importlib import import_module
from typing import Any

import pytest

from node.configuration import TasksSection
from node.environments.adapters.gym import gym_environment
from node.environments.adapters.textarena_games import TextArenaEpisode
from node.environments.adapters.tools import schema, tool_environment
from node.environments.audit import audit, difference
from node.environments.audit_process import played
from node.environments.conversation import ConversationTask, transcript
from node.environments.seeded import SeededEnvironment
from node.tasks.registry import named_tasks
from node.tasks.worker import score_one
from protocol.errors import ConfigurationError


class Corridor:
    """With gymnasium's interface: walk to the end of a corridor; a step right earns a quarter."""

    def reset(self, *, seed: int | None = None) -> tuple[int, dict[str, Any]]:
        self.place = random.Random(seed).randrange(4)
        return self.place, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.place += action
        return self.place, 0.25 * action, self.place >= 5, self.place < 0, {}


def corridor() -> ConversationTask:
    return ConversationTask(
        gym_environment("corridor", Corridor, max_turns=9, written="You are at {}.".format, read=int)
    )


def test_steps_are_turns_and_their_rewards_add_up_within_0_and_1() -> None:
    task = corridor()
    seed = next(seed for seed in range(99) if task.prompt(task.ref(seed)).text == "You are at 1.")
    told = task.exchanges(task.ref(seed), ["1", "two", "2", "1", "1"])
    assert [each.observation for each in told] == [
        "You are at 2.", "That is no action.", "You are at 4.", "You are at 5.",
    ]  # fmt: skip
    assert [each.reward for each in told] == [0.25, 0.25, 0.75, 1.0]
    assert told[-1].done
    (below,) = task.exchanges(task.ref(seed), ["-2"])
    assert (below.reward, below.done) == (0.0, True)
    assert difference(seed, ["1"], *(played(task, seed, ["1"], unkind) for unkind in (False, True))) is None


class Shelf:
    """With the interface of TRL's environments."""

    def reset(self, *, prompt: str, books: list[str]) -> str | None:
        self.books, self.lent = list(books), list[str]()
        return f" There are {len(books)}."

    def look(self, place: int) -> str:
        """Say which book stands at a place.

        Args:
            place: counted from 0

        Returns:
            The title.
        """
        return self.books[place]

    def lend(self, title: str, weeks: int = 2) -> str:
        """Lend a book."""
        self.books.remove(title)
        self.lent.append(title)
        return f"for {weeks} weeks"

    def _hidden(self) -> str:
        return "secret"


def shelf() -> ConversationTask:
    def row(draws: random.Random) -> dict[str, Any]:
        return {"prompt": "Lend the book at place 1, and say its title.", "books": draws.sample(["Ann", "Bo", "Cy"], 3)}

    def reward(made: Shelf, answer: str) -> float:
        return float(made.lent == [answer])

    return ConversationTask(tool_environment("shelf", Shelf, row, reward, max_turns=5))


def test_public_methods_but_reset_are_tools_with_their_types_and_docstrings() -> None:
    task = shelf()
    prompt = task.prompt(task.ref(0))
    assert prompt.text == "Lend the book at place 1, and say its title. There are 3."
    look, lend = (each["function"] for each in prompt.tools)
    assert (look["name"], look["description"]) == ("look", "Say which book stands at a place.")
    assert look["parameters"]["properties"] == {"place": {"type": "integer", "description": "counted from 0"}}
    assert (lend["name"], lend["parameters"]["required"]) == ("lend", ["title"])


@pytest.mark.parametrize(
    "written",
    [
        "{}",
        "```json\n{}\n```",
        "<tool_call>\n{}\n</tool_call>",
        "[TOOL_CALLS][{}]",
        "<|python_tag|>{}",
        "I look it up: {} and then I say it.",
    ],
)
@pytest.mark.parametrize("key", ["arguments", "parameters"])
def test_tool_is_called_in_the_format_of_any_of_the_templates(written: str, key: str) -> None:
    task = shelf()
    asked = written.replace("{}", json.dumps({"name": "look", key: {"place": 1}}))
    title = str(task.replay(task.ref(0), [asked]).observations[-1])
    lent = json.dumps({"name": "lend", key: {"title": title}})
    both = task.exchanges(task.ref(0), [written.replace("{}", lent), f" {title}\n"])
    assert [each.observation for each in both] == ["for 2 weeks", ""]
    assert (both[-1].done, both[-1].reward) == (True, 1.0)


def test_small_model_calls_by_words_and_several_calls_are_answered_on_lines() -> None:
    task = shelf()
    first, second = (str(task.replay(task.ref(0), [f"look {place}"]).observations[-1]) for place in (0, 1))
    calls = json.dumps([{"name": "look", "arguments": {"place": place}} for place in (0, 1)])
    assert task.replay(task.ref(0), [calls]).observations[-1] == f"{first}\n{second}"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ('{"name": "_hidden"}', "there is no tool '_hidden', but look, lend"),
        ('{"name": "reset", "arguments": {}}', "there is no tool 'reset'"),
        ('{"name": "look", "arguments": {"shelf": 1}}', "look takes place"),
        ('{"name": "look", "arguments": [1]}', "look takes place"),
        ('{"name": "look", "arguments": {"place": true}}', "place is no integer"),
        ('{"name": "look", "arguments": {"place": 1e999}}', "place is no integer"),
        ('{"name": "look", "arguments": {"place": 7}}', "list index out of range"),
        ('{"name": "look"}', "missing 1 required positional argument: 'place'"),
        ("look one", "place is no integer"),
    ],
)
def test_call_that_fails_is_answered_with_its_error_and_the_episode_goes_on(asked: str, told: str) -> None:
    verdict = score_one(shelf(), shelf().prompt(shelf().ref(0)), transcript([asked]))
    assert verdict.fault is None and verdict.played is not None
    assert verdict.played.goes_on and verdict.played.observations[-1].startswith("error: ")
    assert told in verdict.played.observations[-1]


def test_tool_whose_arguments_have_no_plain_type_is_refused() -> None:
    def put(things: list[str]) -> None: ...

    with pytest.raises(ValueError, match="things"):
        schema(put)


def test_game_of_textarena_says_only_what_is_new_and_begins_differently() -> None:
    (task,) = named_tasks("textarena:GuessTheNumber-v0")
    assert isinstance(task, ConversationTask)
    texts = {task.prompt(task.ref(seed)).text for seed in range(8)}
    assert len(texts) == 8
    heard = [str(task.replay(task.ref(0), ["3", "4"][:turns]).observations[-1]) for turns in (1, 2)]
    assert all(each in {"The target number is higher.", "The target number is lower."} for each in heard)


@pytest.mark.parametrize("game", ["Poker-v0", "NoSuchGame-v0"])
def test_game_for_several_players_or_of_no_known_id_is_refused(game: str) -> None:
    with pytest.raises(ConfigurationError):
        named_tasks(f"textarena:{game}")


def test_game_that_draws_from_the_global_generator_is_found_out() -> None:
    textarena: Any = import_module("textarena")

    def poker(draws: random.Random) -> TextArenaEpisode:
        return TextArenaEpisode(textarena.make("Poker-v0-raw"), draws, players=2)

    task = ConversationTask(SeededEnvironment("poker", poker, 40, max_observation_bytes=20_000))
    found = [
        difference(s, ["call"] * 40, *(played(task, s, ["call"] * 40, u) for u in (False, True))) for s in range(4)
    ]
    assert any(found)


@pytest.mark.processes
def test_audit_tells_games_that_replay_from_those_that_do_not() -> None:
    passed = {game: audit(TasksSection(), f"textarena:{game}").passed for game in ("Bandit-v0", "Minesweeper-v0")}
    assert passed == {"Bandit-v0": True, "Minesweeper-v0": False}
