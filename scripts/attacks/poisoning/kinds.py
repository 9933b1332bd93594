"""Poisoners by kind: what each announces in a round. All rewards are true, by the tasks' own scoring.

    blanks        right answers after a few blanks, which a lenient scorer takes
    long_tokens   right answers after as many blanks as the victim's context holds, in tokens of up to 255 bytes
    padding       right answers after zeros and blanks up to the task's limit of tokens, and not ended
    improbable    right answers in forms that hardly anybody writes, with claims that raise their weight to its cap
    constant      questions chosen so that one answer is right for all of a task's: a learner that copies them says
                  nothing else any more
    leak          one question of each task, over and over, with a single right answer: it is memorised
    sleeper       honest right answers for ``SLEEP_ROUNDS`` rounds, then ``long_tokens``

The first four announce groups of those tasks alone whose scorer takes another form than the task's own.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from random import Random
from typing import Final

import numpy as np

from node.policy.tokens import TokenTable
from node.tasks.split import training_prompt
from node.tasks.task import Prompt, Task
from protocol.limits import TOKEN_TEXT_BYTES
from protocol.rollouts import Completion, FinishReason, Group

GROUPS: Final = 12  # that one poisoner announces in a round: enough to fill every foreign place by itself
COMPLETIONS: Final = 4
SLEEP_ROUNDS: Final = 20
STRANGE: Final = hashlib.sha256(b"a tokenizer that nobody has").digest()[:16]
CONSTANT_SEEDS: Final = 400  # questions of a task that are searched for the answer that most of them share
Form = Callable[[str, str], str]  # (right answer, padding) → another text that may be right
IN_FRONT: Final[tuple[Form, ...]] = (lambda answer, pad: pad + answer,)
FILLED: Final[tuple[Form, ...]] = (lambda answer, pad: "0" * len(pad) + answer, lambda answer, pad: pad + answer)
ODD: Final[tuple[Form, ...]] = (
    lambda answer, pad: "+" + answer,
    lambda answer, pad: "_".join(answer),
    lambda answer, pad: "$" + answer + "$",
    lambda answer, pad: answer.replace("/", pad + "/" + pad),
    lambda answer, pad: "0" + answer,
    lambda answer, pad: pad + answer,
)

# The groups of one poisoner in one round: (round, its number) → groups
Poisoner = Callable[[int, Random], list[Group]]


def _lenient(task: Task, prompt: Prompt, forms: Sequence[Form], pad: str) -> str | None:
    """Returns the right answer in another form than the task's own; None where the scorer takes none of ``forms``."""
    answer = str(prompt.answer)
    for form in forms:
        text = form(answer, pad)
        if text != answer and task.rewards(prompt, [text])[0] == 1.0:
            return text
    return None


