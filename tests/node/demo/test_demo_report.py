"""The conclusions and the tables of the demonstration, and how its nodes are configured."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from node.configuration.sources import load_config
from node.demo.plan import DemoReport, Effort, ModelResult, make_report
from node.demo.run import environment_of_members
from node.demo.show import conclusions, effort_table, reward_table
from node.evaluation.evaluation_result import Evaluation
from node.home import Home
from node.supervision.swarm_settings import name_for, swarm_settings
from swarm.settings import ServiceSettings

EFFORT = Effort(10, 1000, 80, 5, 7, 1_500, 2_500_000)


def evaluation(rewards: dict[str, float]) -> Evaluation:
    return Evaluation("m", 0, None, 10, 4, 0, rewards, rewards)


def result(model: str, before: dict[str, float], alone: dict[str, float], together: dict[str, float]) -> ModelResult:
    return ModelResult(model, evaluation(before), evaluation(alone), evaluation(together), EFFORT, EFFORT)


def report_of(*results: ModelResult) -> DemoReport:
    return make_report(results, minutes=3.0, seed=0, machine="here", version="0")


def shown(renderable: object) -> str:
    console = Console(file=io.StringIO(), width=150, color_system=None)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_only_tasks_that_a_model_was_weak_on_before_count() -> None:
    good = result("good", {"a": 0.149, "b": 0.15}, {"a": 0.2, "b": 0.9}, {"a": 0.3, "b": 0.1})
    bad = result("bad", {"a": 0.0, "b": 0.1}, {"a": 0.2, "b": 0.2}, {"a": 0.3, "b": 0.0})
    report = report_of(good, bad)
    assert report.weak_means["good"] == {"before": 0.149, "alone": 0.2, "together": 0.3}
    assert report.better_together == {"good": True, "bad": False}
    first, second, *_ = conclusions(report)
    assert first.startswith("good: ") and "NOT" not in first and "0.300" in first and "0.200" in first
    assert second.startswith("bad: ") and "NOT" in second


def test_a_model_that_is_better_together_and_lost_a_task_is_told_both() -> None:
    before = {"weak": 0.0, "strong": 0.9, "steady": 0.5}
    together = {"weak": 0.8, "strong": 0.5, "steady": 0.45}  # the last is within the noise of 40 completions
    (line,) = conclusions(report_of(result("m", before, before, together)))
    assert line.startswith("m: better together: 0.800 against 0.000 alone")
    assert line.endswith("Together: It has lost success on strong from 0.90 to 0.50.")
    (line,) = conclusions(report_of(result("m", before, together, before)))
    assert "NOT better together" in line and "Alone: It has lost success on strong" in line


def test_equal_means_are_not_better() -> None:
    same = {"a": 0.1}
    assert report_of(result("m", same, same, same)).better_together == {"m": False}


def test_a_model_weak_on_nothing_is_neither_better_nor_worse() -> None:
    report = report_of(result("m", {"a": 0.5}, {"a": 0.6}, {"a": 0.7}))
    assert report.better_together == {"m": None}
    (line,) = conclusions(report)
    assert line.startswith("m ") and "better" not in line


def test_tables_mark_weak_tasks_and_show_the_effort() -> None:
    one = result("m", {"a": 0.0, "b": 0.5}, {"a": 0.2, "b": 0.6}, {"a": 0.3, "b": 0.7})
    table = shown(reward_table(one))
    assert "a *" in table and "b *" not in table and "0.300" in table
    effort = shown(effort_table(report_of(one)))
    assert "1.5 kB" in effort and "2.5 MB" in effort and "1,000" in effort


def test_nodes_of_the_demonstration_ignore_the_users_configuration_and_share_the_cores() -> None:
    mine = {"STARLING_HOME": "/x", "starling_learner__clip": "9", "PATH": "/bin"}
    given = environment_of_members(mine, members=3, cores=8)
    assert given == {"PATH": "/bin", "OMP_NUM_THREADS": "2", "STARLING_SWARM__LAN_DISCOVERY": "false"}
    assert environment_of_members({"OMP_NUM_THREADS": "7"}, 3, 8)["OMP_NUM_THREADS"] == "7"


def test_a_node_without_a_name_is_named_after_its_model_and_peer_id() -> None:
    assert name_for("builtin:wren", "12D3KooWabcde") == "wren-abcde"
    assert name_for("/models/Qwen3-0.6B/", "12D3KooWabcde") == "Qwen3-0.6B-abcde"
    assert len(name_for("鸟" * 100, "12D3KooWabcde").encode()) <= 64


def test_nodes_with_other_tasks_of_their_own_are_in_the_same_swarm_and_other_names_in_another(tmp_path: Path) -> None:
    def swarm_id(**flags: str) -> str:
        chosen = {key.replace("__", "."): text for key, text in flags.items()}
        return swarm_settings(Home(tmp_path), load_config(tmp_path, {}, chosen)).swarm_id

    assert swarm_id(tasks__names="basic_arithmetic") == swarm_id() != swarm_id(swarm__name="another")


@pytest.mark.parametrize(
    ("lan_discovery", "port_mapping", "asks"),
    [("true", "auto", True), ("false", "auto", False), ("true", "off", False)],
)
def test_no_router_is_asked_for_a_port_where_multicast_is_unwelcome(
    tmp_path: Path, lan_discovery: str, port_mapping: str, asks: bool
) -> None:
    flags = {"swarm.lan_discovery": lan_discovery, "swarm.port_mapping": port_mapping}
    settings = swarm_settings(Home(tmp_path), load_config(tmp_path, {}, flags))
    assert settings.port_mapping is asks
    assert not ServiceSettings(str(tmp_path), "s", "0" * 32).port_mapping, "off unless a node's configuration says so"


def test_every_setting_of_the_swarm_section_reaches_the_swarm_process(tmp_path: Path) -> None:
    flags = {
        "swarm.name": "s", "swarm.listen": "/ip4/127.0.0.1/tcp/1", "swarm.peers": "/a,/b",
        "swarm.lan_discovery": "false", "swarm.store_bytes": "2000000",
        "machine.max_upload": "160 kbit/s", "machine.max_download": "16 kB/s", "swarm.heartbeat_seconds": "9",
        "swarm.mesh_degree": "3", "log_level": "debug", "name": "n",
    }  # fmt: skip
    settings = swarm_settings(Home(tmp_path), load_config(tmp_path, {}, flags))
    assert (settings.swarm_name, settings.listen, settings.peers) == ("s", "/ip4/127.0.0.1/tcp/1", ("/a", "/b"))
    assert (settings.lan_discovery, settings.store_bytes) == (False, 2_000_000)
    assert (settings.upload_bytes_per_second, settings.download_bytes_per_second) == (20_000.0, 16_000.0)
    assert (settings.heartbeat_seconds, settings.mesh_degree, settings.log_level) == (9.0, 3, "debug")
    assert (settings.name, settings.home) == ("n", str(tmp_path))
    given = settings.open_manifest()
    assert given is not None
    assert given.name == "s"
