"""What is read out of an invite, what a typed code leads to, and what is said before anybody is asked."""

from __future__ import annotations

import time
from pathlib import Path
from typing import cast

import pytest

from node.cli.spoken import places_of, wait_until_taken, with_doors
from node.configuration import Config
from node.home import home_at
from node.supervision.cluster_setup import ensure_joined
from protocol.cluster.spoken_code import new_code, read_spoken, secrets_of, shown_code
from protocol.errors import ConfigurationError, UnreachableError
from protocol.identity import NodeKey, create_private_file
from protocol.streams.letter_messages import LetterReceipt, LetterState
from swarm.client import SwarmClient
from swarm.cluster.cluster_files import SPOKEN
from swarm.exit_codes import ExitCode

PEER, RELAY = NodeKey(bytes(32)).peer_id, NodeKey(b"r" * 32).peer_id
CODE = new_code(lambda below: below // 7)
DOOR = f"/dns4/door.example/tcp/4001/p2p/{RELAY}"


def at(ip: str, port: int = 4001, peer: str = PEER) -> str:
    return f"/ip{6 if ':' in ip else 4}/{ip}/tcp/{port}/p2p/{peer}"


def doors(text: str, home: Path) -> list[str]:
    return read_spoken(with_doors(home_at(home, {}), text)).at.split(",")


def test_public_addresses_are_read_out_first_and_the_usual_port_not_at_all() -> None:
    addresses = [at("192.168.1.10", 4242), at("2001:db8::7"), at("203.0.113.7"), at("127.0.0.1")]
    assert places_of(addresses, PEER) == ["203.0.113.7", "[2001:db8::7]", "192.168.1.10:4242"]
    assert places_of([at("127.0.0.1", 4242)], PEER) == ["127.0.0.1:4242"]


def test_of_a_node_behind_a_router_the_relay_that_holds_the_invite_is_read_out() -> None:
    addresses = [f"{at('203.0.113.9', peer=RELAY)}/p2p-circuit/p2p/{PEER}", at("192.168.1.10")]
    assert places_of(addresses, RELAY) == ["203.0.113.9"]


@pytest.mark.parametrize(
    ("typed", "door"),
    [
        ("203.0.113.7", "/ip4/203.0.113.7/tcp/4001"),
        ("203.0.113.7:4242", "/ip4/203.0.113.7/tcp/4242"),
        ("2001:db8::7", "/ip6/2001:db8::7/tcp/4001"),
        ("[2001:db8::7]:4242", "/ip6/2001:db8::7/tcp/4242"),
        ("door.example.org", "/dns4/door.example.org/tcp/4001"),
        ("door:4242", "/dns4/door/tcp/4242"),
        ("", ""),
    ],
)
def test_what_is_typed_after_a_code_leads_to_one_machine(typed: str, door: str, tmp_path: Path) -> None:
    assert doors(f"{shown_code(CODE)}@{typed}", tmp_path) == [door]


@pytest.mark.parametrize("typed", ["a b", "https://example.org/x", "door:99999", "/ip4/203.0.113.7"])
def test_what_is_no_machine_is_refused(typed: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        doors(f"{CODE}@{typed}", tmp_path)


def test_the_name_of_a_cluster_on_a_list_that_was_read_stands_for_its_doors(starling, tmp_path: Path) -> None:
    for owner in ("one", "two"):
        home, file = ("--home", str(tmp_path / owner)), str(tmp_path / f"{owner}.list")
        assert starling("swarm", "create", "--private", "--name", "lab", *home)[0] == 0
        assert starling("swarm", "publish", file, "--door", DOOR, *home)[0] == 0
    reader = tmp_path / "home"
    assert doors(f"{CODE}@lab", reader) == ["/dns4/lab/tcp/4001"]
    assert starling("swarms", "--list", str(tmp_path / "one.list"))[0] == 0
    assert doors(f"{CODE}@lab", reader) == [DOOR]
    assert starling("swarms", "--list", str(tmp_path / "two.list"))[0] == 0
    with pytest.raises(ConfigurationError, match="different keys"):
        doors(f"{CODE}@lab", reader)


def test_a_mistyped_code_is_told_with_what_else_has_to_be_corrected(starling) -> None:
    wrong = CODE[:-1] + str((int(CODE[-1]) + 1) % 10)
    for verb in ("relay", "up"):
        code, _, error = starling(verb, "--join", f"{wrong}@203.0.113.7")
        assert code == ExitCode.BAD_CONFIGURATION
        assert "a digit is wrong" in error and CODE[:8] not in error


def test_a_code_that_is_read_out_needs_a_running_node_and_admits_one_newcomer_within_an_hour(starling) -> None:
    assert starling("swarm", "create", "--private", "--name", "lab")[0] == 0
    code, printed, error = starling("invite", "--spoken")
    assert (code, printed) == (ExitCode.UNREACHABLE, "") and "starling relay" in error
    for flags in (("--seats", "2"), ("--expires", "2h"), ("--qr",)):
        assert starling("invite", "--spoken", *flags)[:2] == (ExitCode.BAD_CONFIGURATION, "")


class Holder:
    """A stand-in for the swarm process, which has these receipts; None: it does not answer."""

    def __init__(self, *receipts: LetterReceipt | None) -> None:
        self._receipts = list(receipts)

    def letter(self, lookup: bytes) -> LetterReceipt:
        receipt = self._receipts.pop(0)
        if receipt is None:
            raise UnreachableError("the relay does not answer")
        return receipt


@pytest.mark.parametrize("state", ["expired", "unknown"])
def test_an_inviter_hears_who_came_and_that_nobody_did(state: LetterState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.cli.spoken.ASK_EVERY_SECONDS", 0.0)
    later, waiting, taken = time.time() + 60, LetterReceipt("waiting"), LetterReceipt("taken", PEER)

    def wait(*receipts: LetterReceipt | None, until: float = later) -> str:
        return wait_until_taken(cast(SwarmClient, Holder(*receipts)), bytes(16), "key", until)

    told = wait(waiting, None, waiting, taken)
    assert PEER in told and "starling revoke key" in told
    for receipts, until in (((waiting, LetterReceipt(state)), later), ((None,), 0.0), ((waiting,), 0.0)):
        with pytest.raises(UnreachableError):
            wait(*receipts, until=until)


def test_a_directory_that_joined_by_a_code_does_not_use_it_again(starling, tmp_path: Path) -> None:
    assert starling("swarm", "create", "--private", "--name", "lab")[0] == 0
    cluster = tmp_path / "home" / "cluster"
    create_private_file(cluster / SPOKEN, secrets_of(CODE).lookup.hex().encode())
    assert ensure_joined(home_at(None, {"STARLING_HOME": str(cluster.parent)}), Config(), CODE) is None
