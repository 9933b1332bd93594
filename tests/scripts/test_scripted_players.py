"""The players whom small models imitate before they learn a game alone."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest

from node.tasks.split import Part, part_of
from scripts.experiments.harness.game_models import Lesson, game
from scripts.experiments.harness.players import PLAYERS, played
from scripts.experiments.models import character_tokenizer

LESSONS = 100


def lessons(name: str, aimless: float) -> list[Lesson]:
    draws = Random(1)
    return [played(game(name), draws, aimless) for _ in range(LESSONS)]


@pytest.mark.parametrize("name", PLAYERS)
def test_tokens_of_a_lesson_are_known_and_fit_the_context_and_say_the_same(name: str) -> None:
    player = PLAYERS[name]
    tokenizer = character_tokenizer(player.alphabet, player.words.split())
    for text, turns in lessons(name, player.aimless):
        pieces = [text, *(piece for turn in turns for piece in turn)]
        ids = [tokenizer.encode(piece, add_special_tokens=False) for piece in pieces]
        assert [tokenizer.decode(each) for each in ids] == pieces
        assert all(tokenizer.unk_token_id not in each for each in ids)
        assert 1 + sum(map(len, ids)) + len(turns) <= player.context  # one begins the text, one ends each action


@pytest.mark.parametrize("name", PLAYERS)
def test_actions_are_within_the_games_bound_of_tokens(name: str) -> None:
    task, player = game(name), PLAYERS[name]
    tokenizer = character_tokenizer(player.alphabet, player.words.split())
    actions = [action for _, turns in lessons(name, player.aimless) for _, action in turns]
    assert all(len(tokenizer.encode(each, add_special_tokens=False)) < task.max_new_tokens for each in actions)


def test_player_halves_the_range_in_examples_alone() -> None:
    def share_of_middles(aimless: float) -> float:
        bounds = [(text.rstrip(":").split("-"), turns) for text, turns in lessons("guess_number:tiny", aimless)]
        return fmean(int(turns[0][1]) == (int(low) + int(high)) // 2 for (low, high), turns in bounds)

    assert share_of_middles(0.0) == 1
    assert share_of_middles(1.0) < 0.4


@pytest.mark.parametrize("name", PLAYERS)
def test_no_lesson_begins_with_a_held_out_text(name: str) -> None:
    task = game(name)
    held_out = {p.text for p in map(task.prompt, map(task.ref, range(2000))) if part_of(p) is not Part.TRAINING}
    assert held_out.isdisjoint(text for text, _ in lessons(name, 1.0))
