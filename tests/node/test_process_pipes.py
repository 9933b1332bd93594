"""Processes whose pipes a descendant holds open are left without a trace once their caller has no use for them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from node.demo import member
from node.demo.measuring import measure_policy
from node.demo.member import DemoNode, MemberPlan
from node.supervision.children import Child, ChildSpec
from node.supervision.rolling_log import RollingLog
from node.supervision.watching import device_usage as device
from tests.hang_guard import HANG_SECONDS

# A process that leaves another one in a session of its own, which holds its pipes.
LEAVES_ONE = "setsid sh -c 'echo $$ >> {}; exec sleep 1000' & exec sleep 1000"


async def measured(folder: Path, command: str) -> None:
    await measure_policy(folder, "builtin:wren", 1, {}, lambda measuring: None)


async def demonstrated(folder: Path, command: str) -> None:
    await DemoNode(MemberPlan("builtin:wren", folder, {}, "wren")).run()


async def asked_the_gpu(folder: Path, command: str) -> None:
    program = folder / "gpu-figures"
    program.write_text(f"#!/bin/sh\n{command}\n")
    program.chmod(0o755)
    await device.device_usage("cuda:0", program=str(program))


async def kept(folder: Path, command: str) -> None:
    spec = ChildSpec("learner", ("sh", "-c", command), b"{}", None)
    await Child(spec, RollingLog(folder / "log", max_bytes=1 << 20), lambda line: True).live()


@pytest.mark.parametrize("start", [measured, demonstrated, asked_the_gpu, kept])
def test_pipes_of_a_process_that_was_ended_are_closed_before_the_loop_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[[Path, str], Awaitable[None]]
) -> None:
    left = tmp_path / "left"
    command = LEAVES_ONE.format(left)
    monkeypatch.setattr(member, "STARLING", ("sh", "-c", command))
    monkeypatch.setattr(member, "KILL_AFTER_SECONDS", 0.05)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("node.supervision.children.DRAIN_SECONDS", 0.05)
    monkeypatch.setattr(device, "END_SECONDS", 0.05)
    unraised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraised.append)

    async def interrupted() -> None:
        running = asyncio.ensure_future(start(tmp_path, command))
        while not left.exists() or not left.read_text().strip():
            assert not running.done(), running.exception()
            await asyncio.sleep(0.01)
        for _ in range(20):  # steps of the loop, until asyncio has connected the pipes of the process that it started
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait({running}, timeout=HANG_SECONDS)
        assert running.done(), "it waits for the descendant"

    try:
        asyncio.run(interrupted())
        gc.collect()
        assert [each.exc_value for each in unraised] == []
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(left.read_text()), signal.SIGKILL)
