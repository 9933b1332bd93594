"""Whether a node over several machines learns the same while these are killed: processes, at moments drawn at random.

    python -m scripts.bench.stages.killed [--kills 20] [--rounds 40]

Runs ``starling up --stages 2`` with two ``starling lend`` on the loopback interface twice from one seed: undisturbed,
and while the process that holds layers is killed (SIGKILL) at one of the two machines in turn, whenever both had their
layers for up to three seconds. Then it compares weights and moments of the last checkpoints, tensor by tensor. A node
that holds the model itself, with the same settings and seed, shows that these rounds are those of one machine.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file

from scripts.bench.common.processes import LISTEN, STARLING, ensure_compute_environment, quiet_environment, started_node
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.stages.measured import invitation, processes_under

FLAGS: Final = (
    "policy.adapter_rank=4", "learner.own_groups=8", "learner.foreign_groups=0", "evaluation.every_rounds=0",
    "api.port=0", "checkpoint.keep=1", "learner.batch_tokens=256", "learner.recompute=true", "engine.rows=16",
)  # fmt: skip
WITHIN_SECONDS: Final = 3.0


def run(
    folder: Path, rounds: int, kills: int, *, machines: int = 2
) -> tuple[list[dict[str, Any]], int, dict[str, torch.Tensor]]:
    """Returns the rounds, how often machines were lost, and weights and moments at the end."""
    flags = [part for each in FLAGS for part in ("--set", each)]
    done, lost, both = [], 0, threading.Event()
    with ExitStack() as stack:
        node = stack.enter_context(
            started_node(
                folder / "owner", *flags, "--model", "builtin:robin", "--name", "same", "--stages", str(machines),
                "--rounds", str(rounds),
            )
        )  # fmt: skip
        stack.callback(node.terminate)
        others = []
        for number in range(machines):
            command = [
                *STARLING,
                "lend",
                "--to",
                invitation(folder / "owner", node),
                "--home",
                str(folder / str(number)),
            ]
            other = subprocess.Popen([*command, "--listen", LISTEN], env=quiet_environment(), stdout=subprocess.DEVNULL)
            stack.callback(other.wait)
            stack.callback(other.terminate)
            others.append(other)
        ended = threading.Event()
        killer = threading.Thread(target=_kill, args=([each.pid for each in others], kills, both, ended))
        killer.start()
        assert node.stdout is not None
        for line in node.stdout:
            event = json.loads(line)
            if event["event"] == "stages":
                if event["stages"] and not event["waits"]:
                    both.set()
                elif event["stages"] and both.is_set():
                    both.clear()
                    lost += 1
            elif event["event"] == "round":
                done.append(event)
        ended.set()
        both.set()
        killer.join()
    newest = max((folder / "owner" / "checkpoints").glob("round-*"))
    tensors = load_file(newest / "tensors.safetensors")
    return done, lost, {name: each for name, each in tensors.items() if not name.startswith("random.")}


def _kill(machines: list[int], kills: int, both: threading.Event, ended: threading.Event) -> None:
    draws = random.Random(7)
    for number in range(kills):
        both.wait()
        time.sleep(draws.uniform(0.0, WITHIN_SECONDS))
        if ended.is_set():
            return
        root = machines[number % 2]
        for pid in processes_under(root):
            with suppress(ProcessLookupError):
                if pid != root:
                    os.kill(pid, signal.SIGKILL)
        time.sleep(1.0)  # until the owner has noticed


def main() -> None:
    ensure_compute_environment()
    parser = figures_parser(__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plain, _, expected = run(Path(folder) / "plain", options.rounds, 0)
        alone, _, _ = run(Path(folder) / "alone", options.rounds, 0, machines=0)
        killed, lost, found = run(Path(folder) / "killed", options.rounds, options.kills)
    losses = [[each["loss"] for each in rounds] for rounds in (plain, killed)]
    differing = sum(not torch.equal(expected[name], found[name]) for name in expected.keys() | found.keys())
    drawn = [[each["tokens_generated"] for each in rounds] for rounds in (plain, alone)]
    gaps = [abs(one["loss"] - other["loss"]) for one, other in zip(plain, alone, strict=True)]
    figures = [
        Figure("rounds with as many tokens as those of one machine", sum(a == b for a, b in zip(*drawn, strict=True)),
               "", "higher", f"{options.rounds}"),
        Figure("greatest difference of a loss to one machine's", max(gaps), "", "lower", "≤ 1e-5"),
        Figure("machines lost", lost, "", "higher"),
        Figure("rounds done, with machines lost", len(killed), "", "higher", f"{options.rounds}"),
        Figure("rounds whose loss differs", sum(a != b for a, b in zip(*losses, strict=True)), "", "lower", "0"),
        Figure("weights and moments that differ", differing, "tensors", "lower", f"0 of {len(expected)}"),
    ]  # fmt: skip
    if lost:
        took = [rounds[-1]["time_seconds"] - rounds[0]["time_seconds"] for rounds in (plain, killed)]
        figures.append(Figure("seconds of a loss", (took[1] - took[0]) / lost, "s", "lower"))
    report("stages killed", figures, as_json=options.json)


if __name__ == "__main__":
    main()
