"""Measurements of the demonstration: ``starling eval`` of each model, all at once, with their progress."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from node.demo import member
from node.demo.forecast import Measuring
from node.demo.member import DemoError
from node.evaluation.evaluation_result import PROGRESS, Evaluation
from node.printable import printable
from node.process_pipes import close_pipes

ERROR_CHARACTERS = 1000


async def measure_policies(
    places: Sequence[tuple[Path, str]],
    prompts: int,
    environment: dict[str, str],
    show: Callable[[Sequence[Measuring]], None],
) -> list[Evaluation]:
    """Evaluates each model at once, the newest checkpoint in its data directory, or the model where there is none.
    Calls ``show`` with those that are loaded, whenever one of them came further; all have once all are loaded."""
    so_far: dict[int, Measuring] = {}

    def progress(index: int, measuring: Measuring) -> None:
        so_far[index] = measuring
        show([so_far[each] for each in sorted(so_far)])

    return await asyncio.gather(
        *(measure_policy(*place, prompts, environment, partial(progress, index)) for index, place in enumerate(places))
    )


async def measure_policy(
    home: Path,
    model: str,
    prompts: int,
    environment: dict[str, str],
    on_progress: Callable[[Measuring], None],
) -> Evaluation:
    """Evaluates the newest checkpoint in ``home``, or ``model`` where there is none, with ``starling eval``. Raises
    ``DemoError`` where that fails. When cancelled, it kills the evaluation and all its processes."""
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *member.STARLING, "eval", "--home", str(home), "--model", model, "--prompts", str(prompts), "--json",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env=environment, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    errors, loaded_seconds = "", 0.0

    async def read_progress(stream: asyncio.StreamReader) -> None:
        nonlocal errors, loaded_seconds
        async for line in stream:
            text = line.decode(errors="replace")
            if found := re.fullmatch(PROGRESS, text.strip()):
                answers, in_all = int(found[1]), int(found[2])
                seconds = time.monotonic() - began
                loaded_seconds = loaded_seconds if answers else seconds
                on_progress(Measuring(model, answers, in_all, loaded_seconds, seconds))
            else:
                errors = (errors + text)[-ERROR_CHARACTERS:]

    try:
        output, _ = await asyncio.gather(process.stdout.read(), read_progress(process.stderr))
        await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        close_pipes(process)
        await process.wait()
    if process.returncode != 0:
        raise DemoError(f"starling eval of {model} failed: {printable(errors, ERROR_CHARACTERS)}")
    return msgspec.json.decode(output, type=Evaluation)
