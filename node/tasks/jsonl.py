"""A task over a fixed data set: a JSONL file whose rows have a question and, for the built-in rewards, an answer.

An entry of ``tasks.jsonl`` is a file, or a file and the fields to read: ``FILE?question=FIELD&answer=FIELD``. Fields
that are not named are the first of ``QUESTION_FIELDS`` and of ``ANSWER_FIELDS`` that the first row has. A right answer
may be written as GSM8K has it (reasoning, then ``#### 42``) or as MATH has it (reasoning with ``\\boxed{42}``).

Peers refer to a row by a hash of the file's content and of what is made of it, and by the row number, so that two nodes
agree exactly if they hold the same bytes, wherever the file lies. Rewards of a file or a plug-in receive the other
fields as columns, and the answer as the column ``answer``, whatever the field is called.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

from node.tasks.answers import final_answer, reference_answer
from node.tasks.canonical import ends_with_answer, is_plain
from node.tasks.matching import AUTO, BUILT_IN, fitting_reward, reward_function
from node.tasks.own_file import is_own_file
from node.tasks.plugins import RewardFunction
from node.tasks.reward_file import RewardFile
from node.tasks.task import Prompt, check_ref, config_hash_of
from protocol.errors import ConfigurationError
from protocol.limits import NAME_BYTES
from protocol.messages import PromptRef

FILE_BYTES: Final = 1 << 30
QUESTION_FIELDS: Final = ("prompt", "question", "problem")
ANSWER_FIELDS: Final = ("answer", "solution", "completion")


@dataclass(frozen=True)
class JsonlTask:
    """One JSONL file as a ``Task``, named like the file without its suffix."""

    name: str
    version: int
    config_hash: bytes
    max_new_tokens: int
    rows: Sequence[Mapping[str, Any]] = field(repr=False)
    reward: RewardFunction = field(repr=False)
    reward_name: str
    question_field: str
    answer_field: str | None
    instruction: str

    @classmethod
    def load(cls, entry: Path, *, reward: str, max_new_tokens: int, instruction: str = "") -> JsonlTask:
        """Reads the whole file. ``instruction`` is written after every question, as it is.

        Raises ConfigurationError, with the line's number, for content that it cannot use.
        """
        path, fields = _file_and_fields(entry)
        content = _content(path)
        numbered = {n: _row(path, n, line) for n, line in enumerate(content.split(b"\n"), 1) if line.strip()}
        rows = list(numbered.values())
        if not rows:
            raise ConfigurationError(f"tasks.jsonl: {path} has no rows")
        if len(path.stem.encode()) > NAME_BYTES:
            raise ConfigurationError(f"tasks.jsonl: the name of {path} is over {NAME_BYTES} bytes: rename the file")
        question = _field(path, rows[0], fields.get("question"), QUESTION_FIELDS, "question")
        needs_answer = reward in BUILT_IN or reward == AUTO or "answer" in fields
        answer = _field(path, rows[0], fields.get("answer"), ANSWER_FIELDS, "answer") if needs_answer else None
        _check(path, numbered, question, answer)
        if reward == AUTO:
            reward = fitting_reward([str(row[answer]) for row in rows if answer is not None])
        function: RewardFunction
        if is_own_file(reward):
            function = file = RewardFile.read(reward)
            reward_shape: object = file.shape
            reward = file.label
        else:
            function, reward_shape = reward_function(reward), reward
        shape = {
            "content": hashlib.sha256(content).hexdigest(),
            "fields": [question, answer],
            "instruction": instruction,
            "reward": reward_shape,
            "max_new_tokens": max_new_tokens,
        }
        return cls(
            path.stem, 1, config_hash_of(shape), max_new_tokens, rows, function, reward, question, answer, instruction
        )

    def ref(self, seed: int) -> PromptRef:
        """Returns the reference to row ``seed`` modulo the number of rows."""
        row = seed % len(self.rows)
        return PromptRef(task=self.name, version=self.version, config_hash=self.config_hash, seed=row)

    def prompt(self, ref: PromptRef) -> Prompt:
        """Raises MalformedError for a reference to another file, reward or version, and for a row beyond the last."""
        check_ref(self, ref, len(self.rows))
        row = self.rows[ref.seed]
        answer = row.get(self.answer_field or "answer")
        final = None if answer is None else reference_answer(str(answer))
        question = row[self.question_field]
        return Prompt(ref, question + self.instruction, final, row, question)

    def rewards(self, prompt: Prompt, completions: Sequence[str]) -> list[float]:
        values = {name: value for name, value in prompt.entry.items() if name != self.question_field}
        if self.answer_field is not None:
            values["answer"] = prompt.entry[self.answer_field]
        columns = {name: [value] * len(completions) for name, value in values.items()}
        return list(self.reward([prompt.text] * len(completions), list(completions), **columns))

    def load_reward(self) -> None:
        """Runs the reward's file, if it is one, so that the first score need not. Raises ``ConfigurationError``."""
        if isinstance(self.reward, RewardFile):
            self.reward.load()

    @property
    def has_free_text(self) -> bool:
        """Whether a right answer may have any text before it: see ``node.tasks.canonical``."""
        return self.reward_name in BUILT_IN and self.reward_name != "exact"

    def is_canonical(self, prompt: Prompt, completion: str) -> bool:
        """Returns whether ``completion`` is, or plainly ends with, the right answer; of a reward of a file or
        plug-in, whether it is not padded."""
        if self.reward_name not in BUILT_IN or prompt.answer is None:
            return is_plain(completion)
        if self.reward_name == "exact":
            return completion == prompt.answer
        found = final_answer(completion)
        return found is not None and ends_with_answer(completion, found.text, prompt.answer)


