"""What fitted after memory ran out: read back, damaged, of another version, of another model or machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.fit.fitted import (
    FLOORS,
    Fitted,
    Sizes,
    fitted_with,
    halved,
    read_fitted,
    remember,
    remember_smaller_passes,
    write_fitted,
)
from protocol.errors import StorageError

GIB = 1 << 30
FITTED = Fitted(model="builtin:wren", memory_bytes=24 * GIB, rows=32, batch_tokens=2048, learner_killed=1)


def test_what_was_written_is_read_back_and_no_litter_stays(tmp_path: Path) -> None:
    write_fitted(tmp_path / "fitted.json", FITTED)
    assert read_fitted(tmp_path / "fitted.json") == FITTED
    assert [path.name for path in tmp_path.iterdir()] == ["fitted.json"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"model":"builtin:wren","memory_bytes":1,"rows":"many","batch_tokens":1}',
        b'{"version":2,"model":"builtin:wren","memory_bytes":9,"rows":8,"batch_tokens":512,"learner_killed":0}',
        b'{"version":1,"model":"builtin:wren","memory_bytes":9,"rows":0,"batch_tokens":512,"learner_killed":0}',
        b"\xff\x00" * 100,
    ],
)
def test_a_damaged_file_or_one_of_another_version_counts_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "fitted.json").write_bytes(content)
    assert read_fitted(tmp_path / "fitted.json") is None


def test_no_file_and_a_folder_in_its_place_count_as_none(tmp_path: Path) -> None:
    assert read_fitted(tmp_path / "fitted.json") is None
    (tmp_path / "fitted.json").mkdir()
    assert read_fitted(tmp_path / "fitted.json") is None


def test_a_file_that_cannot_be_written_says_so_and_the_old_one_stays(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"fitted\.json"):
        write_fitted(tmp_path / "gone" / "fitted.json", FITTED)


@pytest.mark.parametrize(
    ("model", "memory_bytes", "holds"),
    [
        ("builtin:wren", 24 * GIB, True),
        ("builtin:wren", int(24.5 * GIB), True),  # another reading of the same memory
        ("builtin:robin", 24 * GIB, False),
        ("builtin:wren", 48 * GIB, False),
    ],
)
def test_what_fitted_counts_for_the_same_model_on_the_same_memory_alone(
    tmp_path: Path, model: str, memory_bytes: int, holds: bool
) -> None:
    write_fitted(tmp_path / "fitted.json", FITTED)
    assert fitted_with(tmp_path / "fitted.json", model, memory_bytes) == (FITTED if holds else None)


def test_halving_ends_at_the_floor_and_leaves_what_is_below_it() -> None:
    assert [halved(9, 1), halved(3, 2), halved(2, 2), halved(1, 2)] == [4, 2, 2, 1]
    assert Sizes(halved(1, FLOORS.rows), halved(256, FLOORS.batch_tokens)) == Sizes(1, 256)


def test_passes_become_half_as_large_at_each_end_by_memory_down_to_the_floor(tmp_path: Path) -> None:
    path, begun = tmp_path / "fitted.json", Sizes(8, 1000, recompute=True)
    found = []
    for _ in range(3):
        remember_smaller_passes(path, "m", 1 << 30, begun)
        fitted = read_fitted(path)
        assert fitted is not None
        found.append(fitted.sizes)
    assert found == [Sizes(8, each, recompute=True) for each in (500, 256, 256)]
    remember_smaller_passes(path, "another model", 1 << 30, begun)
    assert read_fitted(path) == Fitted(
        model="another model", memory_bytes=1 << 30, rows=8, batch_tokens=500, recompute=True
    )


def test_an_end_by_memory_that_cannot_be_written_down_raises_nothing(tmp_path: Path) -> None:
    remember_smaller_passes(tmp_path / "missing" / "fitted.json", "m", 1 << 30, Sizes(8, 1000))
    with pytest.raises(StorageError):
        remember(tmp_path / "missing" / "fitted.json", "m", 1 << 30, Sizes(8, 1000))
