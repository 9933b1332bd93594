"""Seconds of one model over machines that have a share of a core each, against one such machine that holds it all.

    python -m scripts.bench.stages.timed [--ways lan home owner-fast owner-slow] [--layers 12] [--cores .25]

``starling up --stages`` and ``starling lend`` on "machines" of this computer: a network namespace with a shaped link,
and a control group with a share of a core, which hold all processes of the machine. The model is that of ``MODEL``,
with random weights and an adapter, so that every answer is as long as its task allows. Rounds are as large as shipped,
and settings that cost time are those that a node finds itself, but for the learning rate: a node that finds it measures
in its first eight rounds, and then seldom, how far a step went, by one pass more, which is the whole batch where one
machine has room for it. Linux and root only.

``alone`` one machine; ``lan`` three equal ones at 1 Gbit/s; ``home`` the same at 50 Mbit/s and 20 ms; ``owner-fast``
and ``owner-slow`` two on the LAN of which the owner has three times the other's share, or a third of it. A round's
seconds are those of the fastest after the first. A machine is idle for the share of its processor that it did not use
while the owner learned: computing, sending and whatever else its processes do is use.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from scripts.bench.common.model_shapes import write_model
from scripts.bench.common.process_usage import tree_cpu_seconds
from scripts.bench.common.processes import STARLING, ensure_compute_environment, quiet_environment
from scripts.bench.common.processor_share import ProcessorShare, processor_share
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.common.slow_network import SlowPeer, slow_network
from scripts.bench.stages.measured import invitation, tasks

SHAPE: Final = "SmolLM2-135M"
MODEL: Final = {  # narrower, with as large a part of the work in the head as half a billion weights have
    "hidden_size": 256, "intermediate_size": 683, "num_attention_heads": 4, "num_key_value_heads": 1,
    "vocab_size": 12288,
}  # fmt: skip
ANSWER_TOKENS: Final = 16
FLAGS: Final = (
    "policy.adapter_rank=16", "learner.foreign_groups=0", "evaluation.every_rounds=0", "api.port=0",
    "checkpoint.publish_every_rounds=0", "averaging.every_rounds=0", "checkpoint.every_rounds=1000",
    "learner.learning_rate=3e-4",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Way:
    """Machines by how many times the share of one, the owner's first, and their links."""

    shares: tuple[float, ...]
    megabits: float = 1000.0
    delay_seconds: float = 0.0
    faster: str | None = None  # the bar: than one machine
    idle: str | None = None  # the bar of every machine


WAYS: Final = {
    "alone": Way((1.0,)),
    "lan": Way((1.0, 1.0, 1.0), faster="≥ 1.5"),
    "home": Way((1.0, 1.0, 1.0), 50.0, 0.02, faster="≥ .5"),
    "owner-fast": Way((1.5, 0.5), idle="≤ .2"),
    "owner-slow": Way((0.5, 1.5), idle="≤ .2"),
}


@dataclass
class Run:
    """What one way's events say. Idle shares of a round are of its learning, by machine."""

    layers: list[int] = field(default_factory=list)
    planned: dict[str, Any] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    idle: list[list[float]] = field(default_factory=list)

    @property
    def best(self) -> int:
        """The fastest round after the first."""
        return min(range(1, len(self.rounds)), key=lambda number: float(self.rounds[number]["seconds"]))


def measured(way: Way, cores: float, folder: Path, model: Path, flags: Sequence[str]) -> Run:
    run = Run()
    with ExitStack() as stack:
        peers = stack.enter_context(slow_network(len(way.shares), way.megabits, way.delay_seconds))
        shares = [
            stack.enter_context(processor_share(f"starling-{number}", share * cores))
            for number, share in enumerate(way.shares)
        ]
        places = list(zip(peers, shares, strict=True))
        home = folder / "0"
        up = ["up", "--json", "--until-input-ends", "--stages", str(len(places) - 1), *flags]
        node = stack.enter_context(_started(places[0], home, model, up, piped=True))
        roots = [node.pid]
        for number, place in enumerate(places[1:], 1):
            lend = ["lend", "--to", invitation(home, node)]
            roots.append(stack.enter_context(_started(place, folder / str(number), model, lend)).pid)
        assert node.stdout is not None
        began: list[float] | None = None
        for line in node.stdout:
            event = json.loads(line)
            match event["event"]:
                case "stages" if event["stages"]:
                    run.layers = [event["own_layers"], *(each["last"] - each["first"] for each in event["stages"])]
                    run.planned = event
                case "phase" if event["phase"] == "learn":
                    began = _used(event, roots)
                case "round":
                    run.rounds.append(event)
                    if began is None:  # told from the second round on
                        run.idle.append([])
                        continue
                    used = _used(event, roots)
                    seconds = used[0] - began[0]
                    computed = [(b - a) / seconds for a, b in zip(began[1:], used[1:], strict=True)]
                    run.idle.append([1 - each / of.cores for each, of in zip(computed, shares, strict=True)])
                    learn, idle = event["phases"]["learn"], [round(each, 3) for each in run.idle[-1]]
                    _tell(f"round {event['round']}: {learn:.2f} s to learn, idle {idle}")
    return run


