"""The games of TextArena (the extra ``games``) for one player: ``tasks.names = ["textarena:GuessTheNumber-v0"]``.

Of a game only what it says anew is told to the model, since the conversation holds the rest. An action without brackets
is given some, as TextArena's own wrapper does. The reward is the game's, within 0 and 1. TextArena's version is part of
the configuration. Not every game plays again what it played: Minesweeper draws from the global generator.
"""

from __future__ import annotations

import random
from importlib import import_module, metadata
from typing import Any, Final

from node.environments.environment import Turn
from node.environments.seeded import SeededEnvironment
from protocol.errors import ConfigurationError

PREFIX: Final = "textarena:"
GAMES: Final = 100_000
MOST_SEED: Final = 1 << 31
MOST_ACTION_CHARACTERS: Final = 1_000
MAX_TURNS: Final = 40
MAX_NEW_TOKENS: Final = 128
MAX_OBSERVATION_BYTES: Final = 8_000


def textarena_environment(game: str) -> SeededEnvironment:
    """Returns the game with this id as an environment. Raises ``ConfigurationError`` for an id that TextArena lacks,
    and without TextArena."""
    try:
        textarena: Any = import_module("textarena")  # without types
    except ImportError as error:
        raise ConfigurationError(f"{PREFIX}{game} needs TextArena: pip install 'starling-swarm[games]'") from error
    if f"{game}-raw" not in textarena.envs.registration.ENV_REGISTRY:
        raise ConfigurationError(f"TextArena has no game {game!r}: its ids are as GuessTheNumber-v0")

    def episode(draws: random.Random) -> TextArenaEpisode:
        return TextArenaEpisode(textarena.make(f"{game}-raw"), draws)

    version = {"textarena": metadata.version("textarena")}
    return SeededEnvironment(
        f"{PREFIX}{game}", episode, MAX_TURNS, MAX_NEW_TOKENS, MAX_OBSERVATION_BYTES, config=version
    )


class TextArenaEpisode:
    """With several ``players`` the model has every seat."""

    def __init__(self, game: Any, draws: random.Random, players: int = 1) -> None:
        self._game = game
        game.reset(num_players=players, seed=draws.randrange(MOST_SEED))
        # Many games begin alike, and nothing could be measured on those: which episodes teach, their first text says.
        self._first = f"{self._said()}\nThis is game {draws.randrange(GAMES)}."

    def observation(self) -> str:
        return self._first

    def act(self, text: str) -> Turn:
        text = text[:MOST_ACTION_CHARACTERS]  # some games read numbers of any length
        done, _ = self._game.step(text if "[" in text and "]" in text else f"[{text}]")
        return Turn("" if done else self._said(), done=bool(done))

    def reward(self) -> float:
        rewards = self._game.state.rewards  # None until the game is over
        return min(max(float(rewards.get(0, 0.0)), 0.0), 1.0) if rewards else 0.0

    def _said(self) -> str:
        """Returns what the game says to the player whose turn it is, without the player's own actions."""
        player, messages = self._game.get_observation()
        return "\n".join(text for sender, text, _ in messages if sender != player)
