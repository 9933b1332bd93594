"""Runs the missing plans, each in its own process with one thread, ``jobs`` at a time, and keeps finished results.

An interrupted experiment loses only the runs in progress: each finished one is a file, and the same command continues
with the missing ones. A run whose parent has died ends by itself.
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

from scripts.experiments.harness.plans import ExperimentPlan, ExperimentResult, load_result, save_result

PRELOADED: Final = (  # imported once for all runs: the import takes longer than a short run
    "node.evaluation.evaluation",
    "node.learner.loop",
    "swarm.service",
    "trio.testing",
    "transformers.models.gpt_neox.modeling_gpt_neox",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen3.modeling_qwen3",
)


AnyPlan = ExperimentPlan[ExperimentResult]


class RunFailedError(Exception):
    """A run ended without a result; standard error has its message."""


def missing(plans: Sequence[AnyPlan], folder: Path) -> list[AnyPlan]:
    return [plan for plan in plans if load_result(folder, plan) is None]


def run_all(plans: Sequence[AnyPlan], folder: Path, models: Path, *, jobs: int) -> None:
    """Runs those of ``plans`` that have no result yet, and ends its processes whatever happens.

    Raises ``RunFailedError``.
    """
    waiting = deque(missing(plans, folder))
    progress = _Progress(total=len(plans), done=len(plans) - len(waiting), jobs=jobs)
    progress.print_line("to run" if waiting else "all runs are finished")
    os.environ["OMP_NUM_THREADS"] = "1"  # one thread per run, and none that a fork would lose
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    running: dict[BaseProcess, AnyPlan] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                plan = waiting.popleft()
                process: BaseProcess = context.Process(target=_run, args=(plan, folder, models), daemon=True)
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


def _finish(process: BaseProcess, plan: AnyPlan, folder: Path, progress: _Progress) -> None:
    process.join()
    result = load_result(folder, plan)
    if process.exitcode != 0 or result is None:
        raise RunFailedError(f"{plan.condition}, seed {plan.seed}: exit status {process.exitcode}, no result")
    progress.finished(f"{plan.condition}, seed {plan.seed}: {result.cpu_seconds:.0f} s of processor", result.seconds)


def _run(plan: AnyPlan, folder: Path, models: Path) -> None:
    """Runs one plan in its own process. Ignores Ctrl-C: the parent receives it and ends its children."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    execute = importlib.import_module(plan.harness).execute  # here: the parent does not need torch
    parent = multiprocessing.parent_process()
    save_result(folder, plan, execute(plan, models, lambda: parent is not None and not parent.is_alive()))


class _Progress:
    """Prints on standard error how many runs are finished, and how long the rest will take."""

    def __init__(self, *, total: int, done: int, jobs: int) -> None:
        self._total, self._done, self._jobs = total, done, jobs
        self._seconds: list[float] = []
        self._began = time.monotonic()

    def finished(self, what: str, seconds: float) -> None:
        self._done += 1
        self._seconds.append(seconds)
        self.print_line(what)

    def print_line(self, what: str) -> None:
        left = self._total - self._done
        eta = ""
        if self._seconds and left:
            elapsed = time.monotonic() - self._began
            eta = f", about {elapsed / len(self._seconds) * left / 60:.1f} min left"
        print(f"[{self._done}/{self._total}] {what}{eta}", file=sys.stderr, flush=True)
