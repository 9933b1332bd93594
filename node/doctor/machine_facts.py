"""Facts about this machine: Python, packages, torch, memory, disk, clock. Collects facts and judges nothing."""

from __future__ import annotations

import os
import shutil
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import pairwise
from pathlib import Path

from packaging.requirements import Requirement

from node.checkpoints.checkpoint_files import rounds
from node.configuration import Config, remembered_run
from node.configuration.published import is_hub_id
from node.doctor.configured_model import is_same_model
from node.doctor.gpu_devices import devices, has_nvidia
from node.engines.vllm_backend.environment import Installed
from node.fit.candidates import Trained
from node.fit.host_memory import PROC, control_group_room, machine_bytes
from node.fit.machine import Machine
from node.fit.model_sizes import ModelSizes, known_sizes
from node.fit.planning import sizes_of, trained_here
from node.fit.stages.plan import Pace, StageMachine, plan_stages
from node.fit.stages.table import StageFit
from node.fit.table import FitReport, fit_report
from node.fit.workload import Workload, workload_of
from node.home import Home, how_to_write
from node.policy.device_probe_result import TorchProbe
from node.policy.model_files import model_folder
from node.policy.torch_process import NoAnswer, ask_torch
from node.quantities import size
from node.supervision.pausing.machine_readings import on_battery
from node.tasks.registry import load_tasks
from protocol.errors import ConfigurationError
from swarm.blobs.disk_bytes import disk_bytes_below
from swarm.donors.donor_list import may_have_donors

DISTRIBUTION = "starling-swarm"
CLOCK_READINGS = 1000
PROCESSORS = Path("/sys/devices/system/cpu")
BYTES_A_WEIGHT = 12  # of a first checkpoint: a float32 and AdamW's two moments
USUAL_RANK = 16  # of an adapter, where every weight would not fit
MEMORY_SHARE = 0.5  # that weights and moments may take before an adapter is trained instead


@dataclass(frozen=True, slots=True)
class Requirements:
    """What this version of starling requires."""

    python: str  # a range such as ">=3.11"
    packages: tuple[str, ...]  # such as "torch==2.13.*", without those of optional extras


@dataclass(frozen=True, slots=True)
class TorchFacts:
    probe: TorchProbe | None
    failure: str | None  # why there is no probe
    nvidia_present: bool  # whether a driver of an NVIDIA GPU is loaded


@dataclass(frozen=True, slots=True)
class PowerFacts:
    """What makes a machine slower than it could be."""

    on_battery: bool | None  # None: the system does not tell
    throttled: int  # times since the machine's start that the processor slowed down for its heat; 0 where unknown
    graphics: tuple[str, ...]  # as ``gpu_devices.devices`` names them


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    total_bytes: int
    available_bytes: int | None  # None where the system does not report it
    group_room_bytes: int | None  # how much more the control group (a container) may use; None: no limit


@dataclass(frozen=True, slots=True)
class DiskFacts:
    path: Path
    free_bytes: int
    to_write: str | None  # what a person does where it cannot be written; None where it can
    checkpoint_bytes: int  # of the newest checkpoint, or the estimate of the first one; 0: neither is known
    is_estimate: bool


@dataclass(frozen=True, slots=True)
class ClockReading:
    wall_seconds: float
    monotonic_seconds: float


@dataclass(frozen=True, slots=True)
class ClockFacts:
    began: ClockReading
    ended: ClockReading
    steps_back: int  # of the monotonic clock, among ``CLOCK_READINGS``
    newest_file_seconds: float | None  # newest modification time in the data directory
    peer_offsets_seconds: tuple[float, ...]  # connected peers' clocks minus ours
    refused_for_clock: int  # announcements that the running node refused for their time


