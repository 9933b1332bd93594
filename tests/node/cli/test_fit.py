"""``starling fit``: its table, its JSON, its exit codes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from node.cli.verbs.fit import bytes_of
from node.fit.stages.table import StageFit
from node.fit.table import FitReport
from node.policy.model_files import BUILTIN_MODELS
from protocol.errors import ConfigurationError
from scripts.bench.common.published_shapes import config_of
from swarm.exit_codes import ExitCode

Starling = Callable[..., tuple[int, str, str]]


@pytest.fixture
def qwen(tmp_path: Path) -> str:
    """A folder with the configuration of Qwen2.5-0.5B and a header that promises its weights, which nothing reads."""
    folder = tmp_path / "qwen"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_of("Qwen2.5-0.5B")))
    elements = 494_032_768
    entry = {"weights": {"dtype": "BF16", "shape": [elements], "data_offsets": [0, 2 * elements]}}
    header = json.dumps(entry).encode()
    path = folder / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with path.open("r+b") as file:
        file.truncate(8 + len(header) + 2 * elements)  # a hole: no disk space is taken
    shutil.copy(BUILTIN_MODELS / "wren" / "tokenizer.json", folder)
    return str(folder)


def test_folder_that_a_start_refuses_is_not_said_to_fit(starling: Starling, qwen: str) -> None:
    (Path(qwen) / "tokenizer.json").unlink()
    code, shown, said = starling("fit", qwen, "--memory", "64GB")
    assert code == ExitCode.BAD_CONFIGURATION and not shown and "has no tokenizer.json" in said


def test_with_other_machines_it_says_what_each_holds_or_what_is_missing(starling: Starling, qwen: str) -> None:
    code, text, _ = starling("fit", qwen, "--memory", "2GB", "--with", "2GB,2GB", "--json")
    found = msgspec.json.decode(text, type=StageFit)
    assert code == 0 and found.fits and found.plan is not None and found.pace.flops > 1e8
    assert [each.last for each in found.plan.held][-1] == found.layers == 24
    code, shown, _ = starling("fit", qwen, "--memory", "1GB", "--with", "1GB")
    assert code == ExitCode.BAD_CONFIGURATION and "more memory in all" in shown
    code, _, said = starling("fit", qwen, "--with", "much")
    assert code == ExitCode.BAD_CONFIGURATION and "--with" in said


def test_name_of_a_built_in_model_without_its_prefix_is_answered_with_it(starling: Starling) -> None:
    code, _, said = starling("fit", "wren")
    assert code == ExitCode.BAD_CONFIGURATION and "builtin:wren" in said


def test_a_plan_is_not_explained_by_the_checkpoint_of_another_model(
    starling: Starling, qwen: str, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "node" / "checkpoints" / "round-000001"
    checkpoint.mkdir(parents=True)
    for model, rank in (("builtin:wren", 0), (qwen, 8)):
        trained = {"model": model, "adapter_rank": 8}
        (checkpoint / "config.json").write_text(json.dumps({"policy": trained}))
        _, shown, _ = starling("fit", qwen, "--memory", "64GB", "--home", str(tmp_path / "node"), "--json")
        assert json.loads(shown)["settings"]["adapter_rank"] == rank


def test_a_model_that_fits_is_shown_with_its_choice_parts_and_alternatives(starling: Starling, qwen: str) -> None:
    code, shown, _ = starling("fit", qwen, "--memory", "64GB")
    assert code == ExitCode.DONE
    assert "494.0 million weights" in shown and "chosen: every weight in float32, AdamW," in shown
    for part in ("weights", "keys and values", "activations", "gradients", "optimizer", "main memory"):
        assert f"\n{part} " in shown
    assert shown.count("  fits\n") == 4


def test_a_model_that_does_not_fit_ends_with_the_code_of_a_bad_configuration(starling: Starling, qwen: str) -> None:
    code, shown, _ = starling("fit", qwen, "--memory", "2GB")
    assert code == ExitCode.BAD_CONFIGURATION
    assert "does not fit" in shown and "billion weights" in shown
    assert shown.count(" no\n") >= 3


def test_json_says_what_the_table_says(starling: Starling, qwen: str) -> None:
    code, shown, _ = starling("fit", qwen, "--memory", "5GB", "--json")
    report = msgspec.json.decode(shown, type=FitReport)
    assert code == ExitCode.DONE and report.fits and report.settings is not None
    assert report.settings.adapter_rank == 16
    assert [each.fits for each in report.alternatives] == [False, False, True, True]
    peak = next(phase for phase in report.phases if phase.name == report.peak)
    assert peak.host_bytes == sum(peak.parts.values()) <= report.host_limit_bytes == 5 * 10**9


def test_what_is_set_is_planned_for(starling: Starling, qwen: str) -> None:
    code, shown, _ = starling("fit", qwen, "--memory", "5GB", "--set", "policy.adapter_rank=0")
    assert code == ExitCode.BAD_CONFIGURATION and "--set policy.adapter_rank=16" in shown


def test_the_configured_model_is_the_default(starling: Starling) -> None:
    code, shown, _ = starling("fit")
    assert code == ExitCode.DONE and shown.startswith("builtin:wren: 0.5 million weights")


@pytest.mark.parametrize(
    ("text", "expected"), [("8GB", 8e9), ("512 MiB", 512 * 2**20), ("1.5gb", 1.5e9), ("8000", 8000)]
)
def test_amounts_of_memory_are_read(text: str, expected: float) -> None:
    assert bytes_of(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "8 apples", "-1GB"])
def test_an_amount_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--memory"):
        bytes_of(text)