def _tell(what: str) -> None:
    sys.stderr.write(f"{time.monotonic():.0f} s: {what}\n")


def _used(event: dict[str, Any], roots: Sequence[int]) -> list[float]:
    """Returns when the event was, and what processor time each machine had used by now."""
    return [float(event["time_seconds"]), *map(tree_cpu_seconds, roots)]


@contextmanager
def _started(
    place: tuple[SlowPeer, ProcessorShare], home: Path, model: Path, command: Sequence[str], *, piped: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    peer, share = place
    whole = [*STARLING, *command, "--home", str(home), "--model", str(model), "--listen", f"/ip4/{peer.address}/tcp/0"]
    home.mkdir()
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            share.command(peer.command(whole)),
            env=quiet_environment() | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE if piped else None,
            stdout=subprocess.PIPE if piped else log,
            stderr=log,
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait()


def figures_of(runs: dict[str, Run]) -> list[Figure]:
    found = []
    alone = runs["alone"].rounds[runs["alone"].best]
    for name, run in runs.items():
        best = run.rounds[run.best]
        way, phases = WAYS[name], best["phases"]
        found.append(Figure(f"{name}: a round", best["seconds"], "s", "lower"))
        for phase in ("generate", "learn"):
            found.append(Figure(f"{name}: {phase}", phases[phase], "s", "lower"))
        for number, idle in enumerate(run.idle[run.best]):
            held = f", {run.layers[number]} layers" if run.layers else ""
            found.append(Figure(f"{name}: machine {number}{held}: idle", idle, "", "lower", way.idle))
        if name == "alone":
            continue
        if way.faster is not None:
            found.append(Figure(f"{name}: rounds a second / alone", alone["seconds"] / best["seconds"], "×", "higher"))
            of_steps = alone["phases"]["learn"] / phases["learn"]
            found.append(Figure(f"{name}: steps a second / alone", of_steps, "×", "higher", way.faster))
        for phase, planned in (("generate", "generating_seconds"), ("learn", "learning_seconds")):
            off = 100 * (run.planned[planned] / phases[phase] - 1)
            found.append(Figure(f"{name}: {phase}, planned / measured", off, "%", "lower", "± 25"))
    return found


def main() -> None:
    ensure_compute_environment()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left behind
    parser = figures_parser(__doc__)
    parser.add_argument("--ways", nargs="*", choices=[name for name in WAYS if name != "alone"], default=None)
    parser.add_argument("--layers", type=int, default=12, help="of the shape's 30")
    parser.add_argument("--cores", type=float, default=0.25, help="of a core, that each of equal machines has")
    parser.add_argument("--rounds", type=int, default=4, help="of each way, two at least")
    parser.add_argument("--set", nargs="*", default=[], help="more of the configuration, as key=value")
    options = parser.parse_args()
    runs = {}
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--rounds", str(options.rounds)]
        for each in (*FLAGS, *tasks(Path(folder), ANSWER_TOKENS), *options.set):
            flags += ["--set", each]
        model = write_model(Path(folder) / "model", SHAPE, layers=options.layers, **MODEL)
        for name in ("alone", *(WAYS.keys() - {"alone"} if options.ways is None else options.ways)):
            (place := Path(folder) / name).mkdir()
            runs[name] = measured(WAYS[name], options.cores, place, model, flags)
            _tell(f"{name}: {runs[name].planned.get('because') or 'done'}")
    report(f"stages timed (load {os.getloadavg()[0]:.1f})", figures_of(runs), as_json=options.json)


if __name__ == "__main__":
    main()
