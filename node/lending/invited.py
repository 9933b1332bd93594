"""What a donor keeps of its invitation, ``lend.json`` in its data directory: a later start needs no more."""

from __future__ import annotations

from pathlib import Path

from node.home import Home
from protocol import limits
from protocol.donor_invitation import (
    DONOR_SCHEME,
    DonorInvitation,
    decode_donor_invitation,
    encode_donor_invitation,
)
from protocol.errors import ConfigurationError, ProtocolError, StorageError
from swarm.atomic_file import write_atomically


def invitation_text(given: str) -> str:
    """Returns ``given`` if it is a donor's invitation, otherwise the content of that file. Raises
    ``ConfigurationError``."""
    if DONOR_SCHEME in given.lower():
        return given
    try:
        with Path(given).expanduser().open(encoding="utf-8") as file:
            return file.read(2 * limits.LEND_INVITATION_CHARACTERS)
    except (OSError, UnicodeDecodeError):
        raise ConfigurationError(
            f"--to takes a donor's invitation, which begins with {DONOR_SCHEME}, or a file that holds one; this is "
            "neither. Its owner prints one with starling donor invite"
        ) from None


def invitation_of(home: Home, given: str | None) -> DonorInvitation:
    """Returns the invitation given, which is kept from now on, or the one that is kept. Raises ``ConfigurationError``,
    ``StorageError``."""
    if given is not None:
        try:
            invitation = decode_donor_invitation(invitation_text(given))
        except ProtocolError as error:
            raise ConfigurationError(f"--to is no donor's invitation: {error}; copy the whole of it") from None
        write_atomically(home.lend, encode_donor_invitation(invitation).encode())
        return invitation
    try:
        return decode_donor_invitation(home.lend.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(
            f"{home.path} was not lent before: give the owner's invitation, starling lend --to {DONOR_SCHEME}1…"
        ) from None
    except (OSError, ProtocolError, UnicodeDecodeError) as error:
        raise StorageError(f"{home.lend} is not readable ({error}): give the invitation again with --to") from None
