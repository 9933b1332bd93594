"""The part of the configuration that may be published with a model: what shaped its weights, without addresses and
without folders of this machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

SHAPING_SECTIONS: Final = (
    "seed", "policy", "tasks", "engine", "learner", "objective", "evaluation", "averaging",
)  # fmt: skip
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_hub_id(model: str) -> bool:
    return _HUB_ID.fullmatch(model) is not None


def published_name(model: str) -> str:
    """Returns a model's name without this machine's folders."""
    return model if is_hub_id(model) or model.startswith("builtin:") else PurePath(model).name


def shaping_configuration(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of the configuration that shaped the weights; of paths only the last name."""
    shaping = {name: config[name] for name in SHAPING_SECTIONS if name in config}
    if isinstance(policy := shaping.get("policy"), Mapping):
        shaping["policy"] = {**policy, "model": published_name(str(policy.get("model", "")))}
    if isinstance(tasks := shaping.get("tasks"), Mapping):
        names: dict[str, object] = {"jsonl": [PurePath(str(path)).name for path in tasks.get("jsonl", ())]}
        if "jsonl_reward" in tasks:  # may be FILE.py:FUNCTION
            names["jsonl_reward"] = PurePath(str(tasks["jsonl_reward"])).name
        if "names" in tasks:  # likewise
            names["names"] = [PurePath(name).name if ".py" in name else name for name in map(str, tasks["names"])]
        shaping["tasks"] = {**tasks, **names}
    return shaping
