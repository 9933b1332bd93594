"""What a data directory remembers of its own run: the settings that decided which model is trained, on what, where.

They stand in the configuration that each checkpoint holds. A start takes them where flags, environment and
``node.toml`` say nothing, so that a plain ``starling up`` continues what is there. The files of a checkpoint other than
its configuration do not matter here: a directory whose only checkpoint is damaged still knows its model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from node.checkpoints.checkpoint_files import CONFIG, SET_ASIDE, rounds, set_aside_folders
from node.configuration.sections import Config

# Settings that belong together: a source that says anything of one of ``if_unsaid`` replaces all of that line.
_TOGETHER: Final[tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = (
    (("name",), ("name",)),
    (("swarm.name",), ("swarm.name",)),
    (("policy.model",), ("policy.model", "policy.chat")),
    (
        ("tasks.names", "tasks.jsonl", "tasks.reasoning_gym"),
        (
            "tasks.names",
            "tasks.jsonl",
            "tasks.jsonl_reward",
            "tasks.jsonl_instruction",
            "tasks.jsonl_max_new_tokens",
            "tasks.reasoning_gym",
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class RememberedRun:
    """The configuration of the checkpoint from which a start goes on: the newest, or one that the user chose."""

    config: Mapping[str, Any]  # as the checkpoint stores it
    path: Path  # of that checkpoint
    continues: bool  # whether a start goes on from there; False: it was set aside

    def value(self, key: str) -> Any:
        """Returns the value of a dotted key; None where the checkpoint does not say."""
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value


def remembered_run(home: Path, resumed: Path | None = None) -> RememberedRun | None:
    """Returns what the checkpoint ``resumed`` was trained with, or else the newest one under ``home``, or else the
    newest one that was set aside; None where no checkpoint says so."""
    folder = home / "checkpoints"
    chosen = [] if resumed is None else [resumed]
    for path in [*chosen, *reversed(rounds(folder)), *reversed(set_aside_folders(folder))]:
        try:
            config = json.loads((path / CONFIG).read_text(encoding="utf-8"))
            if isinstance(config["policy"]["model"], str):
                return RememberedRun(config, path, continues=not path.name.startswith(SET_ASIDE))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return None


def settings_to_keep(run: RememberedRun, said: frozenset[str]) -> dict[str, Any]:
    """Returns the remembered settings by dotted key. ``said``: the keys that flags, environment or a file set."""
    kept = {}
    for if_unsaid, keys in _TOGETHER:
        if not any(key == each or key.startswith(f"{each}.") for key in said for each in if_unsaid):
            kept.update({key: value for key in keys if (value := run.value(key)) is not None})
    return kept


def with_whole_paths(config: Config, here: Path) -> Config:
    """Returns ``config`` with the paths that are relative to ``here`` as absolute ones, so that a start from another
    directory finds them again."""

    def whole(text: str) -> str:  # FILE.py:NAME; no name of a reward or a task has ".py"
        return str(here / text) if ".py" in text and not text.startswith("~") else text

    jsonl = tuple(path if str(path).startswith("~") else here / path for path in config.tasks.jsonl)
    own = {"names": tuple(map(whole, config.tasks.names)), "jsonl_reward": whole(config.tasks.jsonl_reward)}
    model = config.policy.model
    if not model.startswith("~") and (here / model).is_dir():
        model = str((here / model).resolve(strict=False) if model.startswith(".") else here / model)
    return config.model_copy(
        update={
            "tasks": config.tasks.model_copy(update={"jsonl": jsonl, **own}),
            "policy": config.policy.model_copy(update={"model": model}),
        }
    )
