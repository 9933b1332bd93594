"""One model over machines of this computer, as users start them, against one node that holds it: memory and seconds.

    python -m scripts.bench.stages.measured [--layers 24] [--machines 3] [--gigabytes 1.5] [--kept] [--tokens 1024]
    python -m scripts.bench.stages.measured --card

``starling up --stages`` and ``starling lend`` on the loopback interface, with the shape of Qwen2.5-0.5B, random weights
in bfloat16, an adapter, and rounds of two prompts. All machines share this computer's processors, so that seconds
compare what is computed, not what machines of their own would take. The memory that each may take is told to the plan
(``machine.max_memory``); what it took is the sum of the peaks of its processes, in which shared pages count twice.

With ``--card`` all machines share this computer's GPU, by settings that a node finds itself. Its memory is what the
driver says that all of them hold at once, less what was held before.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scripts.bench.common.model_shapes import write_model
from scripts.bench.common.process_usage import process_memory
from scripts.bench.common.processes import LISTEN, STARLING, ensure_compute_environment, quiet_environment, started_node
from scripts.bench.common.reporting import Figure, figures_parser, report

SHAPE: Final = "Qwen2.5-0.5B"
ROUNDS: Final = 3
ANSWER_TOKENS: Final = 32
QUESTIONS: Final = 64
REWARD: Final = """
def vowels(prompts, completions, answer, **columns):
    return [sum(letter in "aeiou" for letter in each) / max(1, len(each)) for each in completions]
"""  # what a model with random weights earns unequally, so that there is something to learn
LOOK_SECONDS: Final = 0.2
FLAGS: Final = (
    "policy.dtype=bfloat16", "policy.adapter_rank=16", "learner.foreign_groups=0", "evaluation.every_rounds=0",
    "checkpoint.publish_every_rounds=0", "averaging.every_rounds=0", "api.port=0",
)  # fmt: skip
SMALL: Final = ("learner.own_groups=2", "engine.rows=8")


def tasks(folder: Path, answer_tokens: int) -> Iterator[str]:
    """Writes questions and what is earned by an answer into ``folder``; yields settings that train on them."""
    lines = [
        json.dumps({"prompt": f"How many vowels have {number} apples?", "answer": ""}) for number in range(QUESTIONS)
    ]
    (folder / "questions.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "reward.py").write_text(REWARD)
    yield f"tasks.jsonl={folder / 'questions.jsonl'}"
    yield f"tasks.jsonl_reward={folder / 'reward.py'}:vowels"
    yield f"tasks.jsonl_max_new_tokens={answer_tokens}"


def card_bytes() -> int:
    """Returns what is held of the GPU's memory, whoever holds it."""
    asked = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout) << 20


