"""The data directory: its path, and the lock that lets one node use it at a time."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from node.home import MAX_SOCKET_PATH_BYTES, Home, Lock, LockHeld, home_at, how_to_write, is_locked, lock_home
from protocol.errors import ConfigurationError, StorageError


def test_the_flag_wins_over_the_environment_over_the_users_data_directory() -> None:
    environment = {"STARLING_HOME": "/b", "XDG_DATA_HOME": "/c"}
    assert home_at(Path("/a"), environment).path == Path("/a")
    assert home_at(None, environment).path == Path("/b")
    assert home_at(None, {"XDG_DATA_HOME": "/c"}).path == Path("/c/starling")
    assert home_at(None, {"STARLING_HOME": ""}).path == Path.home() / ".local" / "share" / "starling"


def test_a_relative_directory_is_made_absolute() -> None:
    assert home_at(Path("x"), {}).path == Path.cwd() / "x"


def test_preparing_makes_a_directory_that_only_its_owner_can_enter(tmp_path: Path) -> None:
    Home(tmp_path / "a" / "b").prepare()
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_a_path_too_long_for_a_socket_is_refused_with_the_limit(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=str(MAX_SOCKET_PATH_BYTES)):
        Home(tmp_path / ("x" * 100)).prepare()


def test_a_directory_that_cannot_be_made_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=os.strerror(errno.ENOTDIR)):
        Home(tmp_path / "file" / "home").prepare()


def test_the_second_taker_learns_who_holds_the_lock(tmp_path: Path) -> None:
    home = Home(tmp_path)
    lock = lock_home(home)
    assert isinstance(lock, Lock) and is_locked(home)
    assert lock_home(home) == LockHeld(os.getpid())
    lock.release()
    assert not is_locked(home)
    again = lock_home(home)
    assert isinstance(again, Lock)
    again.release()


def test_a_lock_whose_supervisor_is_dead_while_its_children_live_names_no_holder(tmp_path: Path) -> None:
    home = Home(tmp_path)
    lock = lock_home(home)
    assert isinstance(lock, Lock)
    os.close(lock.own_descriptor)  # as when the supervisor was killed: its children hold the other one
    assert lock_home(home) == LockHeld(None) and is_locked(home)
    os.close(lock.descriptor)
    assert not is_locked(home)


def test_children_inherit_the_shared_lock_only_where_they_are_handed_it(tmp_path: Path) -> None:
    lock = lock_home(Home(tmp_path))
    assert isinstance(lock, Lock)
    assert not os.get_inheritable(lock.descriptor) and not os.get_inheritable(lock.own_descriptor)
    lock.release()


def test_a_directory_never_used_is_not_locked(tmp_path: Path) -> None:
    assert not is_locked(Home(tmp_path / "nowhere"))


def test_a_file_system_that_is_mounted_read_only_is_not_a_matter_of_ownership(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "chown" in how_to_write(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_RDONLY | os.ST_NOSUID))
    assert "chown" not in how_to_write(tmp_path) and "read-only" in how_to_write(tmp_path)
