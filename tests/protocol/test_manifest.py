from __future__ import annotations

import msgspec
import pytest

from protocol.errors import MalformedError, OversizedError
from protocol.limits import MANIFEST_BYTES, TASKS_PER_MANIFEST
from protocol.manifest import Manifest, decode_manifest, difference

SUM = ("chain_sum", 1, b"a" * 16)
WORDS = ("word_sorting", 3, b"b" * 16)


def test_order_of_tasks_does_not_matter_and_everything_else_does() -> None:
    manifest = Manifest("starling", (SUM, WORDS))
    assert len(manifest.swarm_id) == 16
    assert Manifest("starling", (WORDS, SUM)).swarm_id == manifest.swarm_id
    others = [
        Manifest("starlings", (SUM, WORDS)),
        Manifest("starling", (SUM,)),
        Manifest("starling", (SUM, ("word_sorting", 4, b"b" * 16))),
        Manifest("starling", (SUM, ("word_sorting", 3, b"c" * 16))),
        Manifest("starling", (("word_sorting", 1, b"a" * 16), ("chain_sum", 3, b"b" * 16))),
    ]
    assert len({other.swarm_id for other in others} | {manifest.swarm_id}) == len(others) + 1


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        (Manifest("lark", (SUM, WORDS)), ["'lark'", "'starling'"]),
        (Manifest("starling", (SUM,)), ["does not train on 'word_sorting'"]),
        (Manifest("starling", (SUM, WORDS, ("maze", 1, bytes(16)))), ["trains on 'maze' too"]),
        (Manifest("starling", (SUM, ("word_sorting", 4, b"b" * 16))), ["version of 'word_sorting'", "update"]),
        (Manifest("starling", (SUM, ("word_sorting", 3, b"c" * 16))), ["settings of 'word_sorting'"]),
        (Manifest("starling", tuple((f"t{n}\x1b", 1, bytes(16)) for n in range(9))), [r"'t2\x1b' and 6 more too; "]),
    ],
)
def test_what_makes_two_swarms_is_named(theirs: Manifest, named: list[str]) -> None:
    said = difference(Manifest("starling", (SUM, WORDS)), theirs)
    assert all(each in said for each in named)
    assert "\x1b" not in said


def test_canonical_bytes_come_back_as_the_sorted_manifest() -> None:
    assert decode_manifest(Manifest("starling", (WORDS, SUM)).encode()) == Manifest("starling", (SUM, WORDS))


@pytest.mark.parametrize(
    "raw",
    [
        msgspec.msgpack.encode(["starling"]),
        msgspec.msgpack.encode(["x" * 65, []]),
        msgspec.msgpack.encode(["starling", [["chain_sum", 1]]]),
        msgspec.msgpack.encode(["starling", [["chain_sum", -1, bytes(16)]]]),
        msgspec.msgpack.encode(["starling", [["chain_sum", 1, bytes(15)]]]),
        msgspec.msgpack.encode(["starling", [SUM] * (TASKS_PER_MANIFEST + 1)]),
    ],
)
def test_manifest_that_breaks_the_schema_is_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedError):
        decode_manifest(raw)


def test_manifest_over_its_bound_is_oversized() -> None:
    with pytest.raises(OversizedError):
        decode_manifest(bytes(MANIFEST_BYTES + 1))
