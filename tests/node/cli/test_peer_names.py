"""Names in place of peer ids: who is meant, and what is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from node.cli.peer_names import MAX_LISTED, KnownName, id_of, names_met
from node.home import Home
from protocol.errors import ConfigurationError
from protocol.identity import NodeKey
from tests.factories import came

ADA, BOB, EVE = (NodeKey(seed * 32).peer_id for seed in (b"a", b"b", b"e"))


def meant(named: str, *known: list[KnownName]) -> str:
    return id_of(named, *known, where="starling peers")


def refusal(named: str, *known: list[KnownName]) -> str:
    with pytest.raises(ConfigurationError) as raised:
        meant(named, *known)
    return str(raised.value)


def test_a_name_that_one_peer_has_is_that_peer_and_an_id_is_itself() -> None:
    known = [KnownName.of("robin", ADA), KnownName.of("wren", BOB), KnownName.of("robin", ADA)]
    assert meant("robin", known) == ADA
    assert meant(BOB, known) == BOB
    assert meant(EVE, known) == EVE  # never heard of


def test_a_name_that_two_have_is_refused_with_both_ids() -> None:
    said = refusal("robin", [KnownName.of("robin", ADA), KnownName.of("robin", BOB)])
    assert ADA in said and BOB in said


def test_a_stranger_that_takes_an_invited_name_or_an_id_as_its_name_is_not_meant() -> None:
    invited, met = [KnownName.of("robin", ADA)], [KnownName.of("robin", EVE), KnownName.of(BOB, EVE)]
    assert meant("robin", invited, met) == ADA
    assert meant(BOB, invited, met) == BOB


def test_an_unknown_name_is_refused_with_those_that_are_known_escaped_and_not_all_of_many() -> None:
    hostile = KnownName.of("robin\x1b[2J\nwren", EVE)
    said = refusal("lark", [KnownName.of("robin", ADA)], [hostile])
    assert "robin" in said and "starling peers" in said and said.isprintable()
    many = [KnownName.of(f"bird-{n}", f"id-{n}") for n in range(100)]
    assert refusal("lark", many).count("bird-") == MAX_LISTED
    assert refusal("", [KnownName.of("", ADA)])  # a peer without a name is not meant by no name


def test_names_of_peers_are_the_last_that_the_record_has(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert names_met(home) == []
    older, newer = came((ADA, "robin"), (BOB, "wren")), came((ADA, "lark"))
    (tmp_path / "metrics.jsonl.1").write_bytes(msgspec.json.encode(older) + b"\n")
    home.metrics.write_bytes(b'{"event":"peers","cut short\n' + msgspec.json.encode(newer) + b"\n")
    assert set(names_met(home)) == {KnownName("lark", ADA), KnownName("wren", BOB)}
