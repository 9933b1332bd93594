"""Two whole nodes behind routers learn from each other, and go on when the public peer is gone. Linux and root only.

    python -m scripts.bench.reach_nodes [--kinds port-restricted,port-restricted] [--json]

Three network namespaces (``common.nat_lab``): a public swarm process, and two nodes with the smallest built-in model
behind routers, which know the public one's address alone. Printed: the seconds from the start of the second node to the
first foreign group that it trained on; then the public peer is killed, and the foreign groups that the second node
trained on, and its outer steps with the first node's weights, are counted over ``AFTER_SECONDS``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from node.tasks.registry import default_manifest_tasks
from protocol.manifest import Manifest
from scripts.bench.common.nat_lab import PORT, NatPlace, nat_lab
from scripts.bench.common.nat_routers import RouterKind
from scripts.bench.common.reporting import Figure, add_json_flag, report
from scripts.bench.common.swarm_processes import SwarmProcess

BAR_SECONDS: Final = 60.0
GIVE_UP_SECONDS: Final = 240.0
AFTER_SECONDS: Final = 60.0
SWARM: Final = "starling"


class HomeNode:
    """A node behind a router, and the latest of its rounds."""

    def __init__(self, number: int, place: NatPlace, directory: Path, peer: str) -> None:
        self.began = time.monotonic()
        self.used = 0  # foreign groups, trained on
        self.averaged = 0  # times
        self.first_used_seconds: float | None = None
        command = [sys.executable, "-m", "node.cli.main", "up", "--json", "--home", str(directory / f"home{number}")]
        command += ["--model", "builtin:wren", "--name", f"home{number}", "--peer", peer]
        command += ["--listen", f"/ip4/0.0.0.0/tcp/{PORT}", "--set", "api.port=0"]
        offline = {"STARLING_SWARM__LAN_DISCOVERY": "false", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            place.command(command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ | offline
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            self.averaged += event["event"] == "averaged" and event["partner"] is not None
            if event["event"] == "round":
                self.used = event["foreign_groups_used_total"]
                if self.used and self.first_used_seconds is None:
                    self.first_used_seconds = time.monotonic() - self.began

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kinds", default="port-restricted,port-restricted", help="of router, as in docs/reach.md")
    add_json_flag(parser)
    options = parser.parse_args(arguments)
    kinds = [RouterKind(kind) for kind in options.kinds.split(",")]
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        public, *homes = stack.enter_context(nat_lab([RouterKind.NONE, *kinds]))
        swarm_id = Manifest(SWARM, default_manifest_tasks()).swarm_id.hex()
        listen = f"/ip4/0.0.0.0/tcp/{PORT}"
        door = SwarmProcess(
            0, directory, (), prefix=public.command([]), listen=listen, swarm_name=SWARM, swarm_id=swarm_id
        )
        stack.callback(door.close)
        (address,) = [each for each in door.addresses if public.address in each]
        nodes = []
        for number, place in enumerate(homes, start=1):
            nodes.append(HomeNode(number, place, directory, address))
            stack.callback(nodes[-1].close)
        second = nodes[-1]
        while second.first_used_seconds is None and time.monotonic() - second.began < GIVE_UP_SECONDS:
            time.sleep(0.5)
        figures = []
        if second.first_used_seconds is not None:
            bar = f"≤ {BAR_SECONDS:g}"
            figures.append(Figure("first foreign group trained on", second.first_used_seconds, "s", "lower", bar))
        time.sleep(10.0)  # for the hole to be punched
        door.process.kill()
        used, averaged = second.used, second.averaged
        time.sleep(AFTER_SECONDS)
        after = f"foreign groups trained on in {AFTER_SECONDS:g} s without the public peer"
        figures.append(Figure(after, float(second.used - used), "groups", "higher", "> 0"))
        weights = f"outer steps in {AFTER_SECONDS:g} s without the public peer, after {averaged} with it"
        figures.append(Figure(weights, float(second.averaged - averaged), "steps", "higher"))
    report("reach_nodes", figures, as_json=options.json)


if __name__ == "__main__":
    main()
