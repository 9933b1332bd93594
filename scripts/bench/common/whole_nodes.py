"""Whole nodes with the smallest built-in model on the machines of ``nat_lab``, and commands of ``starling`` there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from scripts.bench.common.nat_lab import PORT, NatPlace
from swarm.client import SwarmClient

OFFLINE = {"STARLING_SWARM__LAN_DISCOVERY": "false", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
START_SECONDS = 120.0


def starling(place: NatPlace, *arguments: str) -> str:
    """Runs a verb of ``starling`` on a machine; returns what it prints."""
    command = place.command([sys.executable, "-m", "node.cli.main", *arguments])
    return subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | OFFLINE).stdout


class WholeNode:
    """``starling up`` or ``starling relay`` on a machine. ``address`` is that at which others dial it."""

    def __init__(self, place: NatPlace, home: Path, *arguments: str, verb: str = "up") -> None:
        self.began = time.monotonic()
        self.averaged = 0  # times
        command = [sys.executable, "-m", "node.cli.main", verb, "--json", "--home", str(home)]
        command += ["--listen", f"/ip4/0.0.0.0/tcp/{PORT}"]
        if verb == "up":
            command += ["--model", "builtin:wren", "--name", home.name, "--set", "api.port=0"]
        self.process = subprocess.Popen(
            place.command([*command, *arguments]),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | OFFLINE,
        )
        threading.Thread(target=self._read, daemon=True).start()
        self._wait_for(home / "swarm.sock")
        self.client = SwarmClient(home / "swarm.sock", timeout_seconds=120.0)
        status = self.client.status()
        self.peer = status.peer
        self.address = next((a for a in status.addresses if place.address in a), "")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            self.averaged += event["event"] == "averaged" and event["partner"] is not None

    def _wait_for(self, socket: Path) -> None:
        while not socket.exists():
            if self.process.poll() is not None or time.monotonic() - self.began > START_SECONDS:
                raise SystemExit(f"starling up ended, or opened no {socket} in {START_SECONDS:g} s")
            time.sleep(0.2)
        time.sleep(1.0)  # for it to be listened on

    def seconds(self) -> float:
        """Returns how long ago the node was started."""
        return time.monotonic() - self.began

    def used_of(self, peer: str) -> int:
        """Returns how many groups of a peer the node has trained on."""
        return next((each.groups_used for each in self.client.peers() if each.peer == peer), 0)

    def close(self) -> None:
        self.client.close()
        self.process.terminate()
        self.process.wait()
