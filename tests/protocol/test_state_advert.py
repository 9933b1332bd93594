"""Announcements of states: the largest one fits, and a reader who does not know the kind leaves it alone."""

from __future__ import annotations

import pytest

from protocol import limits, wire
from protocol.errors import UnknownKindError
from protocol.identity import NodeKey
from protocol.messages import StateAdvert, StateBlob, TaskSuccess
from protocol.wire import open_announcement, seal

KEY, SWARM, NOW = NodeKey(bytes(range(32))), bytes(16), 1_790_000_000.0


def blob(number: int) -> StateBlob:
    return StateBlob(bytes([number]) * 32, limits.BLOB_BYTES, bytes([255 - number]) * 32)


def sealed(advert: StateAdvert) -> bytes:
    return seal(KEY, swarm_id=SWARM, sequence=1, time_seconds=NOW, body=advert)


LARGEST = StateAdvert(
    b"f" * 16,
    b"l" * 16,
    2**63 - 1,
    2**63 - 1,
    tuple(TaskSuccess("t" * limits.NAME_BYTES, 0.5, 2**63 - 1) for _ in range(limits.TASKS_PER_HEARTBEAT)),
    blob(0),
    tuple(blob(1 + number) for number in range(limits.STATE_DIFFS)),
)


def test_the_largest_state_passes() -> None:
    opened = open_announcement(sealed(LARGEST), swarm_id=SWARM, now_seconds=NOW)
    assert opened.body == LARGEST
    assert LARGEST.target == LARGEST.diffs[-1].weights
    assert LARGEST.blobs[0] == LARGEST.anchor


def test_a_state_without_diffs_is_its_anchor() -> None:
    advert = StateAdvert(b"f" * 16, b"l" * 16, 1, 0, (), blob(3), ())
    assert advert.blobs == (blob(3),)
    assert advert.target == blob(3).weights


def test_a_reader_from_before_states_refuses_the_kind_and_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "KINDS", wire.KINDS - {"state"})
    raw = seal_by_newer_version()
    with pytest.raises(UnknownKindError):
        open_announcement(raw, swarm_id=SWARM, now_seconds=NOW)


def seal_by_newer_version() -> bytes:
    with pytest.MonkeyPatch.context() as newer:
        newer.setattr(wire, "KINDS", wire.KINDS | {"state"})
        return sealed(LARGEST)
