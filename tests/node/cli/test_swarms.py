"""``starling swarms`` and ``starling swarm publish``: what is listed, what is signed, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocol.identity import NodeKey
from protocol.swarm_list import open_swarm_list
from swarm.exit_codes import ExitCode
from tests.factories import came

DOOR = f"/dns4/door.example/tcp/4001/p2p/{NodeKey(bytes(32)).peer_id}"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STARLING_SWARM__LAN_DISCOVERY", "false")


@pytest.fixture
def published(starling, tmp_path: Path) -> Path:
    """A list of the swarm lark, from a directory of its own."""
    file, text = tmp_path / "swarms.list", "for \x1b[31mbeginners"
    home = ("--home", str(tmp_path / "publisher"))
    assert starling("swarm", "publish", str(file), "--swarm", "lark", "--door", DOOR, "--about", text, *home)[0] == 0
    return file


def listed(starling, *arguments: str) -> dict[str, Any]:
    code, text, error = starling("swarms", "--json", *arguments)
    assert code == 0, error
    return {each["name"]: each for each in json.loads(text)["swarms"]}


def test_a_directory_knows_its_own_swarm(starling, monkeypatch) -> None:
    assert listed(starling)["starling"]["source"] == "this directory"
    monkeypatch.setenv("STARLING_SWARM__NAME", "wrens")
    assert list(listed(starling)) == ["wrens"]


def test_what_was_published_is_read_and_known_from_then_on_without_the_file(starling, published: Path) -> None:
    signer = open_swarm_list(published.read_bytes(), now_seconds=None).signer
    lark = listed(starling, "--list", str(published))["lark"]
    assert (lark["kind"], lark["doors"], lark["obstacle"]) == ("open", [DOOR], None)
    assert lark["about"].isprintable() and all(task["ours"] for task in lark["tasks"])
    assert (lark["vouched_by"]["signer"], lark["vouched_by"]["seen_before"]) == (signer, False)
    published.unlink()
    assert listed(starling)["lark"]["vouched_by"]["seen_before"]
    code, text, _ = starling("swarms")
    assert code == 0 and DOOR in text and signer in text and "\x1b" not in text


def test_a_list_of_lists_vouches_for_their_swarms_under_the_own_key(starling, published: Path, tmp_path: Path) -> None:
    both = tmp_path / "both.list"
    code, text, error = starling(
        "swarm", "publish", str(both), "--door", DOOR, "--also", str(published), "--expires", "12h", "--json"
    )
    assert code == 0, error
    opened = open_swarm_list(both.read_bytes(), now_seconds=None)
    assert [each.name for each in opened.swarms] == ["starling", "lark"]
    assert opened.signer == json.loads(text)["signer"] == NodeKey.load(tmp_path / "home" / "identity.key").peer_id
    assert opened.content.until_seconds - opened.content.made_seconds == 12 * 3600


def test_a_private_cluster_is_published_without_a_way_in(starling, tmp_path: Path) -> None:
    assert starling("swarm", "create", "--private", "--name", "lab")[0] == 0
    file = tmp_path / "lab.list"
    assert starling("swarm", "publish", str(file))[0] == 0
    raw = file.read_bytes()
    secrets = [(tmp_path / "home" / "cluster" / "psk").read_text(), "psk"]
    assert not [secret for secret in secrets if secret.encode() in raw or bytes.fromhex(secrets[0]) in raw]
    shutil.move(tmp_path / "home", tmp_path / "owner")
    assert listed(starling, "--list", str(file))["lab"]["kind"] == "private"
    code, _, error = starling("up", "--swarm", "lab")
    assert code == ExitCode.BAD_CONFIGURATION and "invite" in error


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--door", "192.0.2.7:4001"),
        ("--door", DOOR, "--expires", "never"),
        ("--door", DOOR, "--swarm", "w" * 65),
        ("--door", DOOR, "--about", "w" * 201),
        ("--door", DOOR, "--by", "w" * 65),
    ],
    ids=lambda arguments: " ".join(arguments)[-20:],
)
def test_a_list_by_which_nobody_could_join_is_not_published(
    starling, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    code, _, error = starling("swarm", "publish", str(tmp_path / "list"), *arguments)
    assert code == ExitCode.BAD_CONFIGURATION and error
    assert not (tmp_path / "list").exists()


def test_a_start_by_a_name_is_refused_with_what_is_known(starling, published: Path) -> None:
    assert starling("swarms", "--list", str(published))[0] == 0
    code, _, error = starling("up", "--swarm", "larx")
    assert code == ExitCode.BAD_CONFIGURATION and "lark" in error
    code, _, error = starling("up", "--list", str(published))
    assert code == ExitCode.BAD_CONFIGURATION and "--swarm" in error
    published.write_bytes(b"<html>")
    code, _, error = starling("up", "--swarm", "lark", "--list", str(published))
    assert code == ExitCode.REFUSED and str(published) in error


def test_a_start_by_a_friend_is_refused_with_those_that_were_met(starling, tmp_path: Path) -> None:
    robin = NodeKey(b"r" * 32).peer_id
    code, _, error = starling("up", "--friend", "robin")
    assert code == ExitCode.BAD_CONFIGURATION and "--peer" in error
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    (home / "metrics.jsonl").write_bytes(msgspec.json.encode(came((robin, "robin"))) + b"\n")
    code, _, error = starling("up", "--friend", "wren")
    assert code == ExitCode.BAD_CONFIGURATION and "robin" in error
    code, _, error = starling("up", "--friend", "robin")
    assert code == ExitCode.BAD_CONFIGURATION and robin in error and "--peer" in error
