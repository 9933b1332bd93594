"""Whom an owner takes as a donor: pure rules, and the file that two processes change."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from msgspec import structs

from protocol import limits
from protocol.donor_invitation import hash_of_secret
from protocol.errors import ConfigurationError, StorageError
from protocol.streams.lend_messages import LendRefusal
from swarm.donors.donor_list import (
    AdmittedDonor,
    Donors,
    admit,
    change_donors,
    drop,
    invite,
    may_have_donors,
    read_donors,
    without,
)

SECRET, OTHER = bytes(32), bytes([1]) * 32


def invited(name: str = "attic", until: float = 100.0) -> Donors:
    return invite((), SECRET, name, now_seconds=0.0, until_seconds=until)


def test_the_first_peer_with_the_secret_becomes_the_donor_and_nobody_after_it() -> None:
    found = admit(invited(), "ada", SECRET, 5.0)
    assert isinstance(found, AdmittedDonor) and found.donor.peer == "ada"
    assert admit(found.donors, "bob", SECRET, 5.0) is LendRefusal.NOT_INVITED
    again = admit(found.donors, "ada", OTHER, 1e9)  # by its id alone, for as long as it is on the list
    assert isinstance(again, AdmittedDonor) and again.donors == found.donors


def test_a_wrong_secret_and_an_invitation_not_used_in_time_admit_nobody() -> None:
    assert admit(invited(), "ada", OTHER, 5.0) is LendRefusal.NOT_INVITED
    assert admit((), "ada", SECRET, 5.0) is LendRefusal.NOT_INVITED
    assert admit(invited(), "ada", SECRET, 101.0) is LendRefusal.EXPIRED


def test_a_dropped_donor_stays_refused_also_with_a_new_invitation_until_it_is_removed() -> None:
    found = admit(invited(), "ada", SECRET, 5.0)
    assert isinstance(found, AdmittedDonor)
    dropped = drop(found.donors, "ada", "it lied")
    again = invite(dropped, OTHER, "again", now_seconds=6.0, until_seconds=60.0)
    assert admit(again, "ada", OTHER, 7.0) is LendRefusal.DROPPED
    assert isinstance(admit(without(again, "ada"), "ada", OTHER, 7.0), AdmittedDonor)


def test_the_list_is_bounded_and_loses_what_nobody_used() -> None:
    donors: Donors = ()
    for number in range(limits.DONORS):
        donors = invite(donors, bytes([number]) * 32, f"{number}", now_seconds=0.0, until_seconds=10.0)
    with pytest.raises(ConfigurationError, match="at most"):
        invite(donors, SECRET, "one more", now_seconds=1.0, until_seconds=10.0)
    assert len(invite(donors, SECRET, "later", now_seconds=11.0, until_seconds=20.0)) == 1


def test_the_file_has_no_secret_and_no_change_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "donors.json"
    assert read_donors(path) == ()

    def add(number: int) -> None:
        secret = bytes([number]) * 32
        change_donors(path, lambda donors: invite(donors, secret, f"{number}", now_seconds=0.0, until_seconds=9.0))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read_donors(path)
    assert {each.secret_hash for each in found} == {hash_of_secret(bytes([number]) * 32) for number in range(12)}
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("[{]")
    with pytest.raises(StorageError, match="not readable"):
        read_donors(path)


def test_a_list_may_have_donors_unless_all_on_it_were_dropped(tmp_path: Path) -> None:
    path = tmp_path / "donors"
    assert not may_have_donors(path)
    change_donors(path, lambda donors: invite(donors, SECRET, "attic", now_seconds=0.0, until_seconds=9e9))
    assert may_have_donors(path)
    change_donors(path, lambda donors: [structs.replace(each, peer="ada") for each in donors])
    change_donors(path, lambda donors: drop(donors, "ada", "it lied"))
    assert not may_have_donors(path)
    path.write_text("[")
    assert may_have_donors(path)
