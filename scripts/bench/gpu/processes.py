"""Each section in a process of its own: an illegal access spoils a CUDA context, and memory is given back whole."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from scripts import REPOSITORY
from scripts.bench.gpu.bench import Scale
from scripts.bench.gpu.results import SectionResult, read_lines

OUTPUT_KEPT: Final = 4000  # characters of what a failed process printed last


def run_apart(name: str, scale: Scale, seconds: float) -> tuple[SectionResult, dict[str, Any]]:
    """Runs section ``name`` for at most ``seconds``. Returns its result and the facts of the device."""
    with tempfile.TemporaryDirectory() as folder:
        told, printed = Path(folder) / "told", Path(folder) / "printed"
        told.touch()
        command = [sys.executable, "-m", "scripts.bench.gpu", "--child", name, "--scale", scale, "--into", str(told)]
        began, late = time.monotonic(), False
        environment = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **os.environ}
        with printed.open("wb") as output:
            process = subprocess.Popen(command, cwd=REPOSITORY, stdout=output, stderr=output, env=environment)
            try:
                process.wait(timeout=max(1.0, seconds))
            except subprocess.TimeoutExpired:
                late = True
            finally:
                process.kill()
                code = process.wait()
        result, end = read_lines(told)
        result.seconds = time.monotonic() - began
        if end is not None:
            result.status, result.because = end["status"], end["because"]
        else:
            result.status = "over budget" if late else "failed"
            last_words = printed.read_text(errors="replace")[-OUTPUT_KEPT:]
            reason = f"stopped after {seconds:.0f} s" if late else f"its process ended with code {code}"
            result.because = f"{reason}; it printed last:\n{last_words}"
        return result, end["device"] if end else {}
