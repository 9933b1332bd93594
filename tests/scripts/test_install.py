"""install.sh and what it sources: with the real uv, offline, on a small package that stands in for the whole project;
``scripts/try_install.sh`` installs the whole one. And what it says where a machine cannot do it."""

from __future__ import annotations

import hashlib
import os
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable
from importlib.metadata import requires
from pathlib import Path

import pytest
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import KeyType
from libp2p.crypto.serialization import key_type_to_public_key_deserializer
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_PROTOCOL
from packaging.requirements import Requirement

from swarm.hosts.libp2p.connecting.upgrading import Upgrader
from swarm.hosts.libp2p.containment import Failures
from swarm.hosts.libp2p.transport import Meter

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = (
    "install.sh",
    "scripts/environment.sh",
    "scripts/start.sh",
    "scripts/test.sh",
    "scripts/try_install.sh",
    "scripts/check_wheels.sh",
)
Install = Callable[..., "subprocess.CompletedProcess[str]"]

# A build backend that needs nothing: it writes the wheel that its pyproject.toml asks for.
BACKEND = """
import pathlib, tomllib, zipfile

MAIN = '''
import os, sys
def main():
    if sys.argv[1:2] == ["status"]:
        sys.exit(0 if os.environ.get("A_NODE_RUNS") else 69)
    print("VERSION")
'''

def build_wheel(folder, config_settings=None, metadata_directory=None):
    project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
    name, version = project["name"].replace("-", "_"), project["version"]
    info, module = f"{name}-{version}.dist-info", f"small_{name}"
    files = {
        f"{module}.py": MAIN.replace("VERSION", f"{name} {version}"),
        f"{info}/METADATA": f"Metadata-Version: 2.1\\nName: {project['name']}\\nVersion: {version}\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: small\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    if "scripts" in project:
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\\nstarling = {module}:main\\n"
    files[f"{info}/RECORD"] = "".join(f"{path},,\\n" for path in [*files, f"{info}/RECORD"])
    wheel = f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder) / wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel
"""


