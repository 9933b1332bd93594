"""A checkpoint is complete or does not exist."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from node.checkpoints import checkpoints
from node.checkpoints.best import kept
from node.checkpoints.checkpoint_files import ForeignCheckpointError
from node.checkpoints.checkpoints import (
    BackgroundCheckpoints,
    Snapshot,
    random_state,
    read_newest,
    restore_random_state,
    write,
)
from protocol.errors import StorageError

FAMILY = bytes(range(16))


def snapshot(round_number: int, value: float = 1.0) -> Snapshot:
    tensors = {"weights.a": torch.full((3, 2), value), "weights.b": torch.arange(4).to(torch.bfloat16)}
    return Snapshot(round_number, FAMILY, tensors, {"success": {"add": [0.5, 8]}}, {"name": "ann"})


def round_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_no_other_checkpoint_is_read_while_none_is_to_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[Path]()

    def noted(folder: Path, keep: int) -> set[Path]:
        read.append(folder)
        return kept(folder, keep)

    monkeypatch.setattr(checkpoints, "kept", noted)
    for number in range(1, 4):
        write(tmp_path, snapshot(number), keep=3)
    assert read == []
    write(tmp_path, snapshot(4), keep=3)
    assert read == [tmp_path]


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    path, size_bytes = write(tmp_path, snapshot(7), keep=2)
    assert path == tmp_path / "round-000007"
    assert size_bytes == sum(file.stat().st_size for file in path.iterdir())
    newest = read_newest(tmp_path)
    assert newest.path == path
    assert newest.damaged == ()
    found = newest.snapshot
    assert found is not None
    assert (found.round, found.family, found.state, found.config) == (7, FAMILY, snapshot(7).state, {"name": "ann"})
    assert found.tensors.keys() == snapshot(7).tensors.keys()
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in snapshot(7).tensors.items())
    assert found.tensors["weights.b"].dtype == torch.bfloat16


def test_only_the_newest_are_kept_in_order_of_rounds_not_of_names(tmp_path: Path) -> None:
    for number in (999_998, 999_999, 1_000_000):
        write(tmp_path, snapshot(number), keep=2)
    assert round_names(tmp_path) == ["round-1000000", "round-999999"]
    newest = read_newest(tmp_path)
    assert newest.snapshot is not None
    assert newest.snapshot.round == 1_000_000


def test_folder_that_is_not_there_or_empty_holds_no_checkpoint(tmp_path: Path) -> None:
    for folder in (tmp_path / "none", tmp_path):
        newest = read_newest(folder)
        assert (newest.snapshot, newest.path, newest.damaged) == (None, None, ())


def flip_a_bit(path: Path) -> None:
    content = bytearray((path / "tensors.safetensors").read_bytes())
    content[-3] ^= 1
    (path / "tensors.safetensors").write_bytes(content)


def cut(path: Path) -> None:
    content = (path / "tensors.safetensors").read_bytes()
    (path / "tensors.safetensors").write_bytes(content[: len(content) // 2])


def newer_format(path: Path) -> None:
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps(state | {"format": 99}))


DAMAGE: dict[str, Any] = {
    "a flipped bit": flip_a_bit,
    "cut short": cut,
    "no tensors": lambda path: (path / "tensors.safetensors").unlink(),
    "no state": lambda path: (path / "state.json").unlink(),
    "state that is no JSON": lambda path: (path / "state.json").write_text("{"),
    "state that is a list": lambda path: (path / "state.json").write_text("[]"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_checkpoint_is_passed_over_with_a_warning_for_the_one_before(tmp_path: Path, what: str) -> None:
    write(tmp_path, snapshot(1), keep=3)
    path, _ = write(tmp_path, snapshot(2), keep=3)
    DAMAGE[what](path)
    newest = read_newest(tmp_path)
    assert newest.snapshot is not None
    assert newest.snapshot.round == 1
    ((damaged, because),) = newest.damaged
    assert damaged == path and "round-000002" in because


def test_checkpoint_of_a_newer_version_is_refused_rather_than_taken_for_damaged(tmp_path: Path) -> None:
    path, _ = write(tmp_path, snapshot(1), keep=3)
    newer_format(path)
    with pytest.raises(ForeignCheckpointError, match="format 99"):
        read_newest(tmp_path)
    assert round_names(tmp_path) == ["round-000001"]


def test_crash_while_writing_leaves_the_one_before_and_no_litter(tmp_path: Path, monkeypatch: Any) -> None:
    write(tmp_path, snapshot(1), keep=2)

    class PowerCutError(BaseException):
        pass

    def power_cut(*_: object) -> None:
        raise PowerCutError

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "_put_in_place", power_cut)
        with pytest.raises(PowerCutError):
            write(tmp_path, snapshot(2), keep=2)
    assert len(round_names(tmp_path)) == 2
    newest = read_newest(tmp_path)
    assert newest.snapshot is not None
    assert newest.snapshot.round == 1
    assert round_names(tmp_path) == ["round-000001"]


def test_crash_while_a_round_is_written_again_leaves_its_first_checkpoint(tmp_path: Path, monkeypatch: Any) -> None:
    write(tmp_path, snapshot(1), keep=2)
    before = (tmp_path / "round-000001" / "state.json").read_bytes()
    renamed, rename = list[Path](), Path.rename

    class PowerCutError(BaseException):
        pass

    def rename_once(path: Path, to: Path) -> None:
        if renamed:
            raise PowerCutError
        renamed.append(path)
        rename(path, to)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", rename_once)
        with pytest.raises(PowerCutError):
            write(tmp_path, snapshot(1), keep=2)
    assert [path.name for path in renamed] == ["round-000001"]
    assert read_newest(tmp_path).snapshot is not None
    assert (tmp_path / "round-000001" / "state.json").read_bytes() == before
    assert round_names(tmp_path) == ["round-000001"]


@pytest.mark.parametrize("failing", ["save_file", "flush", "_put_in_place"])
def test_disk_without_space_is_an_error_that_leaves_the_one_before(
    tmp_path: Path, monkeypatch: Any, failing: str
) -> None:
    write(tmp_path, snapshot(1), keep=2)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, failing, full)
        with pytest.raises(StorageError, match="No space left on device"):
            write(tmp_path, snapshot(2), keep=2)
    assert round_names(tmp_path) == ["round-000001"]
    write(tmp_path, snapshot(2), keep=2)
    assert round_names(tmp_path) == ["round-000001", "round-000002"]


def test_checkpoint_for_which_memory_runs_out_is_an_error_that_leaves_the_one_before(
    tmp_path: Path, monkeypatch: Any
) -> None:
    write(tmp_path, snapshot(1), keep=2)

    def no_memory(*_: Any) -> None:
        raise MemoryError("Unable to allocate 8.00 GiB")

    background = BackgroundCheckpoints(tmp_path, keep=2)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "save_file", no_memory)
        background.save(snapshot(2))
        (failed,) = background.finished(wait=True)
    assert failed.error is not None and "memory ran out (Unable to allocate 8.00 GiB)" in str(failed.error)
    assert round_names(tmp_path) == ["round-000001"]
    background.save(snapshot(3))
    assert [attempt.error for attempt in background.finished(wait=True)] == [None]
    background.close()


def test_repeated_round_replaces_its_checkpoint(tmp_path: Path) -> None:
    write(tmp_path, snapshot(1, 1.0), keep=2)
    write(tmp_path, snapshot(1, 2.0), keep=2)
    newest = read_newest(tmp_path)
    assert newest.snapshot is not None
    assert float(newest.snapshot.tensors["weights.a"][0, 0]) == 2.0
    assert round_names(tmp_path) == ["round-000001"]


def test_background_writes_what_was_there_when_it_was_asked(tmp_path: Path) -> None:
    background = BackgroundCheckpoints(tmp_path, keep=2, clock=lambda: 5.0)
    live = snapshot(3, 1.0)
    background.save(live)
    live.tensors["weights.a"].fill_(9.0)  # the next round has begun
    (written,) = background.finished(wait=True)
    assert written.error is None
    assert (written.round, written.path, written.seconds) == (3, tmp_path / "round-000003", 0.0)
    assert not background.busy
    assert background.finished() == []
    newest = read_newest(tmp_path)
    assert newest.snapshot is not None
    assert float(newest.snapshot.tensors["weights.a"][0, 0]) == 1.0
    background.close()


def test_background_reports_a_failure_and_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.write_text("a file where the folder should be")
    background = BackgroundCheckpoints(folder, keep=2)
    background.save(snapshot(1))
    (failed,) = background.finished(wait=True)
    assert isinstance(failed.error, StorageError)
    folder.unlink()
    background.save(snapshot(2))
    (written,) = background.finished(wait=True)
    assert written.error is None
    background.close()


def test_random_state_goes_on_where_it_was() -> None:
    state = {name: tensor.clone() for name, tensor in random_state().items()}
    expected = torch.rand(3)
    restore_random_state(state)
    assert torch.equal(torch.rand(3), expected)
