"""The models of the comparison with others."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from node.policy.model_files import model_folder
from protocol.errors import ConfigurationError
from scripts import build_models
from scripts.bench.skill.models import LARGER, MODELS, prepare_model, setting_of


def test_every_shipped_model_is_there_as_a_node_names_it() -> None:
    assert [model_folder(setting_of(name)).name for name in MODELS] == list(MODELS)


def test_larger_model_is_made_once_and_found_from_then_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[str]] = []

    def run(command: list[str], **_: Any) -> None:
        made.append(command)
        (tmp_path / LARGER[0]).mkdir()
        for name in ("config.json", build_models.CARD_FILE):
            (tmp_path / LARGER[0] / name).write_text("{}")

    monkeypatch.setattr(build_models, "UNSHIPPED_FOLDER", tmp_path)
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ConfigurationError):
        model_folder(setting_of(LARGER[0]))
    for _ in range(2):
        prepare_model(LARGER[0])
    assert [command[-2:] for command in made] == [["--only", LARGER[0]]]
    assert model_folder(setting_of(LARGER[0])) == tmp_path / LARGER[0]
