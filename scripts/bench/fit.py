"""Predicted against measured peak memory of a learner's phases, for models of real shape with random weights.

  --layers N   the first N layers of each shape alone: quick, and the formulas are the same
  --round      rounds of Qwen2.5-0.5B's shape by a node under a limit of main memory, trained whole within 8 GB and
               as LoRA within 5 GB: the plan must say that it fits, and every process must stay below; two rounds, since
               the first optimizer step makes the moments, and rewards alternate, since random weights earn none
  --vllm       the process of vLLM, where it is the engine (``starling engine install vllm --build cpu``)

Each case runs in a process of its own, which loads, generates, learns twice (with the optimizer's moments the second
time) and saves, by the classes that a learner uses; the kernel's high-water mark is set back between the phases. The
limit of ``--round`` is RLIMIT_DATA, which the learner and all other processes of the node inherit and which the plan
reads: an allocation above it fails.

    python -m scripts.bench.fit [--shape NAME] [--layers N] [--batch-tokens N] [--optimizer KIND] [--json]
    python -m scripts.bench.fit --round [whole] [LoRA] [--layers N] [--json]
    python -m scripts.bench.fit --vllm [--shape NAME] [--layers N] [--threads N] [--json]
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import msgspec

from node.compute_environment import compute_environment
from node.configuration import OptimizerName
from node.fit.footprint import OTHER_PROCESSES_BYTES, Footprint, footprint_of
from node.fit.model_sizes import ModelSizes, known_sizes
from node.fit.settings import MemorySettings
from node.fit.workload import Workload
from scripts import REPOSITORY
from scripts.bench.common.model_shapes import write_model
from scripts.bench.common.processes import ensure_compute_environment
from scripts.bench.common.published_shapes import SHAPES
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.common.round_memory import RoundSize
from scripts.bench.common.vllm_node import ROWS, vllm_figures

ADAPTER_RANK: Final = 16
ROUND_SHAPE: Final = "Qwen2.5-0.5B"
ROUND_LIMITS: Final = {"whole": (0, 8_000_000_000), "LoRA": (ADAPTER_RANK, 5_000_000_000)}
ROUNDS: Final = 2
ROUND_GROUPS: Final = 4
PROMPT_BYTES: Final = 64  # as many tokens for the tokenizer of these shapes, and for the plan's estimate
ANSWER_TOKENS: Final = 32
REWARD: Final = """from itertools import cycle

ALTERNATING = cycle((0.0, 1.0))


def alternating(prompts, completions, **columns):
    return [next(ALTERNATING) for _ in completions]
