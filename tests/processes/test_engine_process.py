"""The engine process for real: killed, it loses no batch; when its parent is killed, it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from node.configuration import PolicySection
from node.engines.engine import GenerationRequest, Sampling
from node.engines.process.engine_child import EngineChild
from node.engines.process.engine_setup import EngineSetup
from node.engines.process.process_engine import EngineChange, ProcessEngine
from node.engines.torch import TorchEngine
from node.learner.generation.engine_weights import EngineWeights
from node.policy.policy import Policy
from tests.hang_guard import HANG_SECONDS

pytestmark = pytest.mark.processes

SECTION = PolicySection(model="builtin:wren", device="cpu", dtype="float32", adapter_rank=0, four_bit=False)
PARENT = """
import sys, msgspec
from node.engines.process.engine_child import EngineChild
from node.engines.process.engine_setup import EngineSetup
child = EngineChild(msgspec.json.decode(sys.argv[1], type=EngineSetup))
child.connect(60.0)
print(child.pid, flush=True)
sys.stdin.read()
"""


def setup_in(folder: Path) -> EngineSetup:
    return EngineSetup(
        socket=str(folder / "engine.sock"),
        files=str(folder),
        policy=SECTION.model_dump(mode="json"),
        seed=0,
        merge_adapters=True,
        log_level="ERROR",
    )


def test_killed_in_a_batch_it_is_started_again_and_samples_the_same(tmp_path: Path) -> None:
    policy, told = Policy.load(SECTION), list[EngineChange]()
    children: list[EngineChild] = []

    def start() -> EngineChild:
        children.append(EngineChild(setup_in(tmp_path)))
        return children[-1]

    def embedded() -> TorchEngine:
        return TorchEngine(policy, rows=8, seed=0, owns_weights=True)

    engine = ProcessEngine(policy, start, embedded, rows=8, seed=0, files=tmp_path, report=told.append)
    try:
        weights = EngineWeights(engine)
        weights.load(1, policy.trainable())
        near = embedded()
        near.load_weights(1, weights.whole())
        asked = [GenerationRequest(policy.tokens.prompt_ids(f"{i}+{i}="), 4, 8) for i in range(4)]
        polls: list[int] = []

        def killing(complete: int) -> bool:  # asked before the first token, and then while it samples
            polls.append(complete)
            if len(polls) == 8:
                os.kill(children[0].pid, signal.SIGKILL)
            return False

        for seed in range(50):
            for ours, wanted in zip(
                engine.advance(asked, Sampling(seed=seed), killing),
                near.advance(asked, Sampling(seed=seed)),
                strict=True,
            ):
                for a, b in zip(ours.samples, wanted.samples, strict=True):
                    assert a.segments == b.segments
                    np.testing.assert_array_equal(a.token_ids, b.token_ids)
            if len(children) == 2:
                break
        assert [change.running for change in told] == [True, False, True]
        assert engine.measured_weights() == (1, weights.whole().target)
    finally:
        engine.close()
    assert children[1].exit_code is not None
    assert not (tmp_path / "engine.sock").exists()


def test_its_parent_is_killed_and_it_ends(tmp_path: Path) -> None:
    setup = msgspec.json.encode(setup_in(tmp_path)).decode()
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, setup], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    until = time.monotonic() + HANG_SECONDS
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        threading.Event().wait(0.05)
    assert not Path(f"/proc/{pid}").exists()