def _file_and_fields(entry: Path) -> tuple[Path, dict[str, str]]:
    entry = entry.expanduser()
    text, mark, named = str(entry).rpartition("?")
    if not mark or entry.is_file():
        return entry, {}
    fields = dict(parse_qsl(named))
    if not fields or not fields.keys() <= {"question", "answer"}:
        raise ConfigurationError(f"tasks.jsonl: {entry} names no fields: write FILE?question=FIELD&answer=FIELD")
    return Path(text), fields


def _content(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > FILE_BYTES:
            raise ConfigurationError(f"tasks.jsonl: {path} has {size} bytes, the limit is {FILE_BYTES}: split it")
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"tasks.jsonl: {path} cannot be read: {error.strerror}") from error


def _row(path: Path, number: int, line: bytes) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"tasks.jsonl: {path}, line {number} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise ConfigurationError(f"tasks.jsonl: {path}, line {number} is a {type(row).__name__}, wanted an object")
    if "completions" in row or "prompts" in row:
        raise ConfigurationError(f"tasks.jsonl: {path}, line {number}: no field may be called prompts or completions")
    return row


def _field(path: Path, row: Mapping[str, Any], named: str | None, usual: Sequence[str], what: str) -> str:
    """Returns the field that holds the question or the answer in every row."""
    found = next((name for name in ([named] if named else usual) if name in row), None)
    if found is None:
        wanted = repr(named) if named else " or ".join(map(repr, usual))
        raise ConfigurationError(
            f"tasks.jsonl: {path} has no field {wanted} for the {what}, but {', '.join(map(repr, row)) or 'none'}: say "
            f"which it is by {path}?{what}=FIELD"
        )
    return found


def _check(path: Path, rows: Mapping[int, Mapping[str, Any]], question: str, answer: str | None) -> None:
    """Raises ``ConfigurationError``, with its line's number, for a row without a question or an answer."""
    for number, row in rows.items():
        if not isinstance(row.get(question), str):
            raise ConfigurationError(f"tasks.jsonl: {path}, line {number} has no text in {question!r}")
        if answer is not None and row.get(answer) is None:
            raise ConfigurationError(f"tasks.jsonl: {path}, line {number} has no {answer!r}")
