"""Judgements of the machine: each a pure function from facts to one finding."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from node.doctor.findings import Finding, error, ok, warning
from node.doctor.gpu_devices import WSL2
from node.doctor.machine_facts import ClockFacts, DiskFacts, MemoryFacts, PowerFacts, TorchFacts
from node.fit.table import FitReport
from node.policy.device_probe_result import TorchProbe
from node.printable import printable
from node.quantities import counted, size, times
from node.supervision.watching.clock_watch import judge_offsets
from protocol.limits import CLOCK_WINDOW_SECONDS

MIN_NODE_BYTES = 700_000_000  # with less, the system kills the learner before its first round
MIN_GPU_FREE_BYTES = 2_000_000_000
MIN_DISK_BYTES = 256 << 20  # with less, writing the first checkpoint or blob may fail
RELEASED_SECONDS = 1_767_225_600.0  # Unix time of 2026-01-01: this version did not exist before
MAX_FUTURE_SECONDS = 86_400.0  # how far a file's time may lie ahead of the clock
MAX_JUMP_SECONDS = 1.0  # between wall clock and monotonic clock, during the examination


def judge_python(version: str, wanted: str) -> Finding:
    if SpecifierSet(wanted).contains(version, prereleases=True):
        return ok("python", f"{version} (wanted {wanted})")
    return error("python", f"{version} is not {wanted}", f"install Python {wanted} and run ./scripts/start.sh again")


def judge_packages(wanted: tuple[str, ...], installed: Mapping[str, str | None]) -> Finding:
    """``installed``: version by canonical name, None for what is missing."""
    wrong = []
    for text in wanted:
        requirement = Requirement(text)
        version = installed.get(canonicalize_name(requirement.name))
        if version is None:
            wrong.append(f"{requirement.name} is missing (wanted {requirement.specifier})")
        elif not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version} is not {requirement.specifier}")
    if wrong:
        return error(
            "packages",
            "; ".join(wrong),
            "run ./scripts/start.sh, or in this Python: pip install --upgrade starling-swarm",
        )
    return ok("packages", f"{len(wanted)} packages within the tested ranges")


def judge_torch(facts: TorchFacts) -> Finding:
    probe = facts.probe
    if probe is None:
        return error(
            "torch",
            f"torch does not work: {printable(facts.failure or 'no reason given', 400)}",
            "reinstall it: pip install --force-reinstall torch==2.13.*",
        )
    if probe.failure is not None:
        return error(
            "torch",
            f"{probe.version}: {printable(probe.failure, 400)}",
            "set policy.device=cpu, or install the driver and the build of torch for this device",
        )
    built_for = "" if probe.hip is None else f", ROCm {printable(probe.hip)}"
    message = f"{probe.version}{built_for}, {probe.device} ({printable(probe.device_name)}), {probe.dtype}"
    if probe.device_bytes is not None and probe.device_free_bytes is not None:
        message += f", {size(probe.device_free_bytes)} of {size(probe.device_bytes)} free"
        if probe.device_free_bytes < MIN_GPU_FREE_BYTES:
            remedy = "stop other programs that use the GPU (nvidia-smi lists them), or set policy.device=cpu"
            return warning("torch", message, remedy)
    else:
        message += f", {counted(probe.threads, 'thread')}"
    if facts.nvidia_present and not probe.has_cuda:
        return warning(
            "torch",
            f"{message}; this build of torch cannot use the NVIDIA GPU of this machine",
            "pip install --force-reinstall torch==2.13.* from PyPI, without the index of CPU builds",
        )
    return ok("torch", message)


def judge_power(facts: PowerFacts, probe: TorchProbe | None) -> Finding:
    """Says what slows this machine down, and which graphics are not used."""
    said = []
    if facts.throttled:
        said.append(f"the processor slowed down for its heat {times(facts.throttled)} since the machine's start")
    if WSL2 in facts.graphics:
        said.append(
            "WSL2: memory is the virtual machine's (memory= in .wslconfig), and other machines reach this one with "
            "networkingMode=mirrored there alone"
        )
    unused = [maker for maker in facts.graphics if maker in ("Intel", "AMD")]
    if unused and (probe is None or probe.device == "cpu"):
        said.append(f"graphics of {' and '.join(unused)} are not used with this build of torch")
    message = "; ".join(said) or "nothing known slows this machine down"
    if facts.on_battery:
        remedy = "plug it in, or train only then: --set machine.pause_when=battery"
        return warning("machine", f"it runs on battery, slower and not for long; {message}", remedy)
    return ok("machine", message)


def judge_memory(facts: MemoryFacts, running: bool, fit: FitReport | str, stages: int = 0) -> Finding:
    """``running``: whether a node runs here, which has its memory already. ``fit``: the plan, or why there is none.
    ``stages``: with how many machines this one shares the model's layers."""
    if stages:
        return ok(
            "memory",
            f"the model's layers are divided among this machine and {counted(stages, 'other')} once these are "
            "connected; starling fit MODEL --with 2GB,4GB shows beforehand what each would hold",
        )
    if isinstance(fit, str) or fit.refusal is not None:
        refusal = fit if isinstance(fit, str) else fit.refusal
        return error("memory", printable(refusal or "", 800), "see starling fit, which plans without starting a node")
    rooms = [room for room in (facts.available_bytes, facts.group_room_bytes) if room is not None]
    free = min(rooms, default=facts.total_bytes)
    narrow = facts.group_room_bytes is not None and free == facts.group_room_bytes
    message = f"{size(free)} available of {size(facts.total_bytes)}" + (
        ", limited by the control group" if narrow else ""
    )
    message += f"; planned is {fit.choice}"
    needed_bytes = max(phase.host_bytes for phase in fit.phases)
    if running or free >= needed_bytes:
        return ok("memory", message)
    remedy = "stop other programs" + (" or raise the container's memory limit" if narrow else "")
    message += f"; the plan needs up to {size(needed_bytes)} of main memory"
    if free < MIN_NODE_BYTES:
        return error("memory", message, remedy)
    return warning("memory", message, f"{remedy}, or lower learner.batch_tokens and engine.rows")