def write_package(folder: Path, name: str, version: str, more: str = "") -> None:
    (folder / "scripts").mkdir(parents=True, exist_ok=True)
    (folder / "scripts" / "backend.py").write_text(BACKEND)
    (folder / "pyproject.toml").write_text(
        f'[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["scripts"]\n\n'
        f'[project]\nname = "{name}"\nversion = "{version}"\n{more}'
    )


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Sources in the shape of the project: install.sh and environment.sh are the real ones."""
    folder = tmp_path / "sources"
    write_package(folder, "starling-swarm", "1.0", '\n[project.scripts]\nstarling = "x"\n')
    write_package(folder / "packaging" / "pycosat", "pycosat", "0.6.6")
    for name in ("node", "protocol", "starling", "swarm"):
        (folder / name).mkdir()
    for name in ("README.md", "LICENSE"):
        (folder / name).touch()
    shutil.copy(ROOT / "install.sh", folder)
    shutil.copy(ROOT / "scripts" / "environment.sh", folder / "scripts")
    return folder


@pytest.fixture
def install(tmp_path: Path, sources: Path) -> Install:
    """Runs install.sh in a home of its own."""
    home = tmp_path / "home with a space"
    home.mkdir()
    uv = Path(sys.executable).with_name("uv")

    def run(*arguments: str, path: str = os.environ["PATH"], script: Path | None = None, **more: str):
        own = {"STARLING_UV": str(uv), "STARLING_PYTHON": sys.executable, "UV_OFFLINE": "1"}
        environment = {"HOME": str(home), "PATH": path, **own}
        return subprocess.run(
            ["sh", str(script or sources / "install.sh"), *arguments],
            env=environment | more, text=True, capture_output=True, check=False,
        )  # fmt: skip

    return run


def command(tmp_path: Path) -> Path:
    return tmp_path / "home with a space" / ".local" / "bin" / "starling"


def test_scripts_pass_shellcheck() -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([shellcheck, "-x", *SCRIPTS], cwd=ROOT, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout


def test_folder_is_installed_twice_then_a_newer_tarball_then_removed_and_data_stay(
    install: Install, sources: Path, tmp_path: Path
) -> None:
    for _ in range(2):
        done = install()
        assert done.returncode == 0, done.stderr
        assert "add " in done.stderr and ".local/bin to PATH" in done.stderr
        assert subprocess.check_output([command(tmp_path)], text=True) == "starling_swarm 1.0\n"
    assert not (sources / "build").exists() and not list(sources.glob("*.whl"))  # nothing is built in a checkout
    data = tmp_path / "home with a space" / ".local" / "share" / "starling" / "identity.key"
    data.parent.mkdir(parents=True)
    data.touch()

    # Of another length: Python tells a newer file from one that it has compiled by size and by second.
    write_package(sources, "starling-swarm", "1.10", '\n[project.scripts]\nstarling = "x"\n')
    packed = tmp_path / "starling-1.10.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(sources, "starling-1.10")
    piped = tmp_path / "install.sh"
    shutil.copy(ROOT / "install.sh", piped)  # not beside any sources, as when it is read from a pipe
    wrong = install("--from", str(packed), "--sha256", "0" * 64, script=piped)
    assert wrong.returncode == 1 and "digest" in wrong.stderr
    assert subprocess.check_output([command(tmp_path)], text=True) == "starling_swarm 1.0\n"
    digest = hashlib.sha256(packed.read_bytes()).hexdigest()
    done = install("--from", str(packed), "--sha256", digest, script=piped)
    assert done.returncode == 0, done.stderr
    assert subprocess.check_output([command(tmp_path)], text=True) == "starling_swarm 1.10\n"

    for arguments in ((), ("--uninstall",)):
        running = install(*arguments, A_NODE_RUNS="yes")
        assert running.returncode == 1 and "starling down" in running.stderr and command(tmp_path).exists()
    gone = install("--uninstall")
    assert gone.returncode == 0 and "rm -r" in gone.stderr
    assert (
        not command(tmp_path).is_symlink()
        and not (tmp_path / "home with a space" / ".local" / "lib" / "starling").exists()
    )
    assert data.exists()
    assert install("--uninstall").returncode == 1


def test_a_command_or_folder_that_it_did_not_make_is_left_alone(install: Install, tmp_path: Path) -> None:
    command(tmp_path).parent.mkdir(parents=True)
    command(tmp_path).write_text("mine")
    done = install()
    assert done.returncode == 1 and "STARLING_BIN" in done.stderr and command(tmp_path).read_text() == "mine"
    command(tmp_path).unlink()
    (tmp_path / "home with a space" / ".local" / "lib" / "starling").mkdir(parents=True)
    done = install()
    assert done.returncode == 1 and "STARLING_PREFIX" in done.stderr
    assert install("--uninstall").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--from", "http://example.org/starling.tar.gz"), "https"),
        (("--from", "/nowhere"), "no sources of starling"),
        (("--from",), "needs a value"),
        (("--frm", "x"), "--help"),
    ],
)
def test_sources_or_options_that_cannot_be_are_refused_with_what_to_do(
    install: Install, tmp_path: Path, arguments: tuple[str, ...], word: str
) -> None:
    done = install(*arguments)
    assert done.returncode == 1 and word in done.stderr and not command(tmp_path).exists()
    assert not (tmp_path / "home with a space" / ".local").exists()


def test_help_from_a_pipe_names_every_option(tmp_path: Path) -> None:
    with (ROOT / "install.sh").open() as script:
        shown = subprocess.check_output(["sh", "-s", "--", "--help"], stdin=script, text=True)
    assert all(option in shown for option in ("--from", "--sha256", "--with", "--uninstall", "curl"))


def machine(tmp_path: Path, **answers: str) -> str:
    """Returns a PATH where some commands answer as on another machine."""
    folder = tmp_path / "machine"
    folder.mkdir()
    for name, text in answers.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("answers", "word"),
    [
        ({"uname": 'case "$1" in -s) echo Darwin;; *) echo x86_64;; esac'}, "Apple silicon"),
        ({"uname": 'case "$1" in -s) echo Darwin;; *) echo arm64;; esac', "sw_vers": "echo 13.6.1"}, "macOS 14"),
        ({"uname": 'case "$1" in -s) echo Linux;; *) echo armv7l;; esac'}, "64-bit ARM"),
        ({"uname": "echo MINGW64_NT-10.0"}, "WSL2"),
        ({"ldd": "echo musl libc >&2"}, "musl"),
        ({"df": "echo header; echo disk 9 9 1024000 9% /"}, "1000 MB free"),
    ],
)
def test_machine_that_has_no_wheels_or_no_room_is_told_before_anything_is_fetched(
    install: Install, tmp_path: Path, answers: dict[str, str], word: str
) -> None:
    done = install(path=machine(tmp_path, **answers))
    assert done.returncode == 1 and word in done.stderr and not command(tmp_path).exists()


def test_missing_python_and_a_silent_package_index_are_told_with_their_remedies(
    install: Install, tmp_path: Path
) -> None:
    none = dict.fromkeys(("python3", "python3.13", "python3.12", "python3.11", "python", "uv"), "exit 127")
    path = machine(tmp_path, **none)
    done = install(path=path, STARLING_PYTHON="/nowhere", STARLING_UV="/nowhere")
    assert done.returncode == 1 and "STARLING_PYTHON" in done.stderr and "3.11" in done.stderr
    done = install(UV_OFFLINE="", UV_DEFAULT_INDEX="http://127.0.0.1:9/simple/")
    assert done.returncode == 1 and "HTTPS_PROXY" in done.stderr and "127.0.0.1:9" in done.stderr


def test_index_of_pip_is_used_by_uv_as_well(install: Install, tmp_path: Path) -> None:
    done = install(UV_OFFLINE="", PIP_INDEX_URL="http://127.0.0.1:9/of-pip/", PIP_CONFIG_FILE=os.devnull)
    assert done.returncode == 1 and "127.0.0.1:9/of-pip/" in done.stderr


def test_stand_in_for_pycosat_is_what_reasoning_gym_requires_can_be_imported_and_solves_nothing() -> None:
    folder = ROOT / "packaging" / "pycosat"
    version = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["version"]
    (required,) = (line for line in requires("reasoning-gym") or [] if line.startswith("pycosat"))
    assert Requirement(required).specifier.contains(version)
    named = runpy.run_path(str(folder / "pycosat.py"))
    assert named["__version__"] == version
    for name in ("solve", "itersolve"):
        with pytest.raises(ImportError, match=r"--no-deps pycosat==0\.6\.6"):
            named[name]([[1, -2]])


def test_nothing_that_a_peer_sends_reaches_the_calls_in_which_fastecdsa_4_differs() -> None:
    """``libp2p.crypto.ecc`` makes them: for keys of P-256, which no deserializer takes, and for secio."""
    assert KeyType.ECC_P256.value not in key_type_to_public_key_deserializer
    upgrader = Upgrader(create_new_key_pair(), set(), None, Meter(), Failures())
    assert list(upgrader.security_multistream.transports) == [NOISE_PROTOCOL]


def test_override_is_still_needed_and_pip_alone_would_still_compile() -> None:
    """Once libp2p allows the version that has wheels, ``override-dependencies`` of pyproject.toml can go."""
    (override,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["override-dependencies"]
    (required,) = (line for line in requires("libp2p") or [] if line.startswith("fastecdsa"))
    assert Requirement(override).name == "fastecdsa" and Requirement(override).specifier.contains("4.0.0")
    assert not Requirement(required).specifier.contains("4.0.0")


def test_index_in_a_file_of_pip_is_used_also_by_an_environment_that_has_no_pip(
    install: Install, tmp_path: Path
) -> None:
    assert install().returncode == 0  # by uv, which puts no pip into the environment
    configured = tmp_path / "pip.conf"
    configured.write_text("[global]\nindex-url = http://127.0.0.1:9/of-file/\n")
    has_pip = machine(tmp_path, python3=f'exec {sys.base_prefix}/bin/python3 "$@"')
    done = install(path=has_pip, UV_OFFLINE="", PIP_CONFIG_FILE=str(configured))
    assert done.returncode == 1 and "127.0.0.1:9/of-file/" in done.stderr
