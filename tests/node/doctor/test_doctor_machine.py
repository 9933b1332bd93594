"""Judgements of the machine and of the data directory from made-up facts, and facts read from files."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import node
from node.api.types import ChildStatus, NodeState, NodeStatus
from node.checkpoints.checkpoint_files import sha256_of
from node.configuration import Config, PolicySection
from node.doctor import data_directory
from node.doctor.data_directory import CheckpointFacts, RunningFacts, checkpoint_facts
from node.doctor.findings import Finding, Severity, error, ok, report_of, warning
from node.doctor.machine import (
    judge_clock,
    judge_disk,
    judge_memory,
    judge_packages,
    judge_power,
    judge_python,
    judge_torch,
)
from node.doctor.machine_facts import (
    ClockFacts,
    ClockReading,
    DiskFacts,
    MemoryFacts,
    PowerFacts,
    TorchFacts,
    available_memory_bytes,
    disk_facts,
    power_facts,
    requirements,
    torch_facts,
)
from node.fit.model_sizes import known_sizes
from node.fit.table import FitReport, fit_report
from node.home import Home
from node.policy.device_probe_result import TorchProbe
from node.policy.model_files import model_folder
from node.supervision.watching.clock_watch import judge_offsets
from protocol.blob_id import blob_id, chunk_hashes
from protocol.identity import NodeKey
from protocol.limits import CHUNK_BYTES
from swarm.blobs.disk_bytes import disk_bytes_of
from swarm.blobs.room import store_disk_bytes
from swarm.blobs.store import ContentStore
from tests.node.doctor.judged import with_remedy
from tests.node.fit.shapes import ROUND, config, cpu

OK, WARNING, ERROR = Severity.OK, Severity.WARNING, Severity.ERROR
PROBE = TorchProbe("2.13.0", "cpu", "x86_64", None, None, "float32", 2, False, None, None)
GPU = TorchProbe("2.13.0", "cuda", "Large", 80 * 10**9, 70 * 10**9, "bfloat16", 2, True, None, None)
NOW = 1_800_000_000.0


def test_a_report_is_healthy_until_a_finding_is_an_error() -> None:
    good = (ok("a", "b"), warning("c", "d", "e"))
    assert report_of(good).healthy and not report_of((*good, error("f", "g", "h"))).healthy


def test_an_old_python_is_an_error_that_names_the_range() -> None:
    with_remedy(judge_python("3.10.2", ">=3.11"), ERROR, "3.10.2", ">=3.11")
    with_remedy(judge_python("3.14.0rc1", ">=3.11"), OK)


def test_packages_missing_or_out_of_range_are_named_with_the_range() -> None:
    wanted = ("torch==2.13.*", "math-verify[antlr4-13-2]>=0.9,<0.10", "rich>=14,<16")
    whole: dict[str, str | None] = {"torch": "2.13.1+cpu", "math-verify": "0.9.1", "rich": "15.0"}
    with_remedy(judge_packages(wanted, whole), OK, "3 ")
    finding = judge_packages(wanted, {**whole, "torch": "2.12.0", "math-verify": None})
    with_remedy(finding, ERROR, "torch 2.12.0", "==2.13.*", "math-verify", ">=0.9", "start.sh")
    assert "rich" not in finding.message


def test_requirements_are_those_of_the_checkout_without_extras() -> None:
    asked = requirements(Path(node.__file__).parent)
    names = {re.split("[^a-z0-9-]", text)[0] for text in asked.packages}
    assert asked.python.startswith(">=3.") and {"torch", "libp2p"} <= names and "pytest" not in names


def test_requirements_outside_a_checkout_are_those_of_the_installation(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "other"\ndependencies = ["left-pad"]\n')
    asked = requirements(tmp_path / "node")
    assert any(text.startswith("torch") for text in asked.packages)
    assert not any(text.startswith(("left-pad", "pytest")) for text in asked.packages)


def test_a_torch_that_does_not_start_or_has_no_such_device_is_an_error() -> None:
    with_remedy(judge_torch(TorchFacts(None, "exit code 1: no module", False)), ERROR, "no module", "pip install")
    lacking = changed(PROBE, failure="policy.device is 'cuda', which this machine lacks")
    with_remedy(judge_torch(TorchFacts(lacking, None, False)), ERROR, "'cuda'", "policy.device=cpu")


def test_a_package_named_node_in_the_current_directory_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, stand_in = tmp_path / "here", tmp_path / "stand_in"
    for folder in (here / "node", stand_in):
        folder.mkdir(parents=True)
    (here / "node" / "__init__.py").write_text("raise SystemExit('not ours')")
    (stand_in / "torch.py").write_text("raise SystemExit('imported by our probe')")  # quicker than torch itself
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(stand_in), str(Path(node.__file__).parents[1])]))
    facts = torch_facts("cpu", "float32")
    assert facts.probe is None and "imported by our probe" in (facts.failure or "")


def test_a_gpu_that_this_build_of_torch_cannot_use_is_a_warning() -> None:
    with_remedy(judge_torch(TorchFacts(PROBE, None, True)), WARNING, "NVIDIA", "pip install")
    with_remedy(judge_torch(TorchFacts(PROBE, None, False)), OK, "2.13.0", "cpu", "float32")


def test_a_gpu_that_others_have_filled_is_a_warning() -> None:
    with_remedy(judge_torch(TorchFacts(GPU, None, True)), OK, "70.0 GB", "80.0 GB")
    with_remedy(judge_torch(TorchFacts(changed(GPU, hip="7.1"), None, False)), OK, "ROCm 7.1", "80.0 GB")
    full = changed(GPU, device_free_bytes=10**8)
    with_remedy(judge_torch(TorchFacts(full, None, True)), WARNING, "100.0 MB", "80.0 GB", "nvidia-smi")


def changed(probe: TorchProbe, **changes: object) -> TorchProbe:
    return msgspec.structs.replace(probe, **changes)


def wren_on(memory_bytes: int) -> FitReport:
    """Returns the plan for the smallest built-in model on a machine with so much memory."""
    sizes = known_sizes(model_folder("builtin:wren"))
    assert sizes is not None
    workload = replace(ROUND, prompt_tokens=15, answer_tokens=12)
    return fit_report(config(), sizes, cpu(memory_bytes), workload)


@pytest.mark.parametrize(
    ("available", "group", "running", "severity"),
    [
        (16 * 10**9, None, False, OK),
        (9 * 10**8, None, False, WARNING),
        (10**8, None, False, ERROR),
        (10**8, None, True, OK),
        (16 * 10**9, 10**8, False, ERROR),
        (None, None, False, OK),
    ],
)
def test_memory_is_the_least_of_what_system_and_container_leave(
    available: int | None, group: int | None, running: bool, severity: Severity
) -> None:
    finding = judge_memory(MemoryFacts(16 * 10**9, available, group), running, wren_on(16 * 10**9))
    with_remedy(finding, severity)
    assert ("container" in (finding.remedy or "")) == (group is not None)


def test_a_model_that_does_not_fit_is_an_error_with_the_plans_words() -> None:
    facts = MemoryFacts(10**8, 10**8, None)
    with_remedy(judge_memory(facts, running=False, fit=wren_on(10**8)), ERROR, "does not fit", "starling fit")
    with_remedy(judge_memory(facts, running=False, fit="no such model"), ERROR, "no such model")
    assert judge_memory(facts, running=False, fit=wren_on(10**8), stages=2).severity == OK


def test_available_memory_is_read_in_bytes_where_the_system_reports_it() -> None:
    assert available_memory_bytes("MemTotal:  9 kB\nMemAvailable:    3 kB\n") == 3072
    assert available_memory_bytes("MemTotal:  9 kB\n") is None


def disk(free: int, *, to_write: str | None = None, blobs: int = 0, checkpoint: int = 0) -> Finding:
    facts = DiskFacts(Path("/data"), free, to_write, checkpoint, is_estimate=False)
    return judge_disk(facts, blob_bytes=blobs, store_bytes=2 * 10**9, checkpoints_kept=2, log_bytes=10**8)


def test_disk_space_is_held_against_store_checkpoints_and_logs() -> None:
    with_remedy(disk(3 * 10**9), OK, "2.1 GB")
    with_remedy(disk(2 * 10**9), WARNING, "swarm.store_bytes")
    with_remedy(disk(2 * 10**9, blobs=10**9), OK, "1.1 GB")
    with_remedy(disk(3 * 10**9, checkpoint=10**9), WARNING, "5.1 GB", "swarm.store_bytes")
    with_remedy(disk(10**8), ERROR, "--home")
    with_remedy(disk(3 * 10**9, checkpoint=2 * 10**9), ERROR)  # the next checkpoint fits, the one after does not
    with_remedy(disk(10**12, to_write="another one"), ERROR, "/data", "another one")


def test_disk_facts_are_of_the_nearest_directory_that_exists(tmp_path: Path) -> None:
    facts = disk_facts(Home(tmp_path / "not" / "yet"), Config(policy=PolicySection(model="owner/name")))
    assert facts.free_bytes > 0 and facts.to_write is None and facts.checkpoint_bytes == 0 and facts.is_estimate


def test_the_newest_checkpoint_says_what_the_next_one_takes(tmp_path: Path) -> None:
    for number in (4000, 9000):
        checkpoint(tmp_path / "checkpoints", number)
    facts = disk_facts(Home(tmp_path), Config())
    assert facts.checkpoint_bytes >= 9000 and not facts.is_estimate


def test_what_the_store_takes_is_counted_as_it_lies_on_the_disk(tmp_path: Path) -> None:
    store = ContentStore(tmp_path / "blobs")
    store.put(random.Random(1).randbytes(100))  # packed
    store.put(random.Random(2).randbytes(300_000))  # a file
    content = random.Random(3).randbytes(8 * CHUNK_BYTES)
    chunks = [content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)]
    fetch = store.resume(blob_id(content), len(content), chunk_hashes(content))
    assert fetch is not None and store.write_chunk(fetch, 7, chunks[7])  # the file's first seven eighths are a hole
    taken = store_disk_bytes(tmp_path / "blobs")
    assert taken == pytest.approx(store.total_bytes(), abs=8192)

    small = [tmp_path / "blobs.flat" / f"{number:064x}" for number in range(10)]  # as an older version left them
    small[0].parent.mkdir()
    for path in small:
        path.write_bytes(b"x")
    assert store_disk_bytes(tmp_path / "blobs") == taken + sum(map(disk_bytes_of, small))
    store.close()


STEADY = ClockFacts(ClockReading(NOW, 5.0), ClockReading(NOW + 4.0, 9.0), 0, NOW - 60.0, (), 0)


def test_a_clock_that_runs_forward_is_in_order() -> None:
    with_remedy(judge_clock(STEADY), OK)
    with_remedy(judge_clock(dataclasses.replace(STEADY, peer_offsets_seconds=(0.2, -0.4))), OK, "0.4 s", "2 peers")


@pytest.mark.parametrize(
    ("change", "severity", "facts"),
    [
        ({"steps_back": 2}, ERROR, ("2 times", "virtualisation")),
        ({"ended": ClockReading(NOW, 4.0)}, ERROR, ("virtualisation",)),
        ({"began": ClockReading(1.0, 5.0), "ended": ClockReading(5.0, 9.0)}, ERROR, ("timedatectl",)),
        ({"newest_file_seconds": NOW + 10 * 86_400}, ERROR, ("10 days", "timedatectl")),
        ({"ended": ClockReading(NOW + 64.0, 9.0)}, WARNING, ("+60.0 s", "timedatectl")),
        ({"peer_offsets_seconds": (40.0, 50.0, 45.0, -1.0)}, WARNING, ("42 s behind", "3 of 4", "timedatectl")),
        ({"peer_offsets_seconds": (-3600.0,) * 3}, ERROR, ("60 minutes ahead", "3 of 3", "timedatectl")),
        ({"peer_offsets_seconds": (-40.0,)}, WARNING, ("differ by 40 s", "one of them", "timedatectl")),
        ({"refused_for_clock": 7}, ERROR, ("(7)", "300 s", "timedatectl")),
    ],
)
def test_a_clock_that_is_off_is_reported_with_how_far(
    change: dict[str, object], severity: Severity, facts: tuple[str, ...]
) -> None:
    with_remedy(judge_clock(dataclasses.replace(STEADY, **change)), severity, *facts)  # type: ignore[arg-type]


def test_one_peer_with_a_wrong_clock_among_right_ones_is_not_our_fault() -> None:
    facts = dataclasses.replace(STEADY, peer_offsets_seconds=(0.1, 250.0, -0.1), refused_for_clock=9)
    assert judge_clock(facts).severity is OK


@given(st.lists(st.floats(-300, 300), min_size=1), st.integers(0, 9))
def test_the_clock_is_judged_as_a_running_node_judges_it(offsets: list[float], refused: int) -> None:
    finding = judge_clock(dataclasses.replace(STEADY, peer_offsets_seconds=tuple(offsets), refused_for_clock=refused))
    assert (finding.severity is WARNING) == (judge_offsets(offsets) is not None)


def test_a_key_that_others_can_read_is_an_error_with_the_command_that_mends_it(tmp_path: Path) -> None:
    home = Home(tmp_path)
    tmp_path.chmod(0o700)
    with_remedy(data_directory.judge_key(home), OK, str(home.key))
    key = NodeKey.load_or_create(home.key)
    with_remedy(data_directory.judge_key(home), OK, key.peer_id, "600")
    home.key.chmod(0o640)
    with_remedy(data_directory.judge_key(home), ERROR, "640", f"chmod 600 {home.key}")


def test_a_missing_key_is_a_warning_and_a_file_that_is_not_a_key_an_error(tmp_path: Path) -> None:
    home = Home(tmp_path)
    tmp_path.chmod(0o700)
    home.metrics.touch()
    with_remedy(data_directory.judge_key(home), WARNING, str(home.key))
    home.key.write_text("nothing")
    home.key.chmod(0o600)
    with_remedy(data_directory.judge_key(home), ERROR, str(home.key), "PKCS #8")


def test_a_data_directory_that_others_may_write_into_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    with_remedy(data_directory.judge_key(Home(tmp_path)), ERROR, "770", f"chmod 700 {tmp_path}")


def checkpoint(folder: Path, number: int) -> Path:
    path = folder / f"round-{number:06d}"
    path.mkdir(parents=True)
    (path / "tensors.safetensors").write_bytes(bytes(number % 256 for number in range(number)))
    (path / "config.json").write_text("{}")
    digest = sha256_of(path / "tensors.safetensors")
    (path / "state.json").write_text(json.dumps({"format": 1, "tensors_sha256": digest}))
    return path


def test_checkpoints_are_read_through_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with_remedy(data_directory.judge_checkpoints(checkpoint_facts(home)), OK)
    older, newer = (checkpoint(home.checkpoints, number) for number in (5, 9))
    assert checkpoint_facts(home) == CheckpointFacts((older, newer), ())
    with_remedy(data_directory.judge_checkpoints(checkpoint_facts(home)), OK, "2 ", "round-000009")
    (newer / "tensors.safetensors").write_bytes(bytes(9))
    with_remedy(data_directory.judge_checkpoints(checkpoint_facts(home)), WARNING, "round-000005", str(newer))
    (older / "state.json").unlink()
    with_remedy(data_directory.judge_checkpoints(checkpoint_facts(home)), ERROR, str(older), str(newer), "backup")


def running(state: NodeState, last_end: str | None = None) -> NodeStatus:
    child = ChildStatus(1, 0 if last_end is None else 1, last_end)
    return NodeStatus(
        version="0",
        pid=1,
        home="/data",
        name="ann",
        peer="12D3KooWx",
        model="m",
        state=state,
        uptime_seconds=1.0,
        swarm_process=ChildStatus(2, 0, None),
        learner_process=child,
        swarm=None,
        loading=None,
        ready=None,
        round=None,
        checkpoint=None,
        fault=None,
        notes=(),
    )


def test_a_running_node_is_reported_with_its_state_and_how_a_process_of_it_ended() -> None:
    judge = data_directory.judge_running
    with_remedy(judge(RunningFacts(False, None, None)), OK, "starling up")
    with_remedy(judge(RunningFacts(True, None, "refused")), WARNING, "refused", "starling down")
    with_remedy(judge(RunningFacts(True, running(NodeState.TRAINING), None)), OK, "training", "ann")
    ended = RunningFacts(True, running(NodeState.RECOVERING, "the learner was killed"), None)
    with_remedy(judge(ended), WARNING, "the learner was killed", "/data/logs")
    again = RunningFacts(True, running(NodeState.TRAINING, "the learner was killed"), None)
    with_remedy(judge(again), WARNING, "training", "the learner was killed", "/data/logs")


def test_a_laptop_on_battery_is_warned_and_told_what_slows_it_down(tmp_path: Path) -> None:
    count = tmp_path / "cpu0" / "thermal_throttle" / "package_throttle_count"
    count.parent.mkdir(parents=True)
    count.write_text("12\n")
    assert power_facts(tmp_path).throttled == 12
    found = judge_power(PowerFacts(on_battery=True, throttled=12, graphics=("Intel", "WSL2")), None)
    assert (
        found.severity is Severity.WARNING
        and "battery" in found.message
        and "pause_when=battery" in (found.remedy or "")
    )
    assert "12 times" in found.message and ".wslconfig" in found.message and "graphics of Intel" in found.message
    calm = judge_power(PowerFacts(on_battery=False, throttled=0, graphics=()), None)
    assert calm == ok("machine", "nothing known slows this machine down")
