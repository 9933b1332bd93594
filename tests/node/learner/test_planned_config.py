"""The learner's plan before anything is loaded, and checkpoints that rounds wait for where memory is short."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from node.checkpoints.checkpoints import BackgroundCheckpoints, read_newest
from node.configuration import Config, LearnerSection, PolicySection
from node.events import CheckpointSaved, Event, Planned
from node.home import Home
from node.learner.assembly.planning import planned_config
from node.learner.state.learner_state import LearnerState
from node.learner.state.persistence import Persistence
from node.learner.steps.optimizer import MasterAdamW
from node.policy.model_files import model_folder
from node.policy.policy import Policy
from protocol.errors import ConfigurationError
from tests.node.learner.enough_memory import enough_memory


def test_the_plan_is_reported_and_leaves_no_choice_open(tmp_path: Path) -> None:
    events: list[Event] = []
    config, settings, most = planned_config(Home(tmp_path), Config(), (), events.append)
    [planned] = events
    assert isinstance(planned, Planned) and planned.choice.startswith("every weight in float32, AdamW")
    assert 0 < planned.host_bytes <= planned.host_limit_bytes and planned.device_limit_bytes is None
    open_keys = [
        config.policy.adapter_rank, config.policy.four_bit, config.policy.dtype, config.engine.rows,
        config.learner.batch_tokens, config.learner.recompute, config.learner.optimizer, config.swarm.store_bytes,
    ]  # fmt: skip
    assert "auto" not in open_keys
    assert (
        (settings.rows, settings.batch_tokens)
        == (most.rows, most.batch_tokens)
        == (config.engine.rows, config.learner.batch_tokens)
        == (128, 8192)
    )


def test_a_checkpoint_of_an_adapter_makes_the_next_start_train_an_adapter(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "round-000007"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"policy": {"adapter_rank": 4, "four_bit": False}}))
    config, *_ = planned_config(Home(tmp_path), Config(), (), lambda event: None)
    assert config.policy.adapter_rank == 4


def test_a_model_that_claims_a_billion_layers_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model_folder("builtin:wren"), tmp_path / "model"))
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(described | {"num_hidden_layers": 10**9}))
    config = Config(policy=PolicySection(model=str(folder)))
    with pytest.raises(ConfigurationError, match="1000000000"):
        planned_config(Home(tmp_path), config, (), lambda event: None)


@pytest.mark.parametrize("save_beside", [True, False])
def test_rounds_wait_for_a_checkpoint_only_where_there_is_no_room_for_its_copy(
    tmp_path: Path, save_beside: bool
) -> None:
    policy = Policy.load(PolicySection())
    optimizer = MasterAdamW(policy.trainable(), LearnerSection())
    checkpoints = BackgroundCheckpoints(tmp_path, keep=1)
    events: list[Event] = []
    persistence = Persistence(
        checkpoints, Config(), policy, optimizer, events.append, lambda: 0.0, save_beside=save_beside
    )
    state = LearnerState(round=50)
    persistence.after_round(50, lambda: (state, dict), enough_memory())
    if not save_beside:
        assert not checkpoints.busy and isinstance(events[0], CheckpointSaved)
    for parameter in policy.trainable().values():
        parameter.data.zero_()  # what a later round does must not reach the checkpoint
    persistence.save_last((state, dict), enough_memory())
    checkpoints.close()
    saved = read_newest(tmp_path).snapshot
    assert saved is not None
    assert any(tensor.abs().sum() > 0 for name, tensor in saved.tensors.items() if name.startswith("weights."))
