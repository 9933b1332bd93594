"""The wheel that ``pipx install`` would take: the command works from an environment without the sources."""

from __future__ import annotations

import http.client
import shutil
import socket
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]


def built_wheel(folder: Path) -> Path:
    """Built from a copy of what the repository tracks, so that nothing is left in the checkout."""
    sources = folder / "sources"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, tracked.split("\0")):
        if name.split("/")[0] not in ("tests", "docs", "scripts") and (ROOT / name).is_file():
            (sources / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, sources / name)
    uv("build", "--wheel", "--no-build-isolation", "--python", sys.executable, "--out-dir", str(folder), str(sources))
    (wheel,) = folder.glob("*.whl")
    return wheel


def uv(*arguments: str) -> None:
    """An environment that uv made has no pip."""
    command = [sys.executable, "-m", "uv", *arguments, "--offline", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def installed(wheel: Path, folder: Path) -> Path:
    """An environment with the wheel alone, which takes the dependencies, but no editable install, from this one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    uv("pip", "install", "--python", str(folder / "bin" / "python"), "--no-deps", str(wheel))
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder


def test_an_installed_wheel_trains_serves_its_page_and_holds_no_tests(processes: Any) -> None:
    wheel = built_wheel(processes.root)
    names = zipfile.ZipFile(wheel).namelist()
    packages = {"node", "protocol", "starling", "swarm"}
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == packages
    assert {f"{package}/py.typed" for package in packages} <= set(names)

    del processes.environment["PYTHONPATH"]  # which leads to the sources
    binaries = installed(wheel, processes.root / "environment") / "bin"
    found = processes.start(str(binaries / "python"), "-P", "-c", "import node; print(node.__file__)").ended()
    assert found.stdout.startswith(str(processes.root))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    node = processes.up("--rounds", "0", "--set", f"api.port={port}", starling=(str(binaries / "starling"),))
    node.wait_for_round(1)
    for asset in ("/", "/assets/page.js"):
        page = http.client.HTTPConnection("127.0.0.1", port)
        page.request("GET", asset)
        answer = page.getresponse()
        assert answer.status == 200 and len(answer.read()) > 500
        page.close()
    assert node.stop() == 0
    assert processes.none_alive()