@dataclass
class Peaks:
    """Of each process that a machine has had, in bytes, and of the card; read while they run."""

    of: list[dict[str, int]]
    on_card: bool = False
    card: int = 0

    @contextmanager
    def watching(self, roots: list[int]) -> Iterator[None]:
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(LOOK_SECONDS):
                if self.on_card:
                    self.card = max(self.card, card_bytes())
                for peaks, root in zip(self.of, roots, strict=True):
                    for pid in processes_under(root):
                        try:
                            peaks[str(pid)] = max(peaks.get(str(pid), 0), process_memory(pid).peak)
                        except OSError:
                            continue  # it has ended

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def processes_under(root: int) -> list[int]:
    """Returns the process and all that it has started, and these."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(") ")[2].split()[1])
        except OSError:
            continue
    found = {root}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)


@dataclass(frozen=True)
class Run:
    rounds: list[dict[str, Any]]
    planned: list[int]  # bytes of each machine, the owner's first
    layers: list[int]
    peaks: list[int]  # alike; with a card one, of all machines together
    sent: int


def measured(model: Path, folder: Path, machines: int, gigabytes: float | None, settings: Sequence[str]) -> Run:
    """Runs a node, alone where ``machines`` is 1; on a card where no ``gigabytes`` are given."""
    on_card = gigabytes is None
    limit = () if on_card or machines == 1 else ("--set", f"machine.max_memory={gigabytes:g}GB")
    before = card_bytes() if on_card else 0
    flags = [
        *(part for each in (*FLAGS, *tasks(folder, ANSWER_TOKENS), *settings) for part in ("--set", each)),
        "--model",
        str(model),
        "--rounds",
        str(ROUNDS),
        *limit,
    ]
    with ExitStack() as stack:
        home = folder / f"owner-{machines}"
        node = stack.enter_context(started_node(home, *flags, "--stages", str(machines - 1)))
        stack.callback(node.terminate)
        assert node.stdout is not None
        lines = (json.loads(line) for line in node.stdout)
        others: list[subprocess.Popen[bytes]] = []
        if machines > 1:
            for number in range(machines - 1):
                command = [*STARLING, "lend", "--to", invitation(home, node), "--home", str(folder / f"other-{number}")]
                command += ["--model", str(model), "--listen", LISTEN, *limit]
                log = stack.enter_context((folder / f"other-{number}.log").open("wb"))
                other = subprocess.Popen(command, env=quiet_environment(), stdout=log, stderr=log)
                stack.callback(other.wait)
                stack.callback(other.terminate)
                others.append(other)
        peaks = Peaks([{} for _ in range(machines)], on_card)
        rounds: list[dict[str, Any]] = []
        planned, layers, sent = [0], [0], 0
        with peaks.watching([node.pid, *(each.pid for each in others)]):
            for event in lines:
                kind = event["event"]
                if kind == "planned":
                    planned = [event["device_bytes" if on_card else "host_bytes"]]
                elif kind == "round":
                    rounds.append(event)
                elif kind == "stages" and event["stages"]:
                    layers = [event["own_layers"], *(each["last"] - each["first"] for each in event["stages"])]
                    planned = [event["own_expected_bytes"], *(each["expected_bytes"] for each in event["stages"])]
                    sent = sum(each["sent_bytes"] for each in event["stages"])
    if on_card:
        return Run(rounds, [sum(planned)], layers, [peaks.card - before], sent)
    return Run(rounds, planned, layers, [sum(each.values()) for each in peaks.of], sent)


def invitation(home: Path, node: subprocess.Popen[bytes]) -> str:
    """Returns an invitation with an address, once the node has one."""
    until = time.monotonic() + 120
    while True:
        if node.poll() is not None:
            assert node.stdout is not None
            raise SystemExit(f"the node has ended: {node.stdout.read().decode()}")
        ended = subprocess.run(
            [*STARLING, "donor", "invite", "--home", str(home)], env=quiet_environment(), capture_output=True, text=True
        )
        if ended.returncode == 0 and "no address" not in ended.stderr:
            return ended.stdout.strip()
        if time.monotonic() > until:
            raise SystemExit(f"the node gives no invitation: {ended.stderr}")
        time.sleep(1.0)


def figures_of(alone: Run, together: Run, gigabytes: float | None) -> list[Figure]:
    held_on_card = enumerate(together.layers) if gigabytes is None else ()
    found = [Figure(f"together: layers of machine {number}", count, "", "lower") for number, count in held_on_card]
    for name, run in (("one node", alone), ("together", together)):
        for number, (peak, planned) in enumerate(zip(run.peaks, run.planned, strict=True)):
            held = f", machine {number}, {run.layers[number]} layers" if len(run.peaks) > 1 else ""
            bar = f"≤ {gigabytes:g}" if held else None
            found.append(Figure(f"{name}{held}: memory", peak / 1e9, "GB", "lower", bar))
            found.append(Figure(f"{name}{held}: planned / measured", 100 * (planned / peak - 1), "%", "lower", "± 10"))
    for name, run in (("one node", alone), ("together", together)):
        best = min(run.rounds[1:], key=lambda each: float(each["seconds"]))
        found.append(Figure(f"{name}: a round", best["seconds"], "s", "lower"))
        for phase in ("generate", "learn"):
            found.append(Figure(f"{name}: {phase}", best["phases"][phase], "s", "lower"))
        gaps = [each["engine_kl"] for each in run.rounds if each["engine_kl"] is not None]
        found.append(Figure(f"{name}: KL of engine and learner a token, worst", max(gaps), "nats", "lower"))
    found.append(
        Figure("together: the owner sends, a round", together.sent / len(together.rounds) / 1e6, "MB", "lower")
    )
    return found


def main() -> None:
    ensure_compute_environment()
    parser = figures_parser(__doc__)
    parser.add_argument("--layers", type=int, default=24, help="of the shape's 24")
    parser.add_argument("--machines", type=int, default=3, help="the owner's included")
    parser.add_argument("--tokens", type=int, default=1024, help="of a micro-batch, padded")
    parser.add_argument("--kept", action="store_true", help="what layers keep is held: they are not computed twice")
    parser.add_argument("--gigabytes", type=float, default=1.5, help="that each of several machines may take")
    parser.add_argument("--card", action="store_true", help="on this computer's GPU, at its usual settings")
    options = parser.parse_args()
    gigabytes = None if options.card else options.gigabytes
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / "model", SHAPE, layers=options.layers)
        passes = [f"learner.batch_tokens={options.tokens}", f"learner.recompute={'false' if options.kept else 'true'}"]
        settings = () if options.card else (*passes, *SMALL)
        alone = measured(model, Path(folder), 1, gigabytes, settings)
        together = measured(model, Path(folder), options.machines, gigabytes, settings)
    report("stages", figures_of(alone, together, gigabytes), as_json=options.json)


if __name__ == "__main__":
    main()
