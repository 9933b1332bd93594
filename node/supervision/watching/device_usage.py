"""Memory, use and power of the GPU that the learner uses, as NVIDIA's driver reports them through ``nvidia-smi``.

It runs as a process of its own under a time limit, so that a driver that hangs holds nothing up. Where there is no such
program, or none that answers, there are no figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Mapping

from node.events import DeviceUsage
from node.printable import printable
from node.process_pipes import close_pipes

FIELDS = ("name", "memory.used", "memory.total", "utilization.gpu", "power.draw", "power.limit")
ANSWER_SECONDS = 5.0
END_SECONDS = 1.0  # for a killed program to be gone
MAX_OUTPUT_BYTES = 1 << 14
MIB = 1 << 20
WATTS_MOST = 100_000.0


def visible_gpu(device: str, environment: Mapping[str, str]) -> str | None:
    """Returns which GPU ``nvidia-smi --id`` has to name for torch's ``device``; None where that is no NVIDIA GPU.

    CUDA counts the GPUs that ``CUDA_VISIBLE_DEVICES`` names, in that order. Where the machine's GPUs differ and
    ``CUDA_DEVICE_ORDER`` is not PCI_BUS_ID, CUDA may count them in another order than the driver.
    """
    kind, _, number = device.partition(":")
    if kind != "cuda" or (number and not number.isdecimal()):
        return None
    index = int(number or 0)
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return str(index)
    named = [each.strip() for each in visible.split(",") if each.strip()]
    return named[index] if index < len(named) else None


def usage_from(line: str) -> DeviceUsage | None:
    """Returns the figures of one line of ``nvidia-smi``; None for a line that is none of ours. A figure that the driver
    does not report ("[N/A]", "[Not Supported]") is None."""
    parts = [part.strip() for part in line.rsplit(",", len(FIELDS) - 1)]
    if len(parts) != len(FIELDS) or not parts[0]:
        return None
    used, total, share, power, limit = map(_number, parts[1:])
    return DeviceUsage(
        name=printable(parts[0], 64),
        memory_used_bytes=None if used is None else round(used * MIB),
        memory_total_bytes=None if total is None else round(total * MIB),
        utilization_share=None if share is None else min(share / 100.0, 1.0),
        power_watts=None if power is None or power > WATTS_MOST else power,
        power_limit_watts=None if limit is None or limit > WATTS_MOST else limit,
    )


async def device_usage(device: str, *, program: str = "nvidia-smi") -> DeviceUsage | None:
    """Asks for the GPU behind torch's ``device`` once; never longer than ``ANSWER_SECONDS``. None without figures."""
    gpu = visible_gpu(device, os.environ)
    path = shutil.which(program)
    if gpu is None or path is None:
        return None
    try:
        process = await asyncio.create_subprocess_exec(
            path,
            f"--id={gpu}",
            f"--query-gpu={','.join(FIELDS)}",
            "--format=csv,noheader,nounits",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            output = await process.stdout.read(MAX_OUTPUT_BYTES)
    except TimeoutError:
        return None
    finally:
        await _end(process)
    return usage_from(output.decode("utf-8", "replace").partition("\n")[0])


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends the program. One that the driver holds is not waited for: asyncio's child watcher takes its end later."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    close_pipes(process)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), END_SECONDS)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value < float("inf") else None
