"""The manifest of an open swarm: its name and the tasks that all of its members can generate and score.

    swarm id = first 16 bytes of SHA-256("starling/manifest/1\\0" ‖ canonical bytes)

Canonical bytes are MessagePack, every value in its shortest form: ``[name, [[task, version, config hash], …]]``, tasks
sorted. Nodes that list equal tasks in any order therefore meet in one swarm; a task with another configuration makes
another swarm.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from protocol import limits, wire
from protocol.messages import Hash16, Name, TaskVersion

SWARM_ID_BYTES: Final = 16
TASKS_SHOWN: Final = 3
_DOMAIN: Final = b"starling/manifest/1\0"

TaskEntry = tuple[Name, TaskVersion, Hash16]  # task, its version, the hash of its configuration


class Manifest(Struct, frozen=True, array_like=True):
    """The terms of membership. Two manifests with the same tasks in another order have the same swarm id."""

    name: Name
    tasks: Annotated[tuple[TaskEntry, ...], Meta(max_length=limits.TASKS_PER_MANIFEST)]

    def encode(self) -> bytes:
        """The canonical bytes."""
        return msgspec.msgpack.encode(Manifest(self.name, tuple(sorted(self.tasks))))

    @property
    def swarm_id(self) -> bytes:
        """The 16 bytes that name this manifest in every announcement."""
        return hashlib.sha256(_DOMAIN + self.encode()).digest()[:SWARM_ID_BYTES]


def difference(ours: Manifest, theirs: Manifest) -> str:
    """What makes these two swarms of one, in words; names are a peer's and stand in quotes, escaped."""
    if ours.name != theirs.name:
        return f"it is named {theirs.name!r}, and ours {ours.name!r}"
    here, there = ({task: (version, hash_) for task, version, hash_ in of.tasks} for of in (ours, theirs))
    both = sorted(here.keys() & there.keys())
    versions = [task for task in both if here[task][0] != there[task][0]]
    settings = [task for task in both if here[task][0] == there[task][0] and here[task] != there[task]]
    differences = (
        (there.keys() - here.keys(), "it trains on {} too"),
        (here.keys() - there.keys(), "it does not train on {}"),
        (versions, "its release has another version of {}: the older of the two nodes needs an update"),
        (settings, "it has other settings of {}"),
    )
    found = [words.format(_listed(tasks)) for tasks, words in differences if tasks]
    return "; ".join(found) or "its manifest equals ours"


def _listed(tasks: Collection[str]) -> str:
    shown = [repr(task) for task in sorted(tasks)[:TASKS_SHOWN]]
    return ", ".join(shown) + (f" and {len(tasks) - len(shown)} more" if len(tasks) > len(shown) else "")


def decode_manifest(raw: bytes) -> Manifest:
    """The manifest in these bytes, canonical or not. Raises ``MalformedError`` or ``OversizedError``."""
    return wire.decode(raw, Manifest, max_bytes=limits.MANIFEST_BYTES)
