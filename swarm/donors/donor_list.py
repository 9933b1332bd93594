"""The donors that this node takes: ``DONOR_LIST`` in its data directory, written by the command line and the swarm
process, and the pure rules of admission.

An entry begins as an invitation, kept as the hash of its secret, and becomes a donor when the first peer shows
that secret. From then on the peer's id alone counts. An entry that was dropped stays, so that the id stays refused.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from protocol import limits
from protocol.donor_invitation import hash_of_secret
from protocol.errors import ConfigurationError, StorageError
from protocol.streams.lend_messages import LendRefusal
from swarm.atomic_file import write_atomically


class ListedDonor(Struct, frozen=True, forbid_unknown_fields=True):
    """An invitation that is open, a donor, or one that was dropped."""

    secret_hash: bytes
    name: str  # that the owner gave
    made_seconds: int  # Unix time
    until_seconds: int  # by which the invitation must be used
    peer: str = ""  # empty until it was used
    dropped_because: str = ""  # empty: it was not

    @property
    def id(self) -> str:
        """The peer id; of an invitation that nobody used, the hash of its secret in hexadecimal."""
        return self.peer or self.secret_hash.hex()

    def is_open(self, now_seconds: float) -> bool:
        """Whether a new peer may still become this donor."""
        return not self.peer and not self.dropped_because and now_seconds <= self.until_seconds


Donors = tuple[ListedDonor, ...]


@dataclass(frozen=True, slots=True)
class AdmittedDonor:
    donor: ListedDonor
    donors: Donors  # the list from now on


def admit(donors: Donors, peer: str, secret: bytes, now_seconds: float) -> AdmittedDonor | LendRefusal:
    """Returns the donor that ``peer`` is or becomes by ``secret``, or why it is none."""
    listed = [each for each in donors if each.peer == peer]
    if any(each.dropped_because for each in listed):
        return LendRefusal.DROPPED
    if listed:
        return AdmittedDonor(listed[0], donors)
    shown = hash_of_secret(secret)
    invited = [each for each in donors if each.secret_hash == shown and not each.peer and not each.dropped_because]
    if not invited:
        return LendRefusal.NOT_INVITED
    if not invited[0].is_open(now_seconds):
        return LendRefusal.EXPIRED
    donor = msgspec.structs.replace(invited[0], peer=peer)
    return AdmittedDonor(donor, tuple(donor if each is invited[0] else each for each in donors))


def invite(donors: Donors, secret: bytes, name: str, *, now_seconds: float, until_seconds: float) -> Donors:
    """Returns the list with one invitation more; invitations that nobody used in time leave it.

    Raises ``ConfigurationError`` where it is full.
    """
    kept = [each for each in donors if each.peer or each.dropped_because or each.is_open(now_seconds)]
    if len(kept) >= limits.DONORS:
        raise ConfigurationError(
            f"{len(kept)} donors and open invitations, at most {limits.DONORS} are possible: remove some with starling "
            "donor remove"
        )
    return (*kept, ListedDonor(hash_of_secret(secret), name, int(now_seconds), int(until_seconds)))


def drop(donors: Donors, peer: str, because: str) -> Donors:
    """Returns the list in which ``peer`` is refused for good."""
    return tuple(
        msgspec.structs.replace(each, dropped_because=because or "dropped") if each.peer == peer else each
        for each in donors
    )


def without(donors: Donors, id: str) -> Donors:
    """Returns the list without the entry of this id: the peer may be invited again."""
    return tuple(each for each in donors if each.id != id)


def read_donors(path: Path) -> Donors:
    """Returns the list; an empty one where there is no file. Raises ``StorageError``."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Donors)
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.DecodeError) as error:
        raise StorageError(
            f"the list of donors {path} is not readable ({error}): move it away, and invite anew"
        ) from None


def may_have_donors(path: Path) -> bool:
    """Whether the list has an invitation or a donor that was not dropped; True also where it cannot be read."""
    try:
        return not all(each.dropped_because for each in read_donors(path))
    except StorageError:
        return True


def change_donors(path: Path, change: Callable[[Donors], Iterable[ListedDonor]]) -> Donors:
    """Replaces the list by what ``change`` makes of it, and returns it; no other process changes it meanwhile. What
    ``change`` raises leaves it as it was. Raises ``StorageError``."""
    try:
        descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageError(f"{path} cannot be locked ({error.strerror}): free space, or check permissions") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        before = read_donors(path)
        after = tuple(change(before))
        if after != before:
            write_atomically(path, msgspec.json.encode(after))
        return after
    finally:
        os.close(descriptor)
