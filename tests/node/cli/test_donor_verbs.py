"""``starling donor invite``, ``list`` and ``remove`` without a node that runs."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from node.home import Home
from protocol.donor_invitation import decode_donor_invitation
from protocol.identity import NodeKey
from swarm.donors.donor_list import AdmittedDonor, admit, change_donors, drop, read_donors
from tests.factories import came
from tests.node.cli.test_cli import starling

__all__ = ["starling"]  # a fixture

ADDRESS = f"/ip4/192.0.2.7/tcp/4001/p2p/{NodeKey(bytes(32)).peer_id}"


def test_an_invitation_is_listed_becomes_a_donor_and_is_removed(starling, tmp_path: Path) -> None:
    code, text, said = starling("donor", "invite", "--for", "attic", "--address", ADDRESS)
    assert code == 0, said
    invitation = decode_donor_invitation(text)
    assert invitation.owner == NodeKey.load(Home(tmp_path).key).peer_id
    assert invitation.addresses == (ADDRESS,) and not invitation.cluster_invite
    path = Home(tmp_path).donors
    assert text.strip() not in path.read_text() and invitation.secret.hex() not in path.read_text()
    assert json.loads(starling("donor", "list", "--json")[1])[0]["state"] == "invited"

    found = admit(read_donors(path), "12D3", invitation.secret, 0.0)
    assert isinstance(found, AdmittedDonor)
    change_donors(path, lambda donors: found.donors)
    assert starling("donor", "list")[1].split() == ["donor", "attic", "12D3"]
    change_donors(path, lambda donors: drop(donors, "12D3", "it lied\x1b[2J"))
    shown = starling("donor", "list")[1]
    assert shown.startswith("dropped") and "it lied" in shown and "\x1b" not in shown
    assert starling("donor", "remove", "attic")[0] == 0
    assert starling("donor", "list", "--json")[1].strip() == "[]"
    code, _, said = starling("donor", "remove", "attic")
    assert code == 78 and "starling donor list" in said


def test_a_name_of_two_donors_is_refused_with_both_ids_and_an_id_removes_one(starling, tmp_path: Path) -> None:
    for _ in range(2):
        assert starling("donor", "invite", "--for", "attic", "--address", ADDRESS)[0] == 0
    path, peer = Home(tmp_path).donors, NodeKey(b"p" * 32).peer_id
    change_donors(path, lambda donors: [msgspec.structs.replace(donors[0], peer=peer), donors[1]])
    invitation = read_donors(path)[1].id
    code, _, said = starling("donor", "remove", "attic")
    assert code == 78 and peer in said and invitation in said
    assert len(read_donors(path)) == 2
    assert starling("donor", "remove", NodeKey(b"q" * 32).peer_id)[0] == 78
    assert starling("donor", "remove", invitation)[0] == 0
    assert [each.peer for each in read_donors(path)] == [peer]
    assert starling("donor", "remove", "attic")[0] == 0
    assert read_donors(path) == ()


def test_a_donor_is_removed_by_the_name_that_it_gives_itself_unless_another_was_invited_by_it(
    starling, tmp_path: Path
) -> None:
    assert starling("donor", "invite", "--address", ADDRESS)[0] == 0
    home, peer = Home(tmp_path), NodeKey(b"p" * 32).peer_id
    change_donors(home.donors, lambda donors: [msgspec.structs.replace(donors[0], peer=peer)])
    home.metrics.write_bytes(msgspec.json.encode(came((peer, "cellar"), (NodeKey(b"q" * 32).peer_id, "attic"))) + b"\n")
    code, _, said = starling("donor", "remove", "attic")  # of a peer that is no donor
    assert code == 78 and "cellar" in said
    assert starling("donor", "remove", "cellar")[0] == 0
    assert read_donors(home.donors) == ()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--address", "192.0.2.7"), "--address"),
        (("--expires", "soon"), "--expires"),
        (("--for", "a" * 65), "--for"),
    ],
)
def test_a_wrong_option_is_refused_and_nothing_is_invited(
    starling, tmp_path: Path, options: tuple[str, ...], complaint: str
) -> None:
    code, _, said = starling("donor", "invite", *options)
    assert code == 78 and complaint in said
    assert read_donors(Home(tmp_path).donors) == ()


def test_in_a_private_cluster_the_invitation_makes_a_member_too(starling, tmp_path: Path) -> None:
    assert starling("swarm", "create", "--private", "--name", "lab")[0] == 0
    code, text, said = starling("donor", "invite", "--address", ADDRESS)
    assert code == 0, said
    invitation = decode_donor_invitation(text)
    assert invitation.cluster_invite.startswith("starling://1") and invitation.swarm_name == "lab"
    (tmp_path / "cluster" / "owner.key").unlink()
    code, _, said = starling("donor", "invite", "--address", ADDRESS)
    assert code != 0 and "owner" in said
    assert len(read_donors(Home(tmp_path).donors)) == 1
