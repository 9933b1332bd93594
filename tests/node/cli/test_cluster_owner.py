"""What the owner signs from the command line: revocations and changes of key, carried by file, and shown by show."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from node.configuration.sources import load_config
from node.home import Home
from node.supervision.cluster_setup import credentials_of, ensure_joined, invite_text
from protocol.cluster.documents import Credential, open_key_change, open_revocations, sign_join
from protocol.cluster.invite import decode_invite
from protocol.errors import ConfigurationError, RefusedError
from protocol.identity import NodeKey
from swarm.cluster.cluster_files import cluster_files, current_psk, read_cluster, read_credentials
from swarm.cluster.membership import encode_members
from tests.factories import came

Starling = Callable[..., tuple[int, str, str]]
PEER = NodeKey(b"p" * 32)


@pytest.fixture
def starling(starling: Starling) -> Starling:
    """Runs the command in a data directory that has founded a cluster. Returns exit code, output, errors."""
    assert starling("swarm", "create", "--private", "--name", "lab")[0] == 0
    return starling


def facts(starling: Starling) -> dict[str, list[str]]:
    return dict(json.loads(starling("swarm", "show", "--json")[1]))


def test_founder_is_the_first_member_and_shown_as_such(starling: Starling, tmp_path: Path) -> None:
    (member,) = json.loads(starling("swarm", "show", "--json")[1])["members"]
    founder = NodeKey.load(tmp_path / "home" / "identity.key").peer_id
    assert (member["peer"], member["state"], member["certified"]) == (founder, "member", True)
    assert founder in starling("swarm", "show")[1]


def test_revoked_peers_and_invites_are_listed_together_under_a_rising_number(
    starling: Starling, tmp_path: Path
) -> None:
    invite = starling("invite")[1]
    code, output, _ = starling("revoke", PEER.peer_id)
    assert code == 0 and "starling swarm apply" in output and "starling up" in output  # since no node runs here
    assert starling("revoke", invite)[0] == 0
    code, again, _ = starling("revoke", PEER.peer_id)
    assert code == 0 and "starling swarm apply" not in again  # nothing new was signed
    shown = facts(starling)
    assert shown["revoked_peers"] == [PEER.peer_id]
    assert shown["revoked_invitations"] == [decode_invite(invite).invitation.key.hex()]
    path = tmp_path / "home" / "cluster" / "revocations"
    owner = NodeKey.load(tmp_path / "home" / "cluster" / "owner.key").public_bytes
    assert open_revocations(path.read_bytes(), owner=owner).sequence == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert f"{PEER.peer_id}  revoked" in starling("swarm", "show")[1]


def join_by(invite: str, peer: NodeKey, home: Path) -> None:
    """Makes ``peer`` a member that joined by ``invite``, as the owner's node notes it."""
    opened = decode_invite(invite)
    join = sign_join(opened.key, peer, invitation=opened.document, time_seconds=time.time())
    files = cluster_files(home)
    known = read_credentials(files).members
    files.keep("members", encode_members([*known, Credential("join", join).encode()]))


def test_a_member_is_revoked_and_readmitted_by_the_name_that_it_was_invited_by(
    starling: Starling, tmp_path: Path
) -> None:
    home, stranger = tmp_path / "home", NodeKey(b"s" * 32)
    join_by(starling("invite", "--for", "robin")[1], PEER, home)
    (home / "metrics.jsonl").write_bytes(
        msgspec.json.encode(came((stranger.peer_id, "robin"), (stranger.peer_id, "lark"))) + b"\n"
    )
    code, output, _ = starling("revoke", "robin")
    assert code == 0 and f"robin is {PEER.peer_id}" in output
    assert facts(starling)["revoked_peers"] == [PEER.peer_id]
    assert starling("readmit", "robin")[0] == 0
    assert facts(starling)["revoked_peers"] == []
    assert starling("revoke", "lark")[0] == 0  # nobody was invited as lark: the peer that calls itself so
    assert facts(starling)["revoked_peers"] == [stranger.peer_id]


def test_an_invite_that_nobody_used_is_revoked_by_its_name_and_a_name_of_two_is_refused(
    starling: Starling, tmp_path: Path
) -> None:
    home, first = tmp_path / "home", starling("invite", "--for", "robin")[1]
    key = decode_invite(first).invitation.key.hex()
    assert starling("revoke", "robin")[0] == 0
    assert facts(starling)["revoked_invitations"] == [key]
    assert starling("readmit", "robin")[0] == 0
    join_by(first, PEER, home)
    other = decode_invite(starling("invite", "--for", "robin")[1]).invitation.key.hex()
    code, _, error = starling("revoke", "robin")
    assert code == 78 and f"member {PEER.peer_id}" in error and f"open invitation {other}" in error
    assert key not in error  # its one seat is the member's
    assert starling("revoke", other)[0] == 0
    assert starling("revoke", "robin")[0] == 0  # the one robin that is not revoked
    assert (facts(starling)["revoked_peers"], facts(starling)["revoked_invitations"]) == ([PEER.peer_id], [other])
    shown = starling("swarm", "show")[1]
    assert f"invitation {key}  robin" in shown and f"invitation {other}  robin" in shown
    secret = decode_invite(first).secret
    assert secret not in (home / "cluster" / "invitations").read_bytes() and secret.hex() not in shown


def test_what_is_neither_peer_nor_invite_and_this_node_itself_cannot_be_revoked(starling: Starling) -> None:
    for nonsense in ("nobody", "starling://1abc", PEER.peer_id[:-1]):
        code, _, error = starling("revoke", nonsense)
        assert code == 78 and "starling swarm show" in error
    ourselves = json.loads(starling("swarm", "show", "--json")[1])["members"][0]["peer"]
    assert starling("revoke", ourselves)[0] == 78
    assert facts(starling)["revoked_peers"] == []


