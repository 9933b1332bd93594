"""The Grafana dashboard that ships with the documentation names metrics that a node has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from node.api.metrics import metrics_text
from node.events import DeviceUsage, Evaluated
from scripts import REPOSITORY
from scripts.bench.common.simulated_node import TASKS, SimulatedNode

DASHBOARD: Path = REPOSITORY / "docs" / "grafana.json"
METRIC = re.compile(r"\bstarling_[a-z0-9_]+")
LABEL = re.compile(r"\{\{(\w+)\}\}")
OF_PROMETHEUS = {"instance"}  # a label that Prometheus adds


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"] if panel["type"] != "row"]


def labels_by_metric() -> dict[str, set[str]]:
    """What a node exposes that has trained, averaged, checkpointed and been evaluated, on a machine with a GPU."""
    node = SimulatedNode(1_000.0, rounds=3)
    usage = node.status().usage
    assert usage is not None
    reward = dict.fromkeys(TASKS, 0.5)
    measured = Evaluated(
        time_seconds=1.0,
        round=1,
        policy_version=1,
        prompts=1,
        reward=0.5,
        reward_by_task=reward,
        validation=0.5,
        best_round=1,
        best_reward=0.5,
        seconds=1.0,
    )
    device = DeviceUsage("a GPU", 1, 2, 0.5, 100.0, 200.0)
    node.change(offered=node.status().averaged, evaluated=measured, usage=replace(usage, device=device))
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(
        metrics_text(node.status(), node.peers(), node.record.changes.gains())
    ):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_every_metric_and_label_of_the_dashboard_is_one_that_a_node_exposes() -> None:
    exposed = labels_by_metric()
    for panel in panels():
        for target in panel["targets"]:
            metrics = set(METRIC.findall(target["expr"]))
            assert metrics, f"{panel['title']} asks for no metric of a node: {target['expr']}"
            assert metrics <= exposed.keys(), f"{panel['title']} asks for {metrics - exposed.keys()}"
            labels = set(LABEL.findall(target["legendFormat"])) - OF_PROMETHEUS
            assert all(labels <= exposed[metric] for metric in metrics), f"{panel['title']} has no label {labels}"


def test_no_two_panels_of_the_dashboard_overlap_or_share_an_id() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        taken = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not taken & cells and place["x"] + place["w"] <= 24, panel["title"]
        cells |= taken
    assert len({panel["id"] for panel in panels()}) == len(panels())
