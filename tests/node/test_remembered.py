"""A data directory remembers the settings that decided its run, and a start that says nothing else takes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from node.configuration import Config, with_whole_paths
from node.configuration.sources import load_config, resolve
from node.doctor.configured_model import is_same_model, judge_same_run
from node.doctor.findings import Finding


def trained(home: Path, checkpoint: str = "round-000030", **settings: Any) -> Path:
    """A checkpoint of a run with these settings, by dotted key with __ for the dot."""
    values = Config().model_dump(mode="json")
    for key, value in settings.items():
        section, _, last = key.rpartition("__")
        (values[section] if section else values)[last] = value
    folder = home / "checkpoints" / checkpoint
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(values))
    return home


def findings(home: Path, **flags: str) -> list[Finding]:
    resolved = resolve(home, {}, {key.replace("__", "."): text for key, text in flags.items()})
    assert resolved.problems == ()
    return list(judge_same_run(resolved.config, resolved.run, resolved.spelling, home))


def test_model_tasks_swarm_and_name_are_kept_and_nothing_else(tmp_path: Path) -> None:
    kept: dict[str, Any] = {
        "policy__model": "builtin:robin",
        "tasks__names": ["add"],
        "swarm__name": "lab",
        "name": "lark",
    }
    config = load_config(trained(tmp_path, **kept, rounds=30, learner__own_groups=3, seed=7), {}, {})
    assert (config.policy.model, config.tasks.names, config.swarm.name) == ("builtin:robin", ("add",), "lab")
    assert config.name == "lark"
    assert (config.rounds, config.learner.own_groups, config.seed) == (0, 32, 0)
    assert findings(tmp_path) == []


def test_the_newest_checkpoint_counts_and_every_other_source_wins_over_it(tmp_path: Path) -> None:
    trained(tmp_path, policy__model="builtin:finch")
    trained(tmp_path, "round-000031", policy__model="builtin:robin", swarm__name="lab")
    (tmp_path / "node.toml").write_text('[swarm]\nname = "other"\n')
    config = load_config(tmp_path, {}, {})
    assert (config.policy.model, config.swarm.name) == ("builtin:robin", "other")


def test_a_start_from_an_earlier_checkpoint_takes_the_settings_of_that_one(tmp_path: Path) -> None:
    trained(tmp_path, tasks__names=["add"])
    trained(tmp_path, "round-000031", tasks__names=["spell_backward"])
    chosen = tmp_path / "checkpoints" / "round-000030"
    assert resolve(tmp_path, {}, {}, resumed=chosen).config.tasks.names == ("add",)
    assert resolve(tmp_path, {}, {}).config.tasks.names == ("spell_backward",)
    assert resolve(tmp_path / "new", {}, {}, resumed=chosen).config.tasks.names == ("add",)


def test_data_that_is_named_anew_replaces_the_tasks_of_before_as_a_whole(tmp_path: Path) -> None:
    trained(tmp_path, tasks__names=["add"], tasks__jsonl_max_new_tokens=9, tasks__scoring_workers=3)
    config = load_config(tmp_path, {}, {"tasks.jsonl": "own.jsonl"})
    assert (config.tasks.names, config.tasks.jsonl) == ((), (Path("own.jsonl"),))
    assert (config.tasks.jsonl_max_new_tokens, config.tasks.scoring_workers) == (256, 1)


def test_generators_with_parameters_are_kept_and_one_that_is_named_replaces_them(tmp_path: Path) -> None:
    trained(tmp_path, tasks__reasoning_gym={"chain_sum": {"min_terms": 3}})
    assert load_config(tmp_path, {}, {}).tasks.reasoning_gym == {"chain_sum": {"min_terms": 3}}
    config = load_config(tmp_path, {}, {"tasks.reasoning_gym.leg_counting.min_animals": "2"})
    assert list(config.tasks.reasoning_gym) == ["leg_counting"]


def test_a_damaged_configuration_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    trained(tmp_path, policy__model="builtin:robin")
    broken = trained(tmp_path, "round-000031") / "checkpoints" / "round-000031" / "config.json"
    for content in ("{", "[]", '{"policy": {"model": 3}}', "[" * 100_000):
        broken.write_text(content)
        assert load_config(tmp_path, {}, {}).policy.model == "builtin:robin"


def test_a_checkpoint_that_was_set_aside_still_names_the_model_and_binds_nobody(tmp_path: Path) -> None:
    trained(tmp_path, "set-aside-round-000030-17", policy__model="builtin:robin")
    assert load_config(tmp_path, {}, {}).policy.model == "builtin:robin"
    assert findings(tmp_path, policy__model="builtin:wren") == []


def test_a_value_that_this_version_does_not_take_is_told_with_the_checkpoint_that_holds_it(tmp_path: Path) -> None:
    resolved = resolve(trained(tmp_path, policy__chat="loudly"), {}, {})
    assert "round-000030/config.json: policy.chat = 'loudly'" in resolved.problems[0]
    assert resolved.config.policy.chat == "auto"


@pytest.mark.parametrize("source", ["flag", "environment", "file"])
def test_another_model_is_refused_with_both_ways_out_and_the_place_that_asks_for_it(
    tmp_path: Path, source: str
) -> None:
    trained(tmp_path, policy__model="builtin:robin")
    if source == "file":
        (tmp_path / "node.toml").write_text('[policy]\nmodel = "builtin:wren"\n')
    environment = {"STARLING_POLICY__MODEL": "builtin:wren"} if source == "environment" else {}
    resolved = resolve(tmp_path, environment, {"policy.model": "builtin:wren"} if source == "flag" else {})
    (found,) = judge_same_run(resolved.config, resolved.run, resolved.spelling, tmp_path)
    place = {"flag": "--set policy.model", "environment": "STARLING_POLICY__MODEL", "file": "node.toml: policy.model"}
    assert place[source] in found.message and "builtin:robin" in found.message and "round-000030" in found.message
    assert found.remedy is not None
    assert f"starling up --home {tmp_path}. " in found.remedy
    assert f"starling up --home {tmp_path}-wren --model builtin:wren" in found.remedy


def test_another_adapter_is_refused_and_the_same_or_an_open_one_is_not(tmp_path: Path) -> None:
    trained(tmp_path, policy__adapter_rank=8, policy__four_bit=False)
    (found,) = findings(tmp_path, policy__adapter_rank="16")
    assert found.check == "policy.adapter_rank" and "= 8" in found.message and "16" in found.message
    assert findings(tmp_path, policy__adapter_rank="8") == findings(tmp_path, policy__adapter_rank="auto") == []
    assert [each.check for each in findings(tmp_path, policy__four_bit="true")] == ["policy.four_bit"]


def model_folder(path: Path, content: str) -> str:
    path.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (path / name).write_text(content)
    return str(path)


def test_a_folder_that_was_copied_or_moved_is_the_same_model_and_another_one_is_not(tmp_path: Path) -> None:
    first, same = model_folder(tmp_path / "a", "x"), model_folder(tmp_path / "b", "x")
    other = model_folder(tmp_path / "c", "y")
    (tmp_path / "link").symlink_to(first)
    assert is_same_model(first, first) and is_same_model(first, str(tmp_path / "link")) and is_same_model(first, same)
    assert is_same_model(str(tmp_path / "gone"), same), "its family, which the learner knows, decides"
    assert not is_same_model(first, other)
    assert not is_same_model(first, "builtin:wren") and not is_same_model("builtin:wren", first)
    assert not is_same_model(first, "owner/name")


def test_paths_are_remembered_whole_so_that_a_start_elsewhere_finds_them(tmp_path: Path) -> None:
    model_folder(tmp_path / "m", "x")
    section = {"jsonl": ["own.jsonl?question=q", "/data/x.jsonl", "~/y.jsonl"], "jsonl_reward": "reward.py:close"}
    config = Config.model_validate({"tasks": section, "policy": {"model": "./m"}})
    whole = with_whole_paths(config, tmp_path)
    assert [str(path) for path in whole.tasks.jsonl] == [
        f"{tmp_path}/own.jsonl?question=q",
        "/data/x.jsonl",
        "~/y.jsonl",
    ]
    assert whole.tasks.jsonl_reward == f"{tmp_path}/reward.py:close"
    assert whole.policy.model == str(tmp_path / "m")
    assert with_whole_paths(Config(), tmp_path) == Config()