def judge_room(facts: DiskFacts) -> Finding:
    """Compares the free space with the next checkpoint alone."""
    if facts.free_bytes >= facts.checkpoint_bytes:
        return ok("disk", f"{size(facts.free_bytes)} free at {facts.path}")
    about = "about " if facts.is_estimate else ""
    return warning(
        "disk",
        f"{size(facts.free_bytes)} free at {facts.path}, and the next checkpoint needs {about}"
        f"{size(facts.checkpoint_bytes)}: what this run learns cannot be kept",
        "free some space there; the node tries again until there is room. Or choose another directory with --home",
    )


def judge_disk(
    facts: DiskFacts, *, blob_bytes: int, store_bytes: int, checkpoints_kept: int, log_bytes: int
) -> Finding:
    """Compares the free space with what the node may come to need: its store's limit, of which ``blob_bytes`` are
    taken already, its checkpoints and one that is being written, its logs."""
    if facts.to_write is not None:
        return error("disk", f"{facts.path} cannot be written", facts.to_write)
    need_bytes = max(0, store_bytes - blob_bytes) + (checkpoints_kept + 1) * facts.checkpoint_bytes + log_bytes
    next_one = f"the next checkpoint needs {size(facts.checkpoint_bytes)}, " if facts.checkpoint_bytes else ""
    message = f"{size(facts.free_bytes)} free at {facts.path}; {next_one}the node may need {size(need_bytes)} more"
    if facts.free_bytes < max(MIN_DISK_BYTES, 2 * facts.checkpoint_bytes):
        return error("disk", message, "free some space there, or choose another directory with --home")
    if facts.free_bytes < need_bytes:
        return warning("disk", message, "free some space there, or lower swarm.store_bytes")
    return ok("disk", message)


def judge_clock(facts: ClockFacts) -> Finding:
    now = facts.ended.wall_seconds
    remedy = "set the clock: turn on time synchronisation (timedatectl set-ntp true)"
    elapsed_seconds = facts.ended.monotonic_seconds - facts.began.monotonic_seconds
    jump_seconds = facts.ended.wall_seconds - facts.began.wall_seconds - elapsed_seconds
    if facts.steps_back or elapsed_seconds < 0:
        return error(
            "clock",
            f"the monotonic clock went back {times(max(1, facts.steps_back))} while it was read",
            "report it to the operator of this machine's virtualisation: no deadline is reliable here",
        )
    if now < RELEASED_SECONDS:
        return error("clock", "the clock is set to a time before this version existed", remedy)
    if facts.newest_file_seconds is not None and facts.newest_file_seconds > now + MAX_FUTURE_SECONDS:
        days = (facts.newest_file_seconds - now) / 86_400
        return error("clock", f"a file of this node is {days:.0f} days newer than now: the clock went back", remedy)
    if abs(jump_seconds) > MAX_JUMP_SECONDS:
        return warning("clock", f"the clock jumped by {jump_seconds:+.1f} s during this examination", remedy)
    offsets, refused = facts.peer_offsets_seconds, facts.refused_for_clock
    verdict = judge_offsets(offsets)
    if verdict is not None:
        judge = error if verdict.ours and abs(median(offsets)) > CLOCK_WINDOW_SECONDS else warning
        return judge("clock", verdict.message, verdict.remedy)
    if refused and not offsets:
        limit = f"{CLOCK_WINDOW_SECONDS:.0f} s"
        return error(
            "clock", f"all peers' announcements ({refused}) were refused: their time is over {limit} from ours", remedy
        )
    if offsets:
        return ok("clock", f"within {max(map(abs, offsets)):.1f} s of {counted(len(offsets), 'peer')}")
    return ok("clock", "runs forward; no connected peer to compare it with")
