"""The table of engines."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from node.configuration import BackendName, Config, EngineSection
from node.engines.backend_choice import WHERE, BackendChoice
from node.engines.backends import BACKENDS, EngineParts, _process_engine, engine_of, make_empty
from node.engines.donors.donated_engine import DonatedEngine
from node.engines.process.process_engine import ProcessEngine
from node.engines.torch import TorchEngine
from node.events import EngineChanged, Event
from node.home import Home
from node.learner.generation.engine_weights import EngineWeights
from node.policy.policy import Policy
from swarm.donors.donor_list import change_donors, invite
from tests.node.engines.process.hosted import QUICK, HostedHere


def test_every_configurable_backend_has_a_row_and_a_place() -> None:
    assert set(BACKENDS) == set(WHERE) == set(get_args(BackendName))
    with pytest.raises(ValidationError, match=r"'torch', 'process' or 'vllm'"):
        EngineSection.model_validate({"backend": "steam"})


@pytest.mark.parametrize("owns_weights", [False, True])
def test_the_embedded_engine_is_made_as_it_was_and_said_to_be_the_one(
    load_policy: Callable[..., Policy], tmp_path: Path, owns_weights: bool
) -> None:
    told: list[Event] = []
    parts = EngineParts(Home(tmp_path), Config(), load_policy("qwen3"), 8, True, owns_weights, told.append, lambda: 5.0)
    with ExitStack() as stack:
        engine = engine_of(parts, stack)
    assert isinstance(engine, DonatedEngine) and isinstance(engine.own, TorchEngine)
    assert (engine.rows, engine.owns_weights) == (8, owns_weights)
    (event,) = told
    assert isinstance(event, EngineChanged) and event.is_as_configured and event.backend == "torch"


def test_what_a_killed_learner_left_for_its_engine_is_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    folder.mkdir()
    (folder / "weights").write_bytes(b"whole")
    make_empty(folder)
    assert not list(folder.iterdir()) and folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("behind", "named"), [(False, True), (True, True), (True, False)])
def test_donors_that_cannot_help_an_engine_elsewhere_are_told(
    load_policy: Callable[..., Policy], tmp_path: Path, behind: bool, named: bool
) -> None:
    home, policy, told = Home(tmp_path), load_policy("qwen3").separate(), list[Event]()
    if named:
        change_donors(home.donors, lambda donors: invite(donors, bytes(32), "attic", now_seconds=0, until_seconds=9e9))
    config = Config.model_validate({"learner": {"max_staleness": int(behind)}, "engine": {"backend": "process"}})
    parts = EngineParts(home, config, policy, 8, True, behind, told.append, lambda: 5.0)
    choice = BackendChoice("process", "because it is set", "process")
    make_empty(home.engine_files)
    with ExitStack() as stack:
        engine = _process_engine(parts, choice, stack, lambda: HostedHere(policy, files=home.engine_files), QUICK)
        EngineWeights(engine).load(1, policy.trainable())
    assert isinstance(engine, ProcessEngine if behind else DonatedEngine)
    (event,) = told
    assert isinstance(event, EngineChanged) and event.is_as_configured
    assert ("donors are not used" in event.because) == (behind and named)
