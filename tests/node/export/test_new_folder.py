"""An exported folder appears whole or not at all, and nothing of the user's is replaced."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from node.export.new_folder import RECORD, check_target, new_folder, write_record
from protocol.errors import ConfigurationError, StorageError
from tests.node.export.trained_run import TrainedRun, trained_run


def make(target: Path, content: str, *, force: bool = False) -> None:
    with new_folder(target, force=force, needed_bytes=0) as folder:
        (folder / "a").write_text(content)
        write_record(folder, {})


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """Lets this process write no file beyond that size: the kernel refuses as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def run(tmp_path: Path) -> TrainedRun:
    return trained_run(tmp_path / "run")


@pytest.mark.parametrize("limit_bytes", [400, 20_000])  # in the configuration; in the weights
def test_disk_that_fills_leaves_nothing_behind_and_says_so(tmp_path: Path, run: TrainedRun, limit_bytes: int) -> None:
    target = tmp_path / "exports" / "out"
    with (
        file_size_limit(limit_bytes),
        pytest.raises(StorageError, match=r"(?s)File too large.*what was begun is removed.*another folder"),
    ):
        run.export(target)
    assert list(target.parent.iterdir()) == []
    assert run.export(target).round == 8


def test_disk_that_fills_under_a_replacement_leaves_the_earlier_export(tmp_path: Path, run: TrainedRun) -> None:
    target = tmp_path / "out"
    run.export(target, checkpoint="7")
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    with file_size_limit(20_000), pytest.raises(StorageError):
        run.export(target, force=True)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_disk_without_room_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageError, match="are free"),
        new_folder(tmp_path / "out", force=False, needed_bytes=1 << 60),
    ):
        raise AssertionError("begun")
    assert not list(tmp_path.iterdir())


def test_interruption_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "out", force=False, needed_bytes=0) as folder:
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_killed_export_is_cleared_away_by_the_next_one_and_a_living_one_is_not(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    for pid in (ended.pid, os.getppid()):
        (tmp_path / f".out.unfinished-{pid}").mkdir()
    make(tmp_path / "out", "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".out.unfinished-{os.getppid()}", "out"]


def test_folder_that_is_not_empty_is_refused_unless_an_export_made_it_and_force_is_given(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    make(target, "into an empty folder")
    with pytest.raises(ConfigurationError, match="--force"):
        make(target, "again")
    make(target, "replaced", force=True)
    assert (target / "a").read_text() == "replaced"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_force_replaces_no_file_that_an_export_did_not_make(tmp_path: Path) -> None:
    target = tmp_path / "out"
    make(target, "first")
    (target / "notes.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"notes\.txt"):
        make(target, "second", force=True)
    assert (target / "notes.txt").read_text() == "mine"
    (target / RECORD).write_text("[]")
    with pytest.raises(ConfigurationError, match="which no export made"):
        make(target, "second", force=True)


def test_file_or_link_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(ConfigurationError, match="is no folder"):
            check_target(tmp_path / name, force=True)
