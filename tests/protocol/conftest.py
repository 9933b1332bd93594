"""What the tests of the protocol share. Hypothesis runs from fixed seeds and keeps nothing on disk."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from protocol.identity import NodeKey
from protocol.messages import PromptRef
from protocol.rollouts import Completion, FinishReason, Group

settings.register_profile(
    "starling", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("starling")


@pytest.fixture(scope="session")
def key() -> NodeKey:
    return NodeKey(bytes(range(32)))


@pytest.fixture(scope="session")
def make_completion() -> Callable[..., Completion]:
    """A completion of six tokens, the last one end-of-sequence; keywords replace single fields."""

    def make(**changes: object) -> Completion:
        fields: dict[str, object] = {
            "text": b"So 42.",
            "token_ids": np.array([70_000, 12, 4, 5, 300, 0], dtype=np.int64),
            "token_bytes": np.array([2, 1, 1, 1, 1, 0], dtype=np.int64),
            "logps": np.array([-0.1, -2.0, -0.5, -11.0, -0.001, 0.0], dtype=np.float32),
            "finish": FinishReason.STOP,
            "reward": 1.0,
        }
        return Completion(**(fields | changes))  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def make_group(make_completion: Callable[..., Completion]) -> Callable[..., Group]:
    """A group of the given completions, or of two that differ."""

    def make(*completions: Completion) -> Group:
        several = completions or (make_completion(), make_completion(reward=0.0))
        return Group(PromptRef("chain_sum", 1, b"c" * 16, 42), b"f" * 16, b"t" * 16, 7, several)

    return make


@pytest.fixture(scope="session")
def make_vectors() -> ModuleType:
    """scripts/make_vectors.py as a module."""
    path = Path(__file__).resolve().parents[2] / "scripts" / "make_vectors.py"
    spec = importlib.util.spec_from_file_location("make_vectors", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
