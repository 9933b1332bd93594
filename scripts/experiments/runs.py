"""Runs what is missing, a process with one thread for each run, so many side by side; keeps what is finished.

Interrupted, by Ctrl-C or otherwise, an experiment loses the runs in progress and nothing else: each finished one is a
file, and the same command goes on with those that are missing. A run whose parent has died ends by itself.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from plans import Plan, load_result, save_result

PRELOADED: Final = (  # imported once for all runs: it takes longer than a short run
    "node.evaluation.evaluation",
    "node.learner.loop",
    "swarm.service",
    "trio.testing",
    "transformers.models.gpt_neox.modeling_gpt_neox",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen3.modeling_qwen3",
)


class RunFailedError(Exception):
    """A run ended without a result; its message stands above, on standard error."""


def missing(plans: Sequence[Plan], folder: Path) -> list[Plan]:
    return [plan for plan in plans if load_result(folder, plan) is None]


def run_all(plans: Sequence[Plan], folder: Path, models: Path, *, jobs: int) -> None:
    """Runs those of ``plans`` that have no result yet, and ends its processes whatever happens.

    Raises ``RunFailedError``.
    """
    waiting = deque(missing(plans, folder))
    progress = _Progress(total=len(plans), done=len(plans) - len(waiting), jobs=jobs)
    progress.tell("to run" if waiting else "all there already")
    os.environ["OMP_NUM_THREADS"] = "1"  # one thread a run, and none that a fork would lose
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    running: dict[BaseProcess, Plan] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                plan = waiting.popleft()
                process = context.Process(target=_run, args=(plan, folder, models), daemon=True)
                process.start()
                running[process] = plan
            wait([process.sentinel for process in running])
            for process in [process for process in running if not process.is_alive()]:
                _finish(process, running.pop(process), folder, progress)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.join()


def _finish(process: BaseProcess, plan: Plan, folder: Path, progress: _Progress) -> None:
    process.join()
    result = load_result(folder, plan)
    if process.exitcode != 0 or result is None:
        raise RunFailedError(f"{plan.condition}, seed {plan.seed}: exit status {process.exitcode}, no result")
    progress.finished(f"{plan.condition}, seed {plan.seed}: {result.cpu_seconds:.0f} s of processor", result.seconds)


def _run(plan: Plan, folder: Path, models: Path) -> None:
    """In a process of its own. Ctrl-C is for the parent, which ends its children."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    execute = importlib.import_module(plan.harness).execute  # here: the parent has no use for torch
    parent = multiprocessing.parent_process()
    save_result(folder, plan, execute(plan, models, lambda: parent is not None and not parent.is_alive()))


class _Progress:
    """Lines on standard error: how many runs are done, and how long the rest will take."""

    def __init__(self, *, total: int, done: int, jobs: int) -> None:
        self._total, self._done, self._jobs = total, done, jobs
        self._seconds: list[float] = []
        self._began = time.monotonic()

    def finished(self, what: str, seconds: float) -> None:
        self._done += 1
        self._seconds.append(seconds)
        self.tell(what)

    def tell(self, what: str) -> None:
        left = self._total - self._done
        eta = ""
        if self._seconds and left:
            elapsed = time.monotonic() - self._began
            eta = f", about {elapsed / len(self._seconds) * left / 60:.1f} min left"
        print(f"[{self._done}/{self._total}] {what}{eta}", file=sys.stderr, flush=True)
