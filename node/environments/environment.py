"""The interface of an environment: conversations that any node replays from a reference and the model's actions.

Pure: equal references and equal actions give equal observations and rewards, in every process and on every machine. An
episode draws from ``random.Random(ref.seed)`` alone. It reads no clock, file or network, no global random state, and
depends on the order of no set. ``starling tasks NAME --audit`` looks for what breaks this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from protocol import limits
from protocol.messages import PromptRef

MOST_TURNS: Final = limits.TURNS


@dataclass(frozen=True, slots=True)
class Turn:
    """What follows an action: what is said to the model, unless the episode is ``done``."""

    observation: str
    done: bool = False


class Episode(Protocol):
    """One conversation. Only its actions change it."""

    def observation(self) -> str:
        """Returns the first text, which is the model's prompt. Whether an episode teaches or measures is decided by it
        (``node.tasks.split``), so it should say what sets this episode apart."""

    def act(self, text: str) -> Turn:
        """Takes an action of the model, which may be any text. Never called again once a turn is done."""

    def reward(self) -> float:
        """Returns what the actions so far have earned, 0 to 1. Asked also where an episode was cut off."""


class Environment(Protocol):
    """Begins episodes. Two methods are optional. ``example(ref) -> Sequence[str]`` returns actions that go well: a
    sample for people, and what an audit tries beside random actions. ``is_canonical(action) -> bool`` says whether a
    text is an action with nothing around what the environment reads. Actions of strangers are copied only where it
    does, so that their texts teach the game and nothing else. An optional attribute ``tools`` has the tools that
    actions may call, as chat templates take them; the template then also writes observations as what a tool
    returned."""

    @property
    def name(self) -> str:
        """At most 64 bytes of UTF-8; unique among a node's tasks and environments."""

    @property
    def version(self) -> int:
        """Raised with every change of observations or rewards."""

    @property
    def config_hash(self) -> bytes:
        """16 bytes that differ if anything differs that shapes observations or rewards: ``config_hash_of``."""

    @property
    def max_turns(self) -> int:
        """The most actions of an episode, 1 to ``MOST_TURNS``; then it is cut off."""

    @property
    def max_new_tokens(self) -> int:
        """The most tokens of one action, in tokens of the generating policy."""

    @property
    def max_observation_bytes(self) -> int:
        """The most bytes of UTF-8 of an observation. A longer one ends the episode with reward 0."""

    def ref(self, seed: int) -> PromptRef:
        """Returns the reference of an episode for any seed from 0 up, as a rule modulo the number of episodes."""

    def begin(self, ref: PromptRef) -> Episode:
        """Returns a new episode. Raises ``MalformedError`` for a reference that the environment lacks
        (``check_ref``)."""
