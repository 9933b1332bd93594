"""Events that the supervisor writes among the learner's: peers, and what the node uses of machine and network."""

from __future__ import annotations

from msgspec import Struct

from node.events.timed import TimedEvent


class NamedPeer(Struct, frozen=True):
    """A peer as it calls itself, escaped. None of it is checked."""

    peer: str
    name: str
    model: str


class PeersChanged(TimedEvent, frozen=True, kw_only=True, tag="peers"):
    """Peers came or went. The supervisor writes it among the learner's events.

    A peer is present while it is connected or its heartbeats are fresh. ``node.api.presence`` bounds both lists.
    """

    round: int  # rounds done
    came: tuple[NamedPeer, ...]
    left: tuple[NamedPeer, ...]
    came_total: int  # those beyond the bound included
    left_total: int
    present: int  # afterwards


class DeviceUsage(Struct, frozen=True):
    """A GPU as its driver reports it, programs of others included. A figure that it does not report is None."""

    name: str
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    utilization_share: float | None  # of the last sampling period in which a kernel ran, 0 to 1
    power_watts: float | None
    power_limit_watts: float | None


class Usage(TimedEvent, frozen=True, kw_only=True, tag="usage"):
    """What the node uses of machine and network. The supervisor writes it among the learner's events.

    Memory is resident memory; None for a process that does not run, or where the system does not report it.
    """

    supervisor_bytes: int | None
    learner_bytes: int | None  # its scoring workers included
    swarm_bytes: int | None
    sent_bytes_total: int | None  # since the swarm process started; None while it does not answer
    received_bytes_total: int | None
    device: DeviceUsage | None = None  # the GPU that the learner uses; None where it uses none