def test_another_key_is_in_every_later_invite_and_the_former_one_holds_for_its_grace(
    starling: Starling, tmp_path: Path
) -> None:
    files = cluster_files(tmp_path / "home")
    cluster, first = read_cluster(files), decode_invite(starling("invite")[1]).psk
    for _ in range(6):
        code, output, _ = starling("swarm", "rotate-key", "--grace", "2d")
        assert code == 0 and "starling swarm apply" in output
    psk = current_psk(files, cluster)
    assert decode_invite(starling("invite")[1]).psk == psk != first
    change = open_key_change((files.directory / "key-change").read_bytes(), owner=cluster.manifest.owner)
    assert change.sequence == 6 and len(change.former) == 4
    assert abs(change.former[0].until_seconds - time.time() - 2 * 86_400) < 600
    shown = starling("swarm", "show")[1] + output
    assert psk.hex() not in shown and first.hex() not in shown


def test_only_the_owner_signs_and_a_member_takes_what_is_carried_to_it_once(
    starling: Starling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = tmp_path / "home" / "cluster"
    stick = tmp_path / "owner.key"
    cluster.joinpath("owner.key").rename(stick)
    assert starling("revoke", PEER.peer_id)[0] == 77
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    for name in ("manifest", "psk", "credential"):
        (elsewhere / "cluster").mkdir(exist_ok=True)
        (elsewhere / "cluster" / name).write_bytes((cluster / name).read_bytes())
        (elsewhere / "cluster" / name).chmod(0o600)
    assert starling("revoke", PEER.peer_id, "--owner-key", str(stick))[0] == 0
    assert starling("swarm", "rotate-key", "--owner-key", str(stick))[0] == 0
    monkeypatch.setenv("STARLING_HOME", str(elsewhere))
    for name in ("revocations", "key-change"):
        assert starling("swarm", "apply", str(cluster / name))[0] == 0
        assert (elsewhere / "cluster" / name).read_bytes() == (cluster / name).read_bytes()
        before = (elsewhere / "cluster" / name).read_bytes()
        assert starling("swarm", "apply", str(cluster / name))[0] == 77  # it has it already
        assert (elsewhere / "cluster" / name).read_bytes() == before
    assert starling("swarm", "apply", str(cluster / "manifest"))[0] == 77
    assert starling("swarm", "apply", str(tmp_path / "nothing"))[0] == 78


def test_directory_of_one_cluster_refuses_the_invite_of_another_and_ignores_one_that_it_joined_by(
    starling: Starling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Home(tmp_path / "home")
    monkeypatch.setenv("STARLING_HOME", str(tmp_path / "other"))
    assert starling("swarm", "create", "--private", "--name", "other")[0] == 0
    foreign = starling("invite")[1]
    with pytest.raises(ConfigurationError, match="lab"):
        ensure_joined(ours, load_config(ours.path, {}, {}), foreign)


def test_credentials_that_do_not_admit_the_node_end_it_before_anything_is_started(
    starling: Starling, tmp_path: Path
) -> None:
    home = Home(tmp_path / "home")
    key = NodeKey.load(home.key)
    credentials = credentials_of(home, key)
    assert credentials is not None and credentials.cluster.manifest.name == "lab"
    (home.path / "cluster" / "owner.key").rename(tmp_path / "owner.key")
    with pytest.raises(RefusedError) as refused:
        credentials_of(home, PEER)
    assert "wrong_key" in f"{refused.value.reason} {refused.value}"


def test_join_takes_an_invite_or_a_file_that_holds_one(tmp_path: Path) -> None:
    file = tmp_path / "invite"
    file.write_text("starling://1abc\n")
    assert invite_text(str(file)).strip() == invite_text(" starling://1abc").strip() == "starling://1abc"
    with pytest.raises(ConfigurationError, match="--join"):
        invite_text(str(tmp_path / "nothing"))
    assert load_config(tmp_path, {"STARLING_JOIN": "starling://1abc"}, {}) == load_config(tmp_path, {}, {})


def test_readmitted_peers_and_invites_are_in_no_later_list_and_the_owner_is_told_both_ways_back(
    starling: Starling, tmp_path: Path
) -> None:
    invite = starling("invite")[1]
    for target in (PEER.peer_id, invite):
        starling("revoke", target)
    code, output, _ = starling("readmit", PEER.peer_id)
    assert code == 0 and "starling swarm apply" in output and "--join INVITE" in output
    assert starling("readmit", invite)[0] == 0
    assert facts(starling)["revoked_peers"] == facts(starling)["revoked_invitations"] == []
    files = cluster_files(tmp_path / "home")
    document = (files.directory / "revocations").read_bytes()
    assert open_revocations(document, owner=read_cluster(files).manifest.owner).sequence == 4
    code, output, _ = starling("readmit", PEER.peer_id)
    assert code == 0 and "not revoked" in output
    assert (files.directory / "revocations").read_bytes() == document


def test_member_that_is_no_owner_is_sent_to_the_owner_and_not_to_a_backup(starling: Starling, tmp_path: Path) -> None:
    (tmp_path / "home" / "cluster" / "owner.key").unlink()
    for verb in (("invite",), ("revoke", PEER.peer_id), ("readmit", PEER.peer_id), ("swarm", "rotate-key")):
        code, _, error = starling(*verb)
        assert code == 77 and "ask the owner" in error and "--owner-key" in error and "backup" not in error
