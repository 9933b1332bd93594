"""Creating a private cluster and inviting to it: the files written, the output, and the refusals."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path

import pytest

from node.cli.verbs.swarm import addresses_to_invite
from protocol.cluster.admission import read_invite
from protocol.cluster.invite import Invite
from protocol.errors import RefusedError, UnreachableError
from protocol.identity import NodeKey
from swarm.exit_codes import ExitCode, exit_code_of

ADDRESS = f"/ip4/192.0.2.7/tcp/4001/p2p/{NodeKey(bytes(32)).peer_id}"


@pytest.fixture
def cluster(starling, tmp_path: Path) -> Path:
    """The directory of a new cluster."""
    assert starling("swarm", "create", "--private", "--name", "lab")[0] == 0
    return tmp_path / "home" / "cluster"


def test_create_writes_four_files_for_their_owner_alone_and_show_prints_the_terms_and_no_secret(
    starling, cluster: Path
) -> None:
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in cluster.iterdir()} == dict.fromkeys(
        ("manifest", "psk", "credential", "owner.key"), 0o600
    )
    code, shown, _ = starling("swarm", "show", "--json")
    facts = json.loads(shown)
    assert (code, facts["name"], facts["admission"]) == (0, "lab", "invitation")
    assert facts["owner"] == NodeKey.load(cluster / "owner.key").public_bytes.hex()
    code, text, _ = starling("swarm", "show")
    assert code == 0
    assert "lab" in text
    secrets = [(cluster / "psk").read_text(), NodeKey.load(cluster / "owner.key").private_bytes.hex()]
    assert not [secret for secret in secrets if secret in shown + text]


def test_invite_is_one_line_that_a_newcomer_can_use(starling, cluster: Path) -> None:
    code, text, _ = starling("invite", "--expires", "12h", "--seats", "3", "--for", "Wren", "--address", ADDRESS)
    assert code == 0
    assert len(text.splitlines()) == 1
    invite = read_invite(text, time.time())
    assert isinstance(invite, Invite)
    invitation = invite.invitation
    assert invitation.join_by_seconds - invitation.made_seconds == 12 * 3600
    assert (invitation.seats, invitation.name, invitation.needs_owner) == (3, "Wren", False)
    assert invitation.swarm_id.hex() == json.loads(starling("swarm", "show", "--json")[1])["swarm_id"]
    assert (invite.psk.hex(), invite.addresses) == ((cluster / "psk").read_text(), (ADDRESS,))


def test_a_qr_code_is_drawn_beside_the_one_line_and_not_in_it(starling, cluster: Path) -> None:
    code, text, drawn = starling("invite", "--address", ADDRESS, "--qr")
    assert code == 0 and isinstance(read_invite(text, time.time()), Invite)
    assert len(text.splitlines()) == 1
    rows = [row for row in drawn.splitlines() if row.strip()]
    assert len(rows) > 20 and max(map(len, rows)) <= 120, "it fits on a terminal"


def test_no_two_invites_are_equal_and_each_has_one_seat_by_default(starling, cluster: Path) -> None:
    invites = [read_invite(starling("invite")[1], time.time()) for _ in range(2)]
    assert len({invite.secret for invite in invites if isinstance(invite, Invite)}) == 2
    assert all(isinstance(invite, Invite) and invite.invitation.seats == 1 for invite in invites)


def test_cluster_of_an_owner_who_signs_everyone_in_makes_such_invites_alone(starling) -> None:
    assert starling("swarm", "create", "--private", "--name", "lab", "--owner-only")[0] == 0
    invite = read_invite(starling("invite")[1], time.time())
    assert isinstance(invite, Invite)
    assert invite.invitation.needs_owner


def test_owner_key_kept_elsewhere_is_asked_for_and_found_there(starling, tmp_path: Path) -> None:
    stick = str(tmp_path / "stick" / "owner.key")
    assert starling("swarm", "create", "--private", "--name", "lab", "--owner-key", stick)[0] == 0
    assert not (tmp_path / "home" / "cluster" / "owner.key").exists()
    assert json.loads(starling("swarm", "show", "--json")[1])["owner_key"] == "not on this machine"
    code, printed, error = starling("invite")
    assert (code, printed) == (77, "")
    assert "owner.key" in error
    assert starling("invite", "--owner-key", stick)[1].startswith("starling://1")
    NodeKey.load_or_create(tmp_path / "other.key")
    code, _, error = starling("invite", "--owner-key", str(tmp_path / "other.key"))
    assert code == 78
    assert str(tmp_path / "other.key") in error


def test_second_founding_is_refused_and_changes_nothing(starling, cluster: Path) -> None:
    before = {path: path.read_bytes() for path in cluster.iterdir()}
    code, _, error = starling("swarm", "create", "--private", "--name", "lab2")
    assert code == 78
    assert str(cluster) in error
    assert {path: path.read_bytes() for path in cluster.iterdir()} == before


@pytest.mark.parametrize("name", ["manifest", "psk", "owner.key"])
def test_file_that_others_may_read_is_refused_with_the_remedy(starling, cluster: Path, name: str) -> None:
    (cluster / name).chmod(0o640)
    code, printed, error = starling("invite")
    assert (code, printed) == (77, "")
    assert f"chmod 600 {cluster / name}" in error


@pytest.mark.parametrize("name", ["manifest", "psk"])
def test_damaged_file_is_refused_and_its_content_not_repeated(starling, cluster: Path, name: str) -> None:
    (cluster / name).write_bytes((cluster / name).read_bytes()[:-1] + b"!")
    code, printed, error = starling("invite")
    assert (code, printed) == (77, "")
    assert str(cluster / name) in error
    assert (cluster / "psk").read_text()[:-1] not in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("invite",), "swarm create"),
        (("swarm", "show"), "swarm create"),
        (("swarm", "create", "--no-private", "--name", "lab"), "--private"),
        (("swarm", "create", "--private", "--name", ""), "--name"),
        (("swarm", "create", "--private", "--name", "lab", "--members", "0"), "--members"),
        (("swarm", "create", "--private", "--name", "lab", "--membership", "soon"), "--membership soon"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else "",
)
def test_what_cannot_be_is_bad_configuration_and_writes_no_cluster(
    starling,
    tmp_path: Path,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    code, printed, error = starling(*arguments)
    assert (code, printed) == (78, "")
    assert words in error
    assert not (tmp_path / "home" / "cluster" / "manifest").exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [("--expires", "7 days"), ("--expires", "0d"), ("--seats", "0"), ("--address", "192.0.2.7:4001")],
)
def test_option_of_an_invite_that_cannot_be_is_named(starling, cluster: Path, option: str, value: str) -> None:
    code, printed, error = starling("invite", option, value)
    assert (code, printed) == (78, "")
    assert option in error


def test_host_that_a_private_cluster_refuses_ends_with_77_and_one_that_nobody_answers_with_69() -> None:
    assert exit_code_of(RefusedError("no member")) is ExitCode.REFUSED
    assert exit_code_of(UnreachableError("nobody there")) is ExitCode.UNREACHABLE


def test_invite_of_an_open_swarm_says_how_others_join_without_one(starling) -> None:
    code, _, error = starling("invite")
    assert code == 78 and "--peer ADDRESS" in error and "starling swarm create" in error


def test_invite_names_a_node_that_can_be_dialled_and_otherwise_the_relays_that_reach_it() -> None:
    own, relay, loopback = ADDRESS, f"/ip4/192.0.2.9/tcp/4001/p2p/{NodeKey(b'r' * 32).peer_id}", "/ip4/127.0.0.1/tcp/1"
    through = f"{relay}/p2p-circuit/p2p/{NodeKey(bytes(32)).peer_id}"
    assert addresses_to_invite([through, loopback, own], is_dialled=False) == [relay, own]
    assert addresses_to_invite([loopback, own, through], is_dialled=True) == [own, relay]
    assert addresses_to_invite([loopback], is_dialled=True) == [loopback]
    assert addresses_to_invite([own, own], is_dialled=True) == [own]


def test_invite_to_an_address_through_a_relay_names_the_relay(starling, cluster: Path) -> None:
    through = f"{ADDRESS}/p2p-circuit/p2p/{NodeKey(b'x' * 32).peer_id}"
    code, text, error = starling("invite", "--address", through, "--address", ADDRESS)
    invite = read_invite(text, time.time())
    assert code == 0 and isinstance(invite, Invite), error
    assert invite.addresses == (ADDRESS,)
