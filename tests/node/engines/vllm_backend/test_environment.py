"""Installs stand-ins for vLLM, wheels made here, with the real pip in real environments."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from node.engines.vllm_backend.environment import (
    Build,
    Installed,
    VllmEnvironment,
    environment_at,
    install,
    remove,
)
from protocol.errors import ConfigurationError, StorageError


def wheel(folder: Path, name: str, content: str) -> str:
    """A wheel of one module."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    metadata = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", content)
        archive.writestr(f"{metadata}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{metadata}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{metadata}/RECORD", "")
    return str(path)


def test_an_engine_counts_as_installed_once_it_was_imported(tmp_path: Path) -> None:
    environment = VllmEnvironment(tmp_path / "engines" / "vllm")
    said: list[str] = []
    zstandard = wheel(tmp_path, "zstandard", "")
    broken = wheel(tmp_path, "vllm", "raise OSError('no such library')\n")
    with pytest.raises(ConfigurationError, match=r"(?s)trying it failed.*no such library"):
        install(environment, Build("cpu", (broken, zstandard), (), 1), said.append)
    assert environment.python.exists() and environment.installed() is None

    whole = wheel(tmp_path, "vllm", "__version__ = '7.8'\n")
    found = install(environment, Build("cpu", (whole, zstandard), (), 1), said.append)
    assert found == environment.installed() == Installed("cpu", "7.8")
    assert any(line.startswith(f"installing {whole}") for line in said)
    assert remove(environment) and environment.installed() is None and not remove(environment)


def test_an_installation_without_room_is_refused_before_anything_is_deleted(tmp_path: Path) -> None:
    environment = VllmEnvironment(tmp_path / "vllm")
    environment.folder.mkdir()
    with pytest.raises(StorageError, match="STARLING_ENGINES"):
        install(environment, Build("cpu", ("vllm",), (), 2**62), print)
    assert environment.folder.exists()


@pytest.mark.parametrize("content", [b"", b"{}", b"[1"])
def test_a_marker_that_says_nothing_is_none(tmp_path: Path, content: bytes) -> None:
    environment = VllmEnvironment(tmp_path)
    (tmp_path / "starling-engine.json").write_bytes(content)
    environment.python.parent.mkdir(exist_ok=True)
    environment.python.touch()
    assert environment.installed() is None


def test_all_nodes_of_a_user_share_the_environment(tmp_path: Path) -> None:
    assert environment_at({"STARLING_ENGINES": str(tmp_path)}).folder == tmp_path / "vllm"
    assert environment_at({"XDG_DATA_HOME": str(tmp_path)}).folder == tmp_path / "starling-engines" / "vllm"
    assert environment_at(os.environ | {"STARLING_ENGINES": "", "XDG_DATA_HOME": ""}).folder.is_absolute()
