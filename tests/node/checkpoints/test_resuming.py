"""A run goes on from an earlier checkpoint, and later ones are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from node.checkpoints.checkpoint_files import kept_later, rounds, set_aside_folders
from node.checkpoints.checkpoints import Snapshot, read, read_newest, write
from node.checkpoints.choice import named_checkpoint
from node.checkpoints.resuming import resume_from
from protocol.errors import ConfigurationError, StorageError


def save(folder: Path, round_number: int, value: float | None = None) -> Path:
    tensors = {"weights.a": torch.full((3,), float(round_number) if value is None else value)}
    return write(folder, Snapshot(round_number, bytes(16), tensors, {}, {}), keep=9)[0]


def weight(folder: Path) -> float:
    newest = read_newest(folder).snapshot
    assert newest is not None
    return float(newest.tensors["weights.a"][0])


def test_an_earlier_checkpoint_is_the_newest_and_later_ones_are_whole_and_outlive_every_later_save(
    tmp_path: Path,
) -> None:
    for number in (10, 20, 30):
        save(tmp_path, number)
    resumed = resume_from(tmp_path, named_checkpoint(tmp_path, "10"))
    assert resumed.round == 10 and weight(tmp_path) == 10.0
    assert [read(path).round for path in resumed.kept] == [20, 30]
    for number in range(11, 40):
        write(tmp_path, Snapshot(number, bytes(16), {"weights.a": torch.zeros(3)}, {}, {}), keep=1)
    assert [read(path).round for path in resumed.kept] == [20, 30]
    assert set_aside_folders(tmp_path) == []  # none of them is damaged


def test_a_later_checkpoint_that_was_kept_is_gone_on_from_again_by_its_round(tmp_path: Path) -> None:
    for number in (10, 20):
        save(tmp_path, number)
    resume_from(tmp_path, named_checkpoint(tmp_path, "10"))
    save(tmp_path, 15)
    save(tmp_path, 25)
    with pytest.raises(ConfigurationError, match=r"--resume 30.*rounds 10, 15, 20, 25"):
        named_checkpoint(tmp_path, "30", "--resume")
    resumed = resume_from(tmp_path, named_checkpoint(tmp_path, "20"))
    assert resumed.round == 20 and weight(tmp_path) == 20.0
    assert kept_later(tmp_path).keys() == {25}
    assert [path.name for path in rounds(tmp_path)] == ["round-000010", "round-000015", "round-000020"]


def test_a_checkpoint_of_another_folder_is_copied_and_ours_of_that_round_is_kept(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    chosen = save(theirs, 20, value=7.0)
    for number in (10, 20):
        save(ours, number)
    resumed = resume_from(ours, chosen)
    assert weight(ours) == weight(theirs) == 7.0
    (kept,) = resumed.kept
    assert float(read(kept).tensors["weights.a"][0]) == 20.0
    assert resume_from(tmp_path / "new", chosen).kept == ()
    assert weight(tmp_path / "new") == 7.0


def test_the_newest_checkpoint_is_gone_on_from_as_it_is(tmp_path: Path) -> None:
    path = save(tmp_path, 20)
    assert resume_from(tmp_path, path).kept == ()
    assert read(path).round == 20


def test_a_damaged_checkpoint_is_refused_and_nothing_has_changed(tmp_path: Path) -> None:
    for number in (10, 20):
        save(tmp_path, number)
    (tmp_path / "round-000010" / "tensors.safetensors").write_bytes(b"torn")
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(StorageError, match="SHA-256"):
        resume_from(tmp_path, tmp_path / "round-000010")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_full_disk_leaves_the_checkpoints_that_there_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, ours = save(tmp_path / "theirs", 5), tmp_path / "ours"
    save(ours, 10)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("node.checkpoints.resuming.shutil.copyfile", full)
    with pytest.raises(StorageError, match="No space left"):
        resume_from(ours, chosen)
    assert weight(ours) == 10.0
    assert [path.name for path in ours.iterdir()] == ["round-000010"]  # ``weight`` removed what was half copied
