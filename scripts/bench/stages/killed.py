"""Whether a node over several machines learns the same while these are killed: processes, at moments drawn at random.

    python -m scripts.bench.stages.killed [--kills 20] [--rounds 40]
    python -m scripts.bench.stages.killed --gone [--rounds 40]

Runs ``starling up --stages 2`` with two ``starling lend`` on the loopback interface twice from one seed: undisturbed,
and while the process that holds layers is killed (SIGKILL) at one of the two machines in turn, whenever both had their
layers for up to three seconds. Then it compares weights and moments of the last checkpoints, tensor by tensor. A node
that holds the model itself, with the same settings and seed, shows that these rounds are those of one machine.

With ``--gone`` one machine is killed once, after a few rounds, and never comes back: how long it takes until layers are
divided anew and the next round is done, and whether every round is done once.
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

from node.stages.attendance import AWAY_SECONDS
from scripts.bench.common.processes import LISTEN, STARLING, ensure_compute_environment, quiet_environment, started_node
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.stages.measured import invitation, processes_under

FLAGS: Final = (
    "policy.adapter_rank=4", "learner.own_groups=8", "learner.foreign_groups=0", "evaluation.every_rounds=0",
    "api.port=0", "checkpoint.keep=1", "learner.batch_tokens=256", "learner.recompute=true", "engine.rows=16",
)  # fmt: skip
WITHIN_SECONDS: Final = 3.0
ROUNDS_BEFORE: Final = 5  # that are done before a machine is gone


def run(
    folder: Path, rounds: int, kills: int, *, machines: int = 2
) -> tuple[list[dict[str, Any]], int, dict[str, torch.Tensor]]:
    """Returns the rounds, how often machines were lost, and weights and moments at the end."""
    done, lost, both = [], 0, threading.Event()
    with ExitStack() as stack:
        node, others = _started(stack, folder, rounds, machines)
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


def gone(folder: Path, rounds: int) -> tuple[list[dict[str, Any]], float, dict[str, Any]]:
    """Returns the rounds, when a machine was killed that stays away, and who held what at the end."""
    done, killed_at, held = [], 0.0, dict[str, Any]()
    with ExitStack() as stack:
        node, others = _started(stack, folder, rounds, 2)
        assert node.stdout is not None
        for line in node.stdout:
            event = json.loads(line)
            if event["event"] == "stages" and event["stages"]:
                held = event
            elif event["event"] == "round":
                done.append(event)
                if len(done) == ROUNDS_BEFORE:
                    killed_at = time.time()
                    for pid in processes_under(others[0].pid):
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
    return done, killed_at, held


def _started(
    stack: ExitStack, folder: Path, rounds: int, machines: int
) -> tuple[subprocess.Popen[bytes], list[subprocess.Popen[bytes]]]:
    """Returns a node and the machines that lend to it; all end with ``stack``."""
    flags = [part for each in FLAGS for part in ("--set", each)]
    node = stack.enter_context(
        started_node(
            folder / "owner", *flags, "--model", "builtin:robin", "--name", "same", "--stages", str(machines),
            "--rounds", str(rounds),
        )
    )  # fmt: skip
    stack.callback(node.terminate)
    others = []
    for number in range(machines):
        to = invitation(folder / "owner", node)
        command = [*STARLING, "lend", "--to", to, "--home", str(folder / str(number)), "--listen", LISTEN]
        other = subprocess.Popen(command, env=quiet_environment(), stdout=subprocess.DEVNULL)
        stack.callback(other.wait)
        stack.callback(other.terminate)
        others.append(other)
    return node, others


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
    parser.add_argument("--gone", action="store_true", help="one machine is killed once and never comes back")
    options = parser.parse_args()
    if options.gone:
        report_gone(options.rounds, as_json=options.json)
        return
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


def report_gone(rounds: int, *, as_json: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        done, killed_at, held = gone(Path(folder), rounds)
    numbers = [each["round"] for each in done]
    after = [each["time_seconds"] - killed_at for each in done if each["time_seconds"] > killed_at]
    first = next(each for each in after if each > AWAY_SECONDS)
    figures = [
        Figure("seconds from the loss until the next round ended", first, "s", "lower"),
        Figure("of these after the machine counts as gone", first - AWAY_SECONDS, "s", "lower"),
        Figure("rounds done", len(done), "", "higher", f"{rounds}"),
        Figure("rounds left out, or done twice", sum(a != b for a, b in enumerate(numbers, 1)), "", "lower", "0"),
        Figure("other machines at the end", len(held["stages"]), "", "higher", "1"),
    ]
    report("stages killed --gone", figures, as_json=as_json)


if __name__ == "__main__":
    main()
