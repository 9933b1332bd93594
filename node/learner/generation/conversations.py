"""What follows the actions of conversations, while an engine samples others.

The scoring workers play each episode from its beginning with one action more and say what follows
(``node.environments.conversation``), as many at a time as there are workers. Ids are kept: the prompt is rendered once,
sampled ids stay as they were sampled, and each observation is tokenized alone and appended. A chat template that writes
earlier turns differently, such as one that leaves their thoughts out, cannot be extended so: there the model reads the
conversation as the template writes it, and what follows is a new sample to learn from. An episode ends when its
environment says so, after ``max_turns``, when the next observation leaves no room for an action in the model's context,
or when its environment fails, which earns 0 and is counted. One that is cut off has what its environment gives it until
then.

What follows is a function of the reference and the actions. So it is kept by these for one call, and asked again where
it is not known, as for an episode that had ended before a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue

import numpy as np
from numpy.typing import NDArray

from node.engines.engine import Heard, Sample
from node.environments.conversation import Played, as_read, transcript
from node.learner.generation.own_rollouts import RewardScorer, Rollout
from node.policy.tokens import TokenTable
from node.tasks.scorer import Scores
from node.tasks.task import Prompt
from protocol.messages import PromptRef


@dataclass(frozen=True, slots=True)
class _Acted:
    """A conversation that waits for what follows its last action."""

    conversation: int
    prompt: Prompt
    actions: list[str]
    last: int  # the token with which the action ended


class Conversing:
    """``Turns`` of one call of an engine, whose requests are of ``prompts``."""

    def __init__(self, prompts: Sequence[Prompt], tokens: TokenTable, scorer: RewardScorer) -> None:
        self._prompts, self._tokens, self._scorer = prompts, tokens, scorer
        self._known: dict[tuple[PromptRef, str], Scores] = {}  # of one transcript each
        self._texts: dict[bytes, str] = {}  # of actions, by their ids
        self._acted: dict[int, list[_Acted]] = {}  # since the last call of ``replies``, by request
        self._done = SimpleQueue[tuple[_Acted, Future[Scores]]]()

    @property
    def rewrites(self) -> bool:
        return not self._tokens.extends

    def acted(self, conversation: int, request: int, so_far: Sample) -> None:
        acted = _Acted(conversation, self._prompts[request], self._actions(so_far), int(so_far.token_ids[-1]))
        self._acted.setdefault(request, []).append(acted)

    def replies(self, *, wait: bool) -> list[tuple[int, Heard | None]]:
        """Raises what scoring raised."""
        for of_one in self._acted.values():
            futures = self._scorer.submit(of_one[0].prompt.ref, [transcript(each.actions) for each in of_one])
            for each, future in zip(of_one, futures, strict=True):
                future.add_done_callback(partial(self._put, each))
        self._acted = {}
        found: list[tuple[int, Heard | None]] = []
        while True:
            try:
                acted, done = self._done.get(block=wait and not found)
            except Empty:
                return found
            scores = self._known[acted.prompt.ref, transcript(acted.actions)] = done.result()
            played = scores.played[0] if scores.played else None
            heard = self._heard(acted, played) if played is not None and played.goes_on else None
            found.append((acted.conversation, heard))

    def _put(self, acted: _Acted, done: Future[Scores]) -> None:
        self._done.put((acted, done))

    def _heard(self, acted: _Acted, played: Played) -> Heard:
        said = [each for turn in zip(acted.actions, played.observations, strict=True) for each in turn]
        return Heard(*self._tokens.heard_ids(acted.prompt.text, acted.prompt.tools, said, after=acted.last))

    def rollout(self, prompt: Prompt, prompt_ids: Sequence[int], samples: Sequence[Sample]) -> Rollout:
        """Returns the conversations of one prompt, which have ended, with what each earned."""
        actions = [self._actions(sample) for sample in samples]
        said = [transcript(each) for each in actions]
        unknown = [each for each in dict.fromkeys(said) if (prompt.ref, each) not in self._known]
        for text, scores in zip(unknown, self._scorer.score([(prompt.ref, [text]) for text in unknown]), strict=True):
            self._known[prompt.ref, text] = scores
        found = [self._known[prompt.ref, each] for each in said]
        played = tuple(each.played[0] if each.played else None for each in found)
        texts = tuple(
            as_read(acts, each.observations if each is not None else ()).encode()
            for acts, each in zip(actions, played, strict=True)
        )
        scores = Scores(tuple(each.rewards[0] for each in found), tuple(each.faults[0] for each in found), played)
        return Rollout(prompt, tuple(prompt_ids), tuple(samples), texts, scores)

    def _actions(self, so_far: Sample) -> list[str]:
        ends = [*(place for place, _ in so_far.observed), len(so_far.token_ids)]
        return [self._text(so_far.token_ids[begin:end]) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]

    def _text(self, ids: NDArray[np.int64]) -> str:
        name = ids.tobytes()
        if name not in self._texts:
            self._texts[name] = self._tokens.text_of(ids.tolist()).decode("utf-8", "replace")
        return self._texts[name]