"""
PHASES: Final = ("generating", "learning", "stepping")
BAR: Final = "within 10 %"


def settings_for(rank: int, batch_tokens: int, optimizer: OptimizerName = "adamw") -> MemorySettings:
    return MemorySettings(
        dtype="float32",
        adapter_rank=rank,
        four_bit=False,
        rows=16,
        batch_tokens=batch_tokens,
        recompute=False,
        chunk_tokens=None,
        optimizer=optimizer,
        merge_adapters=True,
        store_bytes=1 << 31,
        save_beside=False,
        averages=False,
    )


def measured(folder: Path, settings: MemorySettings, size: RoundSize) -> dict[str, Any]:
    asked = {
        "model": str(folder),
        "settings": msgspec.to_builtins(settings),
        "size": msgspec.to_builtins(size),
    }
    command = [sys.executable, "-m", "scripts.bench.common.round_memory", json.dumps(asked)]
    result = subprocess.run(command, check=True, capture_output=True, text=True, cwd=REPOSITORY)
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def predicted(sizes: ModelSizes, settings: MemorySettings, size: RoundSize) -> Footprint:
    workload = Workload(
        prompt_tokens=size.prompt_tokens,
        answer_tokens=size.answer_tokens,
        own_groups=size.groups,
        foreign_groups=0,
        completions=size.completions,
        averages=False,
        publishes=False,
    )
    return footprint_of(sizes, settings, workload)


def figures_of(shape: str, folder: Path, settings: MemorySettings, size: RoundSize) -> list[Figure]:
    """Returns the peaks of the second of two equal rounds, measured and predicted, and how far apart they are."""
    sizes = known_sizes(folder)
    assert sizes is not None
    name = f"{shape} {'LoRA' if settings.adapter_rank else 'whole'}"
    found = measured(folder, settings, size)
    footprint = predicted(sizes, settings, size)
    # One process was measured; the formulas are of a whole node.
    expected = max(footprint.phase(phase).bytes("host") for phase in PHASES) - OTHER_PROCESSES_BYTES
    peak = max(found[phase]["bytes"] for phase in ("generating", "learning", "learning again"))
    disk = found["saving"]["disk_bytes"]
    return [
        Figure(f"{name}: measured", peak / 1e9, "GB", "lower"),
        Figure(f"{name}: predicted", expected / 1e9, "GB", "lower"),
        Figure(f"{name}: predicted / measured - 1", 100 * (expected / peak - 1), "%", "lower", BAR),
        Figure(
            f"{name}: checkpoint predicted / written - 1", 100 * (footprint.checkpoint_bytes / disk - 1), "%", "lower"
        ),
    ]


def installed_reward(site: Path) -> None:
    """Writes a package with the reward ``alternating`` into ``site``, as an installer leaves it."""
    metadata = site / "bench_reward-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "bench_reward.py").write_text(REWARD)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: bench_reward\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[starling.rewards]\nalternating = bench_reward:alternating\n")


def run_rounds(folder: Path, home: Path, rank: int, limit_bytes: int) -> tuple[list[dict[str, Any]], int]:
    """Runs a node for ``ROUNDS`` rounds under a limit; returns its events, and the peak of its largest process."""
    installed_reward(home / "site")
    data = home / "prompts.jsonl"
    prompts = (f"{index:0{PROMPT_BYTES}d}" for index in range(100))
    data.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    keys = {
        "policy.model": folder,
        "policy.adapter_rank": rank,
        "tasks.jsonl": data,
        "tasks.jsonl_reward": "alternating",
        "tasks.jsonl_max_new_tokens": ANSWER_TOKENS,
        "learner.own_groups": ROUND_GROUPS,
        "learner.foreign_groups": 0,
        "swarm.lan_discovery": "false",
        "swarm.listen": "/ip4/127.0.0.1/tcp/0",
        "api.port": 0,
    }
    sets = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
    start = ["up", "--home", str(home / "node"), "--rounds", str(ROUNDS), "--json", *sets]
    process = subprocess.Popen(
        [sys.executable, "-m", "node.cli.main", *start],
        cwd=REPOSITORY,
        env=compute_environment({**os.environ, "PYTHONPATH": os.pathsep.join([str(home / "site"), str(REPOSITORY)])}),
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes)),
    )
    assert process.stdout is not None
    events = [json.loads(line) for line in process.stdout.read().splitlines()]
    _, status, usage = os.wait4(process.pid, 0)  # of the command and of every process that it has waited for
    if status != 0:
        raise SystemExit(f"the node ended with {status} within {limit_bytes:,} bytes: {events[-3:]}")
    return events, usage.ru_maxrss * 1024


def round_figures(folder: Path, name: str, rank: int, limit_bytes: int) -> list[Figure]:
    """Runs rounds of a node under a limit. Raises ``SystemExit`` if the plan or a round fails, or learns nothing."""
    with tempfile.TemporaryDirectory() as home:
        events, peak_bytes = run_rounds(folder, Path(home), rank, limit_bytes)
    [plan] = [event for event in events if event.get("event") == "planned"]
    rounds = [event for event in events if event.get("event") == "round"]
    if len(rounds) != ROUNDS or not all(each["own_groups_informative"] == ROUND_GROUPS for each in rounds):
        raise SystemExit(f"{name}: not every group of {ROUNDS} rounds was learnt from: {rounds}")
    planned_bytes = plan["host_bytes"] - OTHER_PROCESSES_BYTES
    return [
        Figure(f"round, {name}: planned for its learner", planned_bytes / 1e9, "GB", "lower"),
        Figure(f"round, {name}: largest process", peak_bytes / 1e9, "GB", "lower", f"≤ {limit_bytes / 1e9:g}"),
        Figure(f"round, {name}: planned / measured - 1", 100 * (planned_bytes / peak_bytes - 1), "%", "lower", BAR),
        Figure(f"round, {name}", rounds[-1]["seconds"], "s", "lower"),
    ]


def main() -> None:
    ensure_compute_environment()
    parser = figures_parser(__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), action="append", help="only this one; repeatable")
    parser.add_argument("--layers", type=int, help="use so many layers of each shape")
    parser.add_argument("--batch-tokens", type=int, default=512)
    parser.add_argument("--optimizer", choices=["adamw", "adamw8bit"], default="adamw")
    parser.add_argument(
        "--round", nargs="*", choices=list(ROUND_LIMITS), help="rounds of a node under a limit of memory; default: both"
    )
    parser.add_argument("--vllm", action="store_true", help="the process of vLLM alone")
    parser.add_argument("--threads", type=int, default=1, help="of vLLM")
    arguments = parser.parse_args()
    size = RoundSize(prompt_tokens=64, answer_tokens=64, groups=4, completions=4)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as directory:
        if arguments.round is not None:
            folder = write_model(Path(directory) / ROUND_SHAPE, ROUND_SHAPE, layers=arguments.layers)
            for name in arguments.round or ROUND_LIMITS:
                figures += round_figures(folder, name, *ROUND_LIMITS[name])
        else:
            for shape in arguments.shape or SHAPES:
                folder = write_model(Path(directory) / shape, shape, layers=arguments.layers)
                if arguments.vllm:
                    whole = msgspec.structs.replace(settings_for(0, arguments.batch_tokens), rows=ROWS)
                    figures += vllm_figures(folder, whole, arguments.threads, Path(directory) / f"{shape}.home")
                    continue
                for rank in (0, ADAPTER_RANK):
                    figures += figures_of(
                        shape, folder, settings_for(rank, arguments.batch_tokens, arguments.optimizer), size
                    )
    report("fit", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
