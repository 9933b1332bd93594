"""vLLM behind the engine protocol, as a node has it, against ``LLM.generate`` of the same vLLM.

Both have the same model folder, prompts, limits, sampling, cache and number of threads, in the precision that a node on
a processor uses. Behind the protocol requests go through the process's socket, every completion is a request of its
own, log-probabilities are those of the distribution that was sampled from, and every answer is checked.

Where other programs use the cores too, the processor time of a round says more: that of all processes of a side, ours
with the learner's end of the socket.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from node.compute_environment import THREAD_VARIABLES
from node.engines.vllm_backend.environment import environment_at
from scripts.bench.common.generation_turns import GenerateOnce, engine_round, measure, vllm_round
from scripts.bench.common.model_shapes import write_model
from scripts.bench.common.processor_time import cpu_seconds, processes_of_group
from scripts.bench.common.reporting import Figure
from scripts.bench.common.vllm_node import node_on_vllm, workload_in
from scripts.bench.contenders.vllm_contender import vllm_worker

NAME: Final = "protocol"
BAR: Final = "≥ 0.9"


def measure_protocol(folder: Path, shape: str, layers: int | None, threads: int, rounds: int) -> list[Figure]:
    """Returns tokens a second of both, and their ratio. Raises ``SystemExit`` where another engine took over, and where
    the environment has another number of threads."""
    names = ", ".join(THREAD_VARIABLES)
    if any(os.environ.get(name, str(threads)) != str(threads) for name in THREAD_VARIABLES):
        raise SystemExit(f"--threads {threads}, and the environment says otherwise: unset {names}")
    work = workload_in(write_model(folder / shape, shape, layers=layers), NAME)
    with (
        vllm_worker(environment_at(os.environ).folder, work.job(threads), folder) as theirs,
        node_on_vllm(work.folder, threads, folder / "home") as ours,
    ):
        own_processes = [os.getpid(), ours.process]
        behind = Timed(engine_round(work, ours.engine), lambda: own_processes)
        alone = Timed(vllm_round(work, theirs), lambda: processes_of_group(theirs.process.pid))
        speeds = measure({"behind the protocol": behind, "vllm": alone}, rounds, busy=0)
    spent = {"behind the protocol": behind.seconds_a_round, "vllm": alone.seconds_a_round}
    ratio = speeds["behind the protocol"] / speeds["vllm"]
    of_time = spent["vllm"] / spent["behind the protocol"]
    return [
        *(Figure(f"{NAME}, {shape}: {name}", speed, "tokens/s", "higher") for name, speed in speeds.items()),
        Figure(f"{NAME}, {shape}: behind the protocol / vllm", ratio, "×", "higher", BAR),
        *(Figure(f"{NAME}, {shape}: {name}, CPU", each, "s a round", "lower") for name, each in spent.items()),
        Figure(f"{NAME}, {shape}: vllm / behind the protocol, CPU", of_time, "×", "higher"),
    ]


class Timed:
    """A contender, and the processor time of its processes."""

    def __init__(self, generate: GenerateOnce, processes: Callable[[], Iterable[int]]) -> None:
        self._generate, self._processes = generate, processes
        self._seconds: list[float] = []

    def __call__(self) -> float:
        before = sum(map(cpu_seconds, self._processes()))
        speed = self._generate()
        self._seconds.append(sum(map(cpu_seconds, self._processes())) - before)
        return speed

    @property
    def seconds_a_round(self) -> float:
        """The median over all rounds but the first, which nothing counts."""
        return statistics.median(self._seconds[1:])
