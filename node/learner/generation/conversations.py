"""Conversations: from the first action of each episode to the last, all episodes of a round in step.

A turn is one call of the engine for every episode that goes on, each from its own conversation so far, and one call of
the scorer, which replays the actions and says what follows (``node.environments.conversation``). Ids are kept: the
prompt is rendered once, sampled ids stay as they were sampled, and each observation is tokenized alone and appended. A
chat template that writes earlier turns differently, such as one that leaves their thoughts out, cannot be extended so:
there the model reads the conversation as the template writes it, and what follows is a new sample to learn from.
An episode ends when its environment says so, after ``max_turns``, when the next observation leaves no room for an
action in the model's context, or when its environment fails, which earns 0 and is counted. One that is cut off has what
its environment gives it until then.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from node.engines.engine import Engine, GenerationRequest, Sample, Sampling, Segment
from node.environments.conversation import Played, as_read, transcript
from node.learner.generation.own_rollouts import RewardScorer, Rollout
from node.policy.tokens import TokenTable
from node.tasks.scorer import Scores, ScoringFault
from node.tasks.task import Prompt


@dataclass(slots=True, eq=False)
class _Episode:
    """One episode while it runs."""

    row: list[int]  # the conversation so far, prompt included
    prompt: Prompt
    samples: list[Sample]  # of each turn
    actions: list[str] = field(default_factory=list)
    observed: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    anew: list[int] = field(default_factory=list)  # as ``Sample`` has it
    played: Played | None = None  # what followed the actions, once they are scored
    reward: float = 0.0
    fault: ScoringFault | None = None
    ended: bool = False

    def acted(self, sample: Sample, tokens: TokenTable) -> None:
        """Takes the next action."""
        ids = sample.token_ids.tolist()
        self.samples.append(sample)
        self.row += ids
        self.actions.append(tokens.text_of(ids).decode("utf-8", "replace"))

    def told(self, played: Played | None, tokens: TokenTable, context: int) -> None:
        """Takes what follows the last action; None: nothing does."""
        self.played, self.ended = played, True
        if played is None or not played.goes_on:
            return
        said = [each for turn in zip(self.actions, played.observations, strict=True) for each in turn]
        ids, anew = tokens.heard_ids(self.prompt.text, self.prompt.tools, said, after=self.row[-1])
        row = [*(() if anew else self.row), *ids]
        if len(row) >= context:
            return
        place = sum(len(each.token_ids) for each in self.samples)
        self.row, self.ended = row, False
        self.observed.append((place, ids))
        self.anew += [place] if anew else []

    def sample(self) -> Sample:
        """Returns all actions as one sample."""
        segments: list[Segment] = []
        for each in (segment for sample in self.samples for segment in sample.segments):
            if segments and segments[-1].version == each.version:
                each = Segment(each.version, segments.pop().tokens + each.tokens)
            segments.append(each)
        return Sample(
            np.concatenate([each.token_ids for each in self.samples]),
            np.concatenate([each.logps for each in self.samples]),
            self.samples[-1].finish,
            tuple(segments),
            tuple(self.observed),
            tuple(self.anew),
        )

    def text(self) -> bytes:
        """Returns the conversation after the prompt as people read it."""
        return as_read(self.actions, self.played.observations if self.played is not None else ()).encode()


@dataclass(frozen=True, slots=True, eq=False)
class Conversing:
    """Continues conversations. It keeps nothing between two calls."""

    engine: Engine
    tokens: TokenTable
    scorer: RewardScorer
    temperature: float
    context: int

    def to_the_end(
        self,
        begun: Sequence[tuple[Rollout, int]],
        seed: int,
        halted: Callable[[], bool] | None = None,
    ) -> list[Rollout] | None:
        """Returns the groups with whole conversations, scored. ``begun``: each with the samples of the first turn, and
        the most tokens of an action. None once ``halted`` returns true."""
        groups = [[self._begun(rollout, sample) for sample in rollout.samples] for rollout, _ in begun]
        turn = 0
        while True:
            self._step([(rollout, episodes) for (rollout, _), episodes in zip(begun, groups, strict=True)])
            everyone = [
                (episode, most) for (_, most), episodes in zip(begun, groups, strict=True) for episode in episodes
            ]
            running = [(number, *each) for number, each in enumerate(everyone) if not each[0].ended]
            if not running:
                break
            turn += 1
            draws = random.Random(f"starling/turn/{seed}/{turn}").getrandbits(63)
            requests = [
                GenerationRequest(
                    tuple(episode.row), 1, min(most, self.context - len(episode.row)), conversation=number
                )
                for number, episode, most in running
            ]
            enough = None if halted is None else lambda _: halted()
            reached = self.engine.advance(requests, Sampling(self.temperature, draws), enough)
            if not all(each.samples for each in reached):
                return None
            for (_, episode, _), each in zip(running, reached, strict=True):
                episode.acted(each.samples[0], self.tokens)
        return [self._whole(rollout, episodes) for (rollout, _), episodes in zip(begun, groups, strict=True)]

    def _begun(self, rollout: Rollout, sample: Sample) -> _Episode:
        episode = _Episode(list(rollout.prompt_ids), rollout.prompt, [])
        episode.acted(sample, self.tokens)
        return episode

    def _step(self, groups: Sequence[tuple[Rollout, Sequence[_Episode]]]) -> None:
        """Lets the environments answer the last action of every episode that goes on."""
        going = [(rollout, [each for each in episodes if not each.ended]) for rollout, episodes in groups]
        going = [(rollout, episodes) for rollout, episodes in going if episodes]
        items = [(rollout.prompt.ref, [transcript(each.actions) for each in episodes]) for rollout, episodes in going]
        for (_, episodes), scores in zip(going, self.scorer.score(items), strict=True):
            played = scores.played or (None,) * len(episodes)
            columns = zip(episodes, scores.rewards, scores.faults, played, strict=True)
            for episode, reward, fault, each in columns:
                episode.reward, episode.fault = reward, fault
                episode.told(each, self.tokens, self.context)

    def _whole(self, rollout: Rollout, episodes: Sequence[_Episode]) -> Rollout:
        scores = Scores(
            tuple(each.reward for each in episodes),
            tuple(each.fault for each in episodes),
            tuple(each.played for each in episodes),
        )
        samples = tuple(each.sample() for each in episodes)
        return Rollout(rollout.prompt, rollout.prompt_ids, samples, tuple(each.text() for each in episodes), scores)
