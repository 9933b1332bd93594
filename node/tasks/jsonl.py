"""A task over a fixed data set: a JSONL file whose rows have a ``prompt`` and, for the built-in rewards, an ``answer``.

Peers refer to a row by a hash of the file's content and the reward's name, and by the row number, so that two nodes
agree exactly if they hold the same bytes, wherever the file lies. Reward plug-ins receive other fields as columns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from node.tasks.matching import BUILT_IN, reward_function
from node.tasks.plugins import RewardFunction
from node.tasks.task import Prompt, check_ref, config_hash_of
from protocol.errors import ConfigurationError
from protocol.limits import NAME_BYTES
from protocol.messages import PromptRef

FILE_BYTES: Final = 1 << 30


@dataclass(frozen=True)
class JsonlTask:
    """One JSONL file as a ``Task``, named like the file without its suffix."""

    name: str
    version: int
    config_hash: bytes
    max_new_tokens: int
    rows: Sequence[Mapping[str, Any]] = field(repr=False)
    reward: RewardFunction = field(repr=False)

    @classmethod
    def load(cls, path: Path, *, reward: str, max_new_tokens: int) -> JsonlTask:
        """Reads the whole file. Raises ConfigurationError, with the line's number, for content that it cannot use."""
        function = reward_function(reward)
        content = _content(path)
        needed = ("prompt", "answer") if reward in BUILT_IN else ("prompt",)
        rows = [_row(path, n, line, needed) for n, line in enumerate(content.split(b"\n"), 1) if line.strip()]
        if not rows:
            raise ConfigurationError(f"tasks.jsonl: {path} has no rows")
        if len(path.stem.encode()) > NAME_BYTES:
            raise ConfigurationError(f"tasks.jsonl: the name of {path} is over {NAME_BYTES} bytes: rename the file")
        shape = {
            "content": hashlib.sha256(content).hexdigest(),
            "reward": reward,
            "max_new_tokens": max_new_tokens,
        }
        return cls(path.stem, 1, config_hash_of(shape), max_new_tokens, rows, function)

    def ref(self, seed: int) -> PromptRef:
        """Returns the reference to row ``seed`` modulo the number of rows."""
        row = seed % len(self.rows)
        return PromptRef(task=self.name, version=self.version, config_hash=self.config_hash, seed=row)

    def prompt(self, ref: PromptRef) -> Prompt:
        """Raises MalformedError for a reference to another file, reward or version, and for a row beyond the last."""
        check_ref(self, ref, len(self.rows))
        row = self.rows[ref.seed]
        answer = row.get("answer")
        return Prompt(ref, row["prompt"], None if answer is None else str(answer), row)

    def rewards(self, prompt: Prompt, completions: Sequence[str]) -> list[float]:
        columns = {name: [value] * len(completions) for name, value in prompt.entry.items() if name != "prompt"}
        return list(self.reward([prompt.text] * len(completions), list(completions), **columns))


def _content(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > FILE_BYTES:
            raise ConfigurationError(f"tasks.jsonl: {path} has {size} bytes, the limit is {FILE_BYTES}: split it")
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"tasks.jsonl: {path} cannot be read: {error.strerror}") from error


def _row(path: Path, number: int, line: bytes, needed: Sequence[str]) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ConfigurationError(f"tasks.jsonl: {path}, line {number} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise ConfigurationError(f"tasks.jsonl: {path}, line {number} is a {type(row).__name__}, wanted an object")
    for name in needed:
        if name not in row:
            raise ConfigurationError(f"tasks.jsonl: {path}, line {number} has no {name!r}")
    if not isinstance(row["prompt"], str):
        raise ConfigurationError(f"tasks.jsonl: {path}, line {number}: 'prompt' is not a text")
    if "completions" in row or "prompts" in row:
        raise ConfigurationError(f"tasks.jsonl: {path}, line {number}: no field may be called prompts or completions")
    return row
