"""What ``starling lend`` needs before it starts: an invitation, a model, a directory of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from node.home import Home, lock_home
from node.lending.invited import invitation_of
from node.lending.lending_output import LendingLines, lender_lines
from node.lending.lending_setup import LendingSetup
from node.lending.lent_engine import model_for
from node.lending.starting import prepare_lending
from node.supervision.outcome import RunOutcome
from protocol.donor_invitation import DonorInvitation, encode_donor_invitation
from protocol.errors import ConfigurationError
from protocol.identity import NodeKey
from protocol.streams.lend_messages import LendTerms
from swarm.api import LendingStatus, SwarmStatus
from swarm.exit_codes import ExitCode

OWNER = NodeKey(bytes(32)).peer_id
ADDRESS = f"/ip4/192.0.2.7/tcp/4001/p2p/{OWNER}"
INVITATION = DonorInvitation(OWNER, (ADDRESS,), "starling", bytes(range(16)), bytes([7]) * 32)
TEXT = encode_donor_invitation(INVITATION)


def terms(model: str) -> LendTerms:
    return LendTerms(model, 0, False, "auto", bytes(16))


def test_the_first_start_takes_an_invitation_as_text_or_file_and_later_ones_need_none(tmp_path: Path) -> None:
    home = Home(tmp_path / "lent")
    home.prepare()
    with pytest.raises(ConfigurationError, match="give the owner's invitation"):
        invitation_of(home, None)
    file = tmp_path / "invitation.txt"
    file.write_text(f"  {TEXT}\n")
    assert invitation_of(home, str(file)) == invitation_of(home, TEXT) == invitation_of(home, None) == INVITATION
    assert home.lend.stat().st_mode & 0o777 == 0o600
    for wrong in (TEXT[:-3], str(tmp_path / "nothing"), "starling://1abc"):
        with pytest.raises(ConfigurationError, match="--to") as refused:
            invitation_of(home, wrong)
        assert TEXT[20:40] not in str(refused.value)


def test_the_settings_are_those_of_the_owners_swarm(tmp_path: Path) -> None:
    home = Home(tmp_path / "lent")
    prepared = prepare_lending(home, {}, {"policy.model": "./mine", "swarm.lan_discovery": "false"}, TEXT)
    assert not isinstance(prepared, RunOutcome)
    lock, settings, lending = prepared
    assert (settings.peers, settings.swarm_id, settings.swarm_name) == ((ADDRESS,), bytes(range(16)).hex(), "starling")
    assert not settings.relay and settings.name.startswith("donor-") and not settings.manifest
    assert (lending.owner, lending.model) == (OWNER, "./mine")
    assert lending.secret not in repr(lending)
    taken = prepare_lending(home, {}, {}, TEXT)
    assert isinstance(taken, RunOutcome) and taken.exit_code == ExitCode.TRY_AGAIN
    lock.release()


def test_a_wrong_setting_is_refused_before_anything_is_kept(tmp_path: Path) -> None:
    home = Home(tmp_path / "lent")
    with pytest.raises(ConfigurationError, match="nonsense"):
        prepare_lending(home, {}, {"nonsense": "1"}, TEXT)
    assert not home.lend.exists()
    lock = lock_home(Home(tmp_path))
    assert not isinstance(lock, RunOutcome)


def test_a_folder_of_the_owners_is_never_opened_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model_for(terms("builtin:wren"), "") == "builtin:wren"
    assert model_for(terms("Qwen/Qwen3-0.6B"), "") == "Qwen/Qwen3-0.6B"
    assert model_for(terms("/home/ann/model"), "./mine") == "./mine"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some" / "folder").mkdir(parents=True)
    for folder in ("/home/ann/model", "./model", "~/model", "model", "a/b/c", "some/folder", "../model"):
        with pytest.raises(ConfigurationError, match="--model"):
            model_for(terms(folder), "")


def test_what_a_donor_prints_and_what_status_says_of_it(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("w") as out:
        say = LendingLines(out, clock=lambda: 0.0)
        say("lending", {"owner": OWNER, "model": "a\x1b[2Jb", "family": "", "layers": False})
        say("waiting", {"because": "two\nlines"})
        say("lending", {"owner": OWNER, "model": "m", "family": "", "layers": True})
        say("holding", {"first": 2, "last": 13, "layers": 24, "bytes": 412_000_000})
        say("computed", {"tokens": 6000, "seconds": 20.0})
    shown = path.read_text()
    assert "\x1b" not in shown and len(shown.splitlines()) == 5
    assert "layers 3 to 13 of 24, 412.0 MB" in shown and "300/s" in shown
    status = SwarmStatus(
        "12D3", "lab", "ab", (), 5.0, 1, None, 10, 20, 0, {}, {}, has_learner=False, lending=LendingStatus(OWNER, "m")
    )
    assert status.lending is not None
    lines = list(lender_lines(status, status.lending))
    assert lines[1:3] == [f"owner     {OWNER}", "lends     m"]
    assert list(lender_lines(status, LendingStatus(OWNER, "m", layers=True)))[2] == "lends     layers of m"
    assert list(lender_lines(status, LendingStatus(OWNER, waits_because="no room")))[2] == "waits     no room"


def test_the_setup_of_the_process_is_json() -> None:
    import msgspec

    setup = LendingSetup(OWNER, "00", "", "auto", "auto", 0)
    assert msgspec.json.decode(json.dumps(msgspec.to_builtins(setup)), type=LendingSetup) == setup