def requirements(package: Path) -> Requirements:
    """Returns the requirements of the checkout that holds ``package``, which may be newer than its installation, or
    else of the installation. Raises ``metadata.PackageNotFoundError`` where there is neither.
    """
    described = package.parent / "pyproject.toml"
    if described.is_file():
        project = tomllib.loads(described.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == DISTRIBUTION:
            return Requirements(project["requires-python"], tuple(project["dependencies"]))
    asked = map(Requirement, metadata.requires(DISTRIBUTION) or [])
    always = [str(each) for each in asked if each.marker is None or each.marker.evaluate({"extra": ""})]
    return Requirements(metadata.metadata(DISTRIBUTION)["Requires-Python"], tuple(always))


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def torch_facts(device: str, dtype: str) -> TorchFacts:
    """Returns what torch finds for a configured device and dtype, in a process of its own."""
    nvidia = has_nvidia()
    probe = ask_torch("node.policy.device_probe", device, dtype, answer=TorchProbe)
    if isinstance(probe, NoAnswer):
        return TorchFacts(None, probe.reason, nvidia)
    return TorchFacts(probe, None, nvidia)


def power_facts(processors: Path = PROCESSORS) -> PowerFacts:
    counts = processors.glob("cpu[0-9]*/thermal_throttle/package_throttle_count")
    return PowerFacts(on_battery(), max((int(path.read_text()) for path in counts), default=0), devices())


def memory_facts() -> MemoryFacts:
    meminfo = PROC / "meminfo"
    available = available_memory_bytes(meminfo.read_text()) if meminfo.exists() else None
    return MemoryFacts(machine_bytes(), available, control_group_room())


def available_memory_bytes(meminfo: str) -> int | None:
    """Returns ``MemAvailable`` from the text of /proc/meminfo; None where it is not there."""
    for line in meminfo.splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def fit_facts(home: Home, config: Config, machine: Machine, vllm: Installed | None) -> FitReport:
    """Returns the plan that a start would make on ``machine``; of another model than that of the run in ``home``, in a
    directory of its own. Raises ``ConfigurationError``."""
    sizes = sizes_of(model_folder(config.policy.model))
    return fit_report(config, sizes, machine, _workload(home, config, machine, sizes, vllm), kept=_kept(home, config))


def stage_fit(home: Home, config: Config, machine: Machine, others: Sequence[int]) -> StageFit:
    """Returns the plan over ``machine`` and others with so many bytes each, which are taken to be as fast. Raises
    ``ConfigurationError`` where it cannot be made."""
    sizes = sizes_of(model_folder(config.policy.model))
    pace = ask_torch("node.policy.pace_probe", config.policy.device, config.policy.dtype, answer=Pace)
    if isinstance(pace, NoAnswer):
        raise ConfigurationError(f"the speed of this machine cannot be measured: {pace.reason}")
    machines = [StageMachine(f"machine {at} ({size(each)})", each, pace) for at, each in enumerate(others, start=2)]
    workload, plan, refusal = _workload(home, config, machine, sizes, None), None, None
    try:
        plan = plan_stages(config, sizes, machine, pace, pace, machines, workload, kept=_kept(home, config))
    except ConfigurationError as error:
        refusal = str(error)
    model = config.policy.model
    return StageFit(model=model, fits=plan is not None, layers=sizes.layers, pace=pace, plan=plan, refusal=refusal)


def _workload(home: Home, config: Config, machine: Machine, sizes: ModelSizes, vllm: Installed | None) -> Workload:
    return workload_of(
        config,
        load_tasks(config.tasks).values(),
        sizes,
        card_bytes=machine.device_bytes,
        vllm=vllm,
        has_donors=may_have_donors(home.donors),
    )


def _kept(home: Home, config: Config) -> Trained | None:
    """Returns what the newest checkpoint was trained with, if it is one of the configured model."""
    run = remembered_run(home.path)
    is_here = run is not None and is_same_model(str(run.value("policy.model")), config.policy.model)
    return trained_here(home) if is_here else None


def nearest_existing(path: Path) -> Path:
    """Returns the path, or the nearest folder above it that exists."""
    return next(each for each in (path, *path.parents) if each.exists())


def disk_facts(home: Home, config: Config) -> DiskFacts:
    """Returns the facts of the file system on which ``home`` is or would be made."""
    existing, newest = nearest_existing(home.path), next(reversed(rounds(home.checkpoints)), None)
    return DiskFacts(
        home.path,
        shutil.disk_usage(existing).free,
        None if os.access(existing, os.W_OK | os.X_OK) else how_to_write(existing),
        disk_bytes_below(newest) if newest is not None else first_checkpoint_bytes(config) or 0,
        newest is None,
    )


def first_checkpoint_bytes(config: Config) -> int | None:
    """Returns about how many bytes a run's first checkpoint takes; None where counting needs torch or the network."""
    name = config.policy.model
    if is_hub_id(name) and not Path(name).is_dir():
        return None
    try:
        sizes = known_sizes(model_folder(name))
    except (ConfigurationError, OSError):
        return None
    if sizes is None:
        return None
    rank = config.policy.adapter_rank
    if rank == "auto":
        rank = USUAL_RANK if BYTES_A_WEIGHT * sizes.parameters > MEMORY_SHARE * machine_bytes() else 0
    return BYTES_A_WEIGHT * (sizes.adapter_parameters(rank) if rank else sizes.parameters)


def clock_reading() -> ClockReading:
    return ClockReading(time.time(), time.monotonic())


def monotonic_steps_back() -> int:
    readings = [time.monotonic() for _ in range(CLOCK_READINGS)]
    return sum(after < before for before, after in pairwise(readings))


def newest_file_seconds(home: Path) -> float | None:
    """Returns the newest modification time of the files that a running node writes; None where there are none."""
    files = [home / "metrics.jsonl", *(home / "logs").glob("*.log"), *(home / "checkpoints").glob("round-*/state.json")]
    times = [path.stat().st_mtime for path in files if path.is_file()]
    return max(times, default=None)
