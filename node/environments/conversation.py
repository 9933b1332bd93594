"""An environment as a task, so that learner, scorer and catalogue know one thing.

A completion of such a task is the list of an episode's actions (``transcript``). Scoring it replays them: the reward is
what they have earned, and where the episode goes on, the verdict has the next observation. A step of a conversation is
therefore the scoring of a longer transcript, in a worker, under its time limit; nothing is kept there between two
steps, so that a worker that dies ends one episode alone. k turns cost k (k + 1) / 2 actions of the environment.
A text that is no transcript is one action: a question with one answer is a conversation of one action.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Final

import msgspec

from node.environments.environment import MOST_TURNS, Environment, Episode, Turn
from node.tasks.canonical import is_plain
from node.tasks.task import Prompt, Task, check_ref, config_hash_of
from protocol.conversations import beginning_digest, turn_digest
from protocol.errors import ConfigurationError
from protocol.messages import PromptRef

_MARK: Final = "starling/turns/1\n"


@dataclass(frozen=True, slots=True)
class Replayed:
    """An episode after some actions, as the environment gave it: not checked. The first text, and its reward, come
    before what followed each action."""

    observations: list[object]
    rewards: list[object]  # of the actions so far
    done: bool  # the environment ended it

    @property
    def reward(self) -> object:
        return self.rewards[-1]


class Played(msgspec.Struct, frozen=True):
    """What followed the actions of an episode, all of it checked."""

    observations: tuple[str, ...]  # after each action that was taken
    digests: tuple[bytes, ...]  # of the first text and of each turn (``protocol.conversations``)
    turn_rewards: tuple[float, ...]  # by how much the reward grew with each action
    goes_on: bool  # the model acts again


class Exchange(msgspec.Struct, frozen=True):
    """One turn of a conversation, for people."""

    action: str
    observation: str
    done: bool
    reward: float  # of the actions so far


class ConversationTask:
    """``Task`` of an environment; its completions are transcripts. Raises ``ConfigurationError`` for an environment
    whose bounds are none."""

    def __init__(self, environment: Environment, source: str | None = None) -> None:
        """``source``: a digest of the code, where it shall be part of the configuration, so that nodes with different
        code have different tasks."""
        if not 1 <= environment.max_turns <= MOST_TURNS:
            raise ConfigurationError(
                f"environment {environment.name!r} has max_turns {environment.max_turns}, wanted 1 to {MOST_TURNS}"
            )
        for bound in ("max_new_tokens", "max_observation_bytes"):
            if getattr(environment, bound) < 1:
                raise ConfigurationError(f"environment {environment.name!r} has {bound} below 1")
        self.environment: Final = environment
        own = environment.config_hash
        self._hash: Final = own if source is None else config_hash_of({"environment": own.hex(), "source": source})

    @property
    def name(self) -> str:
        return self.environment.name

    @property
    def version(self) -> int:
        return self.environment.version

    @property
    def config_hash(self) -> bytes:
        return self._hash

    @property
    def max_new_tokens(self) -> int:
        """Of one action."""
        return self.environment.max_new_tokens

    def ref(self, seed: int) -> PromptRef:
        return msgspec.structs.replace(self.environment.ref(seed), config_hash=self._hash)

    def prompt(self, ref: PromptRef) -> Prompt:
        """Raises ``ConfigurationError`` for a first observation beyond the environment's own bound."""
        text = self._begin(ref).observation()
        fault = observation_fault(self.environment, text)
        if fault is not None:
            raise ConfigurationError(f"environment {self.name!r}, seed {ref.seed}: {fault}")
        return Prompt(ref, text, None, {}, tools=getattr(self.environment, "tools", ()))

    def rewards(self, prompt: Prompt, completions: Sequence[str]) -> list[float]:
        return [self.replay(prompt.ref, actions_of(each)).reward for each in completions]  # type: ignore[misc]

    def replay(self, ref: PromptRef, actions: Sequence[str]) -> Replayed:
        """Returns the episode of ``ref`` after ``actions``, of which those after its end, or beyond ``max_turns``, are
        not taken. Raises whatever the environment raises."""
        episode = self._begin(ref)
        observations, rewards, done = list[object]([episode.observation()]), list[object]([episode.reward()]), False
        for _, turn in self._turns(episode, actions):
            observations.append(turn.observation)
            rewards.append(episode.reward())
            done = bool(turn.done)
        return Replayed(observations, rewards, done)

    def played(self, ref: PromptRef, actions: Sequence[str], replayed: Replayed) -> Played:
        """Returns what ``replay`` returned for ``actions`` once it was checked."""
        first, *observations = map(str, replayed.observations)
        reward, *rewards = (float(reward) for reward in replayed.rewards)  # type: ignore[arg-type]
        earned = tuple(after - before for before, after in pairwise((reward, *rewards)))
        digests = [beginning_digest(ref, first, reward)]
        last = len(observations)
        for turn, (action, observation, reward) in enumerate(zip(actions, observations, rewards, strict=False), 1):
            done = replayed.done and turn == last
            digests.append(turn_digest(digests[-1], action, observation, reward, done=done))
        goes_on = not replayed.done and len(actions) < self.environment.max_turns
        return Played(tuple(observations), tuple(digests), earned, goes_on)

    def exchanges(self, ref: PromptRef, actions: Sequence[str]) -> list[Exchange]:
        """Returns the actions as far as they are taken, each with what follows it. Raises whatever the environment
        raises."""
        episode = self._begin(ref)
        return [
            Exchange(action, turn.observation, bool(turn.done), float(episode.reward()))
            for action, turn in self._turns(episode, actions)
        ]

    def _begin(self, ref: PromptRef) -> Episode:
        check_ref(self, ref, ref.seed + 1)  # which seeds there are, the environment knows
        return self.environment.begin(msgspec.structs.replace(ref, config_hash=self.environment.config_hash))

    def _turns(self, episode: Episode, actions: Sequence[str]) -> Iterator[tuple[str, Turn]]:
        """Yields each action that is taken, with what follows it."""
        for action in actions[: self.environment.max_turns]:
            turn = episode.act(action)
            yield action, turn
            if turn.done:
                return

    def is_canonical(self, prompt: Prompt, completion: str) -> bool:
        """Returns whether each action is in a form that is worth copying: the environment's own, or plain where it
        knows none."""
        return all(map(self._own_form() or is_plain, actions_of(completion)))

    def is_own_text(self, prompt: Prompt, completion: str) -> bool:
        """Returns whether each action is in the environment's own form, of which it knows one."""
        return self._own_form() is not None and self.is_canonical(prompt, completion)

    def _own_form(self) -> Callable[[str], bool] | None:
        return getattr(self.environment, "is_canonical", None)

    def example(self, seed: int) -> list[str] | None:
        """Returns actions that go well in the episode of ``seed``; None where the environment knows none."""
        example = getattr(self.environment, "example", None)
        actions = None if example is None else example(self.environment.ref(seed))
        return None if actions is None else list(actions)


