"""vLLM for the CPU as a contender: a virtual environment, and a worker process there that generates on request."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from node.compute_environment import THREAD_VARIABLES, without_compute_settings
from node.engines.vllm_backend.environment import BUILDS, VllmEnvironment, install
from scripts import REPOSITORY

SETTINGS: Final = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
START_SECONDS: Final = 1200.0  # it compiles for the model first
GENERATION_SECONDS: Final = 300.0
MAX_END_SECONDS: Final = 30.0


@dataclass(frozen=True)
class VllmWorker:
    """A worker whose model is loaded and compiled."""

    process: subprocess.Popen[str]  # it leads a group of processes of its own
    results: Path

    def generate(self) -> tuple[float, list[list[int]]]:
        """Generates the job once. Returns the seconds and the tokens of each completion."""
        done = len(self.results.read_text().splitlines())
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        result = json.loads(_line(self.process, self.results, done, GENERATION_SECONDS))
        return float(result["seconds"]), list(result["tokens"])


@contextmanager
def vllm_worker(environment: Path, job: dict[str, Any], folder: Path) -> Iterator[VllmWorker]:
    """Yields a worker for ``job``.

    vLLM binds its threads to the first cores that this process may use, as many as the job says: left alone it keeps a
    core free. Raises ``RuntimeError`` when the worker ends or reports nothing in time.
    """
    python = prepared(environment)
    results, log = (folder / f"vllm-{job['name']}.{end}" for end in ("results", "log"))
    job_file = folder / f"vllm-{job['name']}.json"
    job_file.write_text(json.dumps(job | {"results": str(results)}))
    results.touch()
    # vLLM counts its threads itself: settings for ours must not reach it.
    cores = map(str, sorted(os.sched_getaffinity(0))[: job["threads"]])
    variables = without_compute_settings(os.environ)
    inherited = {name: value for name, value in variables.items() if name not in THREAD_VARIABLES}
    with log.open("w") as output:  # a file: vLLM stalls on a pipe
        process = subprocess.Popen(
            [str(python), "-m", "scripts.bench.contenders.engine_vllm", str(job_file)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=inherited | SETTINGS | {"VLLM_CPU_OMP_THREADS_BIND": ",".join(cores)},
            text=True,
            process_group=0,  # not a new session: schedulers give each session its own share
        )
    try:
        _line(process, results, 0, START_SECONDS)
        yield VllmWorker(process, results)
    except RuntimeError:
        sys.stderr.write(log.read_text()[-4000:])
        raise
    finally:
        _end(process)


def prepared(environment: Path) -> Path:
    """Returns the Python of vLLM's environment; makes the environment the first time (3.5 GB)."""
    vllm = VllmEnvironment(environment)
    if vllm.installed() is None:
        install(vllm, BUILDS["cpu"], lambda line: print(line, file=sys.stderr))
    return vllm.python


def _line(process: subprocess.Popen[str], results: Path, done: int, seconds: float) -> str:
    """Returns the line after ``done`` lines of the worker's results, once it is complete."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        text = results.read_text()
        lines = text.splitlines()
        if len(lines) > done and text.endswith("\n"):
            return lines[done]
        if process.poll() is not None:
            raise RuntimeError(f"the vLLM worker ended with code {process.returncode}")
        time.sleep(0.05)
    raise RuntimeError(f"the vLLM worker wrote nothing for {seconds:.0f} s")


def _end(process: subprocess.Popen[str]) -> None:
    """Ends the worker and the processes that it started: those survive when the worker alone is killed."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=MAX_END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
