"""A list of swarms is what its signer signed, or a ``ProtocolError``, whatever a host of the file makes of it."""

from __future__ import annotations

import contextlib
from typing import Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import limits
from protocol.cluster.signed_document import sign_document
from protocol.errors import ClockError, OversizedError, ProtocolError
from protocol.manifest import Manifest
from protocol.swarm_list import SWARM_LIST_DOMAIN, OpenedSwarmList, open_swarm_list, sign_swarm_list
from scripts.vectors.cluster_vectors import CLUSTER_MADE, PEER, STRANGER, example_cluster
from scripts.vectors.swarm_list_vectors import MANIFEST, NOW_SECONDS, OPEN, PRIVATE, example_list
from tests.examples import examples
from tests.protocol.mutation import mutated

SOUND: Final = sign_swarm_list(PEER, example_list())


def opened(raw: bytes) -> OpenedSwarmList | None:
    with contextlib.suppress(ProtocolError):
        return open_swarm_list(raw, now_seconds=NOW_SECONDS)
    return None


def test_the_ids_are_computed_from_the_manifests() -> None:
    swarms = open_swarm_list(SOUND, now_seconds=NOW_SECONDS).swarms
    assert [each.swarm_id for each in swarms] == [MANIFEST.swarm_id, example_cluster().swarm_id]
    assert [(each.name, each.tasks) for each in swarms] == [
        ("lark", MANIFEST.tasks),
        ("lab", example_cluster().manifest.tasks),
    ]


@given(st.binary(max_size=400) | mutated([SOUND]))
@examples(400)
def test_no_change_of_a_list_is_taken(raw: bytes) -> None:
    assert opened(raw) is None or raw == SOUND


@given(st.data())
@examples(400)
def test_rightly_signed_nonsense_raises_protocol_errors_alone(data: st.DataObject) -> None:
    body = msgspec.msgpack.encode(example_list())
    payload = data.draw(mutated([msgspec.msgpack.encode((1, 2, msgspec.Raw(body)))]) | st.binary(max_size=300))
    opened(msgspec.msgpack.encode((payload, PEER.sign(SWARM_LIST_DOMAIN, payload))))


@given(st.binary(max_size=200) | mutated([OPEN.manifest, PRIVATE.manifest]), st.sampled_from(["open", "private"]))
@examples(200)
def test_whatever_stands_for_a_manifest_raises_protocol_errors_alone(manifest: bytes, kind: str) -> None:
    listed = msgspec.structs.replace(OPEN, manifest=manifest, kind=kind)
    found = opened(sign_document(PEER, SWARM_LIST_DOMAIN, example_list(swarms=(listed,))))
    if found is not None and kind == "private":
        assert manifest == PRIVATE.manifest


def test_a_list_is_valid_from_when_it_was_signed_until_it_expires() -> None:
    until_seconds = example_list().until_seconds
    for now_seconds in (CLUSTER_MADE - limits.CLOCK_WINDOW_SECONDS, until_seconds - 1):
        open_swarm_list(SOUND, now_seconds=now_seconds)
    for now_seconds in (CLUSTER_MADE - limits.CLOCK_WINDOW_SECONDS - 1, until_seconds):
        with pytest.raises(ClockError):
            open_swarm_list(SOUND, now_seconds=now_seconds)


def test_what_is_too_large_is_neither_signed_nor_read() -> None:
    many = example_list(swarms=(OPEN,) * limits.SWARMS_PER_LIST)
    assert opened(sign_swarm_list(PEER, many)) is not None
    with pytest.raises(ValueError):
        sign_swarm_list(PEER, example_list(swarms=(OPEN,) * (limits.SWARMS_PER_LIST + 1)))
    tasks = tuple((f"task {number:0{limits.NAME_BYTES - 5}}", 1, bytes(16)) for number in range(800))
    large = msgspec.structs.replace(OPEN, manifest=Manifest("lark", tasks).encode())
    with pytest.raises(ValueError):
        sign_swarm_list(PEER, example_list(swarms=(large,)))
    with pytest.raises(ValueError):
        sign_swarm_list(PEER, example_list(swarms=(msgspec.structs.replace(OPEN, manifest=b""),)))
    with pytest.raises(OversizedError):
        open_swarm_list(SOUND + bytes(limits.SWARM_LIST_BYTES), now_seconds=NOW_SECONDS)


def test_nobody_signs_in_the_name_of_another() -> None:
    with pytest.raises(ValueError):
        sign_swarm_list(STRANGER, example_list())
