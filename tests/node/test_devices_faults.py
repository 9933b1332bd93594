"""What a learner on several devices cannot do is refused before it starts, with what to set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from node.configuration import Config, devices_faults, stages_faults
from node.doctor.before_start import check_start
from node.home import Home

IMPOSSIBLE: list[tuple[str, dict[str, Any]]] = [
    ("engine.backend", {"engine": {"backend": "torch"}}),
    ("policy.device", {"policy": {"device": "mps"}}),
    ("policy.four_bit", {"policy": {"four_bit": True}}),
    ("learner.optimizer", {"learner": {"optimizer": "adamw8bit"}}),
    ("learner.recompute", {"learner": {"recompute": False}}),
    ("objective.kl_weight", {"objective": {"kl_weight": 0.1}}),
    ("evaluation.every_rounds", {"learner": {"max_staleness": 1}}),
]


def with_devices(devices: int, sections: dict[str, Any]) -> Config:
    return Config.model_validate(sections | {"learner": sections.get("learner", {}) | {"devices": devices}})


@pytest.mark.parametrize(("key", "sections"), IMPOSSIBLE, ids=[key for key, _ in IMPOSSIBLE])
def test_a_contradiction_names_its_key_and_what_to_set_and_is_none_on_one_device(
    key: str, sections: dict[str, Any]
) -> None:
    [fault] = devices_faults(with_devices(2, sections))
    assert fault.key == key and "learner.devices = 2" in fault.found
    assert key in fault.remedy and "learner.devices = 1" in fault.remedy
    assert not list(devices_faults(with_devices(1, sections)))


def test_the_defaults_and_rounds_ahead_without_evaluation_are_possible() -> None:
    assert not list(devices_faults(with_devices(2, {})))
    ahead = {"learner": {"max_staleness": 2}, "evaluation": {"every_rounds": 0}}
    assert not list(devices_faults(with_devices(2, ahead)))


def test_a_start_is_refused_for_it_before_anything_runs(tmp_path: Path) -> None:
    flags = {"learner.devices": "2", "engine.backend": "torch"}
    found = check_start(Home(tmp_path / "home"), {}, flags)
    [error] = [each for each in found.errors if each.check == "engine.backend"]
    assert found.exit_code == 78 and "process" in (error.remedy or "")


ALONE: list[tuple[str, dict[str, Any]]] = [
    ("policy.adapter_rank", {"policy": {"adapter_rank": 0}}),
    ("policy.four_bit", {"policy": {"four_bit": True}}),
    ("learner.devices", {"learner": {"devices": 2}}),
    ("engine.backend", {"engine": {"backend": "process"}}),
    ("learner.max_staleness", {"learner": {"max_staleness": 1}}),
    ("objective.research.weights_behind", {"objective": {"research": {"weights_behind": 1}}}),
    ("objective.kl_weight", {"objective": {"kl_weight": 0.1}}),
]


@pytest.mark.parametrize(("key", "sections"), ALONE, ids=[key for key, _ in ALONE])
def test_what_contradicts_other_machines_names_its_key_and_what_to_set(key: str, sections: dict[str, Any]) -> None:
    [fault] = stages_faults(with_stages(2, sections))
    assert fault.key == key and "policy.stages = 2" in fault.found
    assert key in fault.remedy and "policy.stages = 0" in fault.remedy
    assert not list(stages_faults(with_stages(0, sections)))
    assert not list(stages_faults(with_stages(2, {})))


def with_stages(stages: int, sections: dict[str, Any]) -> Config:
    return Config.model_validate(sections | {"policy": sections.get("policy", {}) | {"stages": stages}})