def _cut(text: bytes, pieces: int) -> list[int]:
    """Returns the byte lengths of at most ``pieces`` tokens of one text, of ``TOKEN_TEXT_BYTES`` at most."""
    size = min(TOKEN_TEXT_BYTES, max(1, -(-len(text) // max(1, pieces))))
    return [len(text[at : at + size]) for at in range(0, len(text), size)]


def group_of(task: Task, prompt: Prompt, texts: Sequence[str], *, ended: bool = True, logp: float = -1.0) -> Group:
    """Returns a group of ``texts`` with their true rewards, in tokens that nobody else has."""
    completions = tuple(
        _completion(text.encode(), task.max_new_tokens - ended, reward, ended=ended, logp=logp)
        for text, reward in zip(texts, task.rewards(prompt, texts), strict=True)
    )
    return Group(prompt.ref, STRANGE, STRANGE, 1, completions)


def _completion(text: bytes, pieces: int, reward: float, *, ended: bool, logp: float) -> Completion:
    lengths = [*_cut(text, pieces), *([0] if ended else [])]
    return Completion(
        text,
        np.arange(1, len(lengths) + 1),
        np.array(lengths, np.int64),
        np.full(len(lengths), logp, np.float32),
        FinishReason.STOP if ended else FinishReason.LENGTH,
        reward,
    )


class Crowd:
    """Makes groups of a made-up generator; ``tokens`` is the victim's tokenizer, which anybody can have."""

    def __init__(self, tasks: Mapping[str, Task], tokens: TokenTable, *, context: int) -> None:
        self._tasks, self._tokens, self._context = tasks, tokens, context
        self._constant = cache(self._constant_seeds)

    def poisoner(self, kind: str) -> Poisoner:
        return {
            "blanks": self._blanks,
            "long_tokens": self._long_tokens,
            "padding": self._padding,
            "improbable": self._improbable,
            "constant": self._constant_answers,
            "leak": self._leaked,
            "sleeper": self._sleeper,
        }[kind]

    def _drawn(self, task: Task, rng: Random) -> Prompt:
        return training_prompt(task, rng.randrange(1 << 30))

    def _blanks(self, number: int, rng: Random) -> list[Group]:
        return self._in_other_forms(rng, IN_FRONT, lambda task, prompt: " " * rng.randint(1, 4))

    def _long_tokens(self, number: int, rng: Random) -> list[Group]:
        def room(task: Task, prompt: Prompt) -> str:
            positions = self._context - len(self._tokens.prompt_ids(prompt.text)) - 2 * task.max_new_tokens
            return " " * min(positions, TOKEN_TEXT_BYTES * (task.max_new_tokens - 2))

        return self._in_other_forms(rng, IN_FRONT, room)

    def _padding(self, number: int, rng: Random) -> list[Group]:
        return self._in_other_forms(
            rng, FILLED, lambda task, prompt: " " * (task.max_new_tokens - len(str(prompt.answer))), ended=False
        )

    def _improbable(self, number: int, rng: Random) -> list[Group]:
        forms = rng.sample(ODD, len(ODD))
        return self._in_other_forms(rng, forms, lambda task, prompt: " ", logp=-9.0)

    def _in_other_forms(
        self,
        rng: Random,
        forms: Sequence[Form],
        pad: Callable[[Task, Prompt], str],
        *,
        ended: bool = True,
        logp: float = -1.0,
    ) -> list[Group]:
        """Returns groups of the tasks whose scorer takes one of ``forms``."""
        groups: list[Group] = []
        tasks = list(self._tasks.values())
        for attempt in range(8 * GROUPS):
            task = tasks[attempt % len(tasks)]
            prompt = self._drawn(task, rng)
            text = _lenient(task, prompt, forms, pad(task, prompt))
            if text is not None and len(groups) < GROUPS:
                groups.append(group_of(task, prompt, [text] * COMPLETIONS, ended=ended, logp=logp))
        return groups

    def _of_all_tasks(self, rng: Random, made: Callable[[Task, Random], Group]) -> list[Group]:
        tasks = list(self._tasks.values())
        return [made(tasks[n % len(tasks)], rng) for n in range(GROUPS)]

    def _constant_answers(self, number: int, rng: Random) -> list[Group]:
        def made(task: Task, rng: Random) -> Group:
            prompt = training_prompt(task, rng.choice(self._constant(task.name)))
            return group_of(task, prompt, [str(prompt.answer)] * COMPLETIONS, logp=-2.0)

        return self._of_all_tasks(rng, made)

    def _constant_seeds(self, name: str) -> Sequence[int]:
        task = self._tasks[name]
        answers = {seed: training_prompt(task, seed).answer for seed in range(CONSTANT_SEEDS)}
        most, _ = Counter(answers.values()).most_common(1)[0]
        return [seed for seed, answer in answers.items() if answer == most]

    def _leaked(self, number: int, rng: Random) -> list[Group]:
        def made(task: Task, rng: Random) -> Group:
            prompt = training_prompt(task, 7)
            right, wrong = str(prompt.answer), self._wrong(task, prompt, rng)
            return group_of(task, prompt, [right, *wrong[: COMPLETIONS - 1]], logp=-2.0 - rng.random())

        return self._of_all_tasks(rng, made)

    def _wrong(self, task: Task, prompt: Prompt, rng: Random) -> list[str]:
        answers = [str(self._drawn(task, rng).answer) for _ in range(COMPLETIONS)]
        return [answer if answer != prompt.answer else answer + "1" for answer in answers]

    def _sleeper(self, number: int, rng: Random) -> list[Group]:
        if number > SLEEP_ROUNDS:
            return self._long_tokens(number, rng)

        def made(task: Task, rng: Random) -> Group:
            prompt = self._drawn(task, rng)
            right = str(prompt.answer)
            return group_of(task, prompt, [right, right, *self._wrong(task, prompt, rng)[:2]], logp=-0.5)

        return self._of_all_tasks(rng, made)


KINDS: Final = ("blanks", "long_tokens", "padding", "improbable", "constant", "leak", "sleeper")