def observation_fault(environment: Environment, observation: object) -> str | None:
    """Returns why ``observation`` is none, or None."""
    if not isinstance(observation, str):
        return f"an observation of type {type(observation).__name__}, wanted text"
    try:
        size = len(observation.encode())
    except UnicodeEncodeError as error:
        return f"an observation that is not Unicode: {error.reason}"
    if size > environment.max_observation_bytes:
        return f"an observation of {size} bytes, max_observation_bytes is {environment.max_observation_bytes}"
    return None


def transcript(actions: Sequence[str]) -> str:
    return _MARK + json.dumps(list(actions))


def as_read(actions: Sequence[str], observations: Sequence[str]) -> str:
    """Returns a conversation after its first text as people read it: actions behind ">", each with what followed."""
    said = zip_longest((f"> {action}" for action in actions), observations)
    return "\n".join(each for turn in said for each in turn if each)


def actions_of(text: str) -> list[str]:
    """Returns the actions of a transcript, or ``text`` itself as the only one."""
    if not text.startswith(_MARK):
        return [text]
    return [str(action) for action in json.loads(text.removeprefix(_MARK))]


def most_turns(task: Task) -> int:
    """Returns how many turns an answer may have: one, unless it is a conversation."""
    return task.environment.max_turns if isinstance(task, ConversationTask) else 1


def most_tokens(task: Task) -> int:
    """Returns how many tokens an answer may have, of a conversation the actions of all turns together."""
    return most_turns(task) * task.max_new_tokens


def most_observed_bytes(task: Task) -> int:
    """Returns how many bytes the observations after the first one may have together."""
    if not isinstance(task, ConversationTask):
        return 0
    return (task.environment.max_turns - 1) * task.environment.max_observation_bytes


def single_answers(tasks: Mapping[str, Task]) -> dict[str, Task]:
    """Returns the tasks that are no environments."""
    return {name: task for name, task in tasks.items() if not isinstance(task, ConversationTask)}
