"""Judgements of the machine: each a pure function from facts to one finding."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from node.doctor.findings import Finding, error, ok, warning
from node.doctor.machine_facts import ClockFacts, DiskFacts, MemoryFacts, TorchFacts
from node.printable import printable
from node.quantities import size
from protocol.limits import CLOCK_WINDOW_SECONDS

NODE_BYTES = 1_000_000_000  # all processes of a node with a built-in model took 712 MB in 60 rounds; and room to grow
MIN_NODE_BYTES = 700_000_000  # below, the system ends the learner before its first round
GPU_FREE_BYTES = 2_000_000_000
MIN_DISK_BYTES = 256 << 20  # below, the first checkpoint or blob may fail
RELEASED_SECONDS = 1_767_225_600.0  # 2026-01-01: this version did not exist before
FUTURE_SECONDS = 86_400.0  # that a file may lie ahead of the clock
JUMP_SECONDS = 1.0  # between wall and monotonic clock, while we look
PEER_OFFSET_SECONDS = 30.0  # of the peers' clocks, in the middle


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
            "run ./scripts/start.sh, or pip install --upgrade starling-swarm in this Python",
        )
    return ok("packages", f"{len(wanted)} within the ranges that were tested together")


def judge_torch(facts: TorchFacts) -> Finding:
    probe = facts.probe
    if probe is None:
        return error(
            "torch",
            f"torch does not work: {printable(facts.failure or 'no reason given', 400)}",
            "install it again: pip install --force-reinstall torch==2.13.*",
        )
    if probe.failure is not None:
        return error(
            "torch",
            f"{probe.version}: {printable(probe.failure, 400)}",
            "set policy.device=cpu, or install the driver and the build of torch for this device",
        )
    said = f"{probe.version}, {probe.device} ({printable(probe.device_name)}), {probe.dtype}"
    if probe.device_bytes is not None and probe.device_free_bytes is not None:
        said += f", {size(probe.device_free_bytes)} of {size(probe.device_bytes)} free"
        if probe.device_free_bytes < GPU_FREE_BYTES:
            return warning("torch", said, "end what else uses the GPU (nvidia-smi lists it), or set policy.device=cpu")
    else:
        said += f", {probe.threads} threads"
    if facts.nvidia_present and not probe.has_cuda:
        return warning(
            "torch",
            f"{said}; there is an NVIDIA GPU, which this build of torch cannot use",
            "pip install --force-reinstall torch==2.13.* from PyPI, without the index of CPU builds",
        )
    return ok("torch", said)


def judge_memory(facts: MemoryFacts, running: bool) -> Finding:
    """``running``: a node of ours has taken its memory already."""
    rooms = [room for room in (facts.available_bytes, facts.group_room_bytes) if room is not None]
    free = min(rooms, default=facts.total_bytes)
    narrow = facts.group_room_bytes is not None and free == facts.group_room_bytes
    said = f"{size(free)} available of {size(facts.total_bytes)}" + (
        ", by the limit of its control group" if narrow else ""
    )
    if running or free >= NODE_BYTES:
        return ok("memory", said)
    remedy = "end other programs" + (" or raise the container's memory limit" if narrow else "")
    said += f"; a node with a built-in model takes up to {size(NODE_BYTES)}"
    if free < MIN_NODE_BYTES:
        return error("memory", said, remedy)
    return warning("memory", said, f"{remedy}, or lower learner.batch_tokens and engine.rows")


def judge_disk(facts: DiskFacts, *, store_bytes: int, checkpoints_kept: int, log_bytes: int) -> Finding:
    """Against what the node may come to need: its store's limit, its checkpoints and one being written, its logs."""
    if not facts.writable:
        return error(
            "disk", f"{facts.path} cannot be written", "make the directory yours (chown), or choose another with --home"
        )
    need = max(0, store_bytes - facts.blob_bytes) + (checkpoints_kept + 1) * facts.checkpoint_bytes + log_bytes
    said = f"{size(facts.free_bytes)} free at {facts.path}; the node may come to use {size(need)} more"
    if facts.free_bytes < max(MIN_DISK_BYTES, 2 * facts.checkpoint_bytes):
        return error("disk", said, "free some space there, or choose another directory with --home")
    if facts.free_bytes < need:
        return warning("disk", said, "free some space there, or lower swarm.store_bytes")
    return ok("disk", said)


def judge_clock(facts: ClockFacts) -> Finding:
    now = facts.ended.wall_seconds
    remedy = "set the clock: turn on time synchronisation (timedatectl set-ntp true)"
    passed = facts.ended.monotonic_seconds - facts.began.monotonic_seconds
    jump = facts.ended.wall_seconds - facts.began.wall_seconds - passed
    if facts.steps_back or passed < 0:
        return error(
            "clock",
            f"the monotonic clock went back {max(1, facts.steps_back)} times while it was read",
            "report it to whoever runs this machine's virtualisation: deadlines cannot be kept here",
        )
    if now < RELEASED_SECONDS:
        return error("clock", "it is set to a time before this version existed", remedy)
    if facts.newest_file_seconds is not None and facts.newest_file_seconds > now + FUTURE_SECONDS:
        days = (facts.newest_file_seconds - now) / 86_400
        return error("clock", f"a file of this node is {days:.0f} days newer than now: the clock went back", remedy)
    if abs(jump) > JUMP_SECONDS:
        return warning("clock", f"it jumped by {jump:+.1f} s during this examination", remedy)
    offsets, refused = facts.peer_offsets_seconds, facts.refused_for_clock
    if offsets and abs(middle := median(offsets)) > PEER_OFFSET_SECONDS:
        where = "behind" if middle > 0 else "ahead of"
        return warning("clock", f"{abs(middle):.0f} s {where} the clocks of {len(offsets)} peers", remedy)
    if refused and not offsets:
        limit = f"{CLOCK_WINDOW_SECONDS:.0f} s"
        return error("clock", f"all peers' announcements ({refused}) were refused: over {limit} from our time", remedy)
    if offsets:
        return ok("clock", f"within {max(map(abs, offsets)):.1f} s of {len(offsets)} peers")
    return ok("clock", "runs forward; no peer is connected to compare it with")
