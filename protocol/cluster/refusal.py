"""Refusals of admission: a reason for programs and a message for people; and the checks that need only a clock.

A wrong clock is distinguished from an expired document: no document can be used before it was made, so that a document
from the future shows that one of two clocks is wrong. No document shows that a clock is ahead. A refusal for an expiry
therefore names this machine's time, and ``judge_clocks`` compares the clocks of the two ends of a connection. Times are
Unix seconds. No message holds a secret.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from protocol import errors, limits
from protocol.cluster.documents import Invitation
from protocol.errors import ProtocolError


class RefusalReason(StrEnum):
    """Why a member refuses a peer, a document or a change. The values are stable: they travel in ``HandshakeRefusal``,
    and counters and programs use them."""

    DAMAGED = "damaged"  # does not decode, is too large, or fails its checksum
    VERSION = "version"
    WRONG_SWARM = "wrong_swarm"
    WRONG_KEY = "wrong_key"  # not signed by the owner, or shown by another peer than it names
    CLOCK = "clock"
    NOT_YET_VALID = "not_yet_valid"
    EXPIRED = "expired"
    REVOKED = "revoked"
    NEEDS_OWNER = "needs_owner"
    TAKEN = "taken"  # all seats of the invitation
    FULL = "full"  # the cluster
    OUTDATED = "outdated"  # a list of revocations or a change of key older than the one here
    WRONG_PSK = "wrong_psk"  # the two ends of a connection hold different pre-shared keys
    NO_MEMBER = "no_member"  # the peer showed no credential


@dataclass(frozen=True, slots=True)
class AdmissionRefused:
    """A refusal with its reason."""

    reason: RefusalReason
    message: str  # what is wrong, and what to do


_REASONS: Final[dict[type[ProtocolError], RefusalReason]] = {
    errors.OversizedError: RefusalReason.DAMAGED,
    errors.MalformedError: RefusalReason.DAMAGED,
    errors.VersionError: RefusalReason.VERSION,
    errors.WrongSwarmError: RefusalReason.WRONG_SWARM,
    errors.SignatureError: RefusalReason.WRONG_KEY,
}
REMEDIES: Final = {
    RefusalReason.DAMAGED: "copy it again, whole, from the place where it was made",
    RefusalReason.VERSION: "use the same version of starling on both sides",
    RefusalReason.WRONG_SWARM: "ask the owner of the right cluster for an invite",
    RefusalReason.WRONG_KEY: "ask the cluster's owner for a new one, in person or where you are sure who answers",
}
NEW_INVITE: Final = "ask the cluster's owner for a new invite (made by: starling invite)"

_REFUSED_BY_PEER: Final = {
    RefusalReason.DAMAGED: "it could not read this node's credential; use the same version of starling on both sides",
    RefusalReason.VERSION: REMEDIES[RefusalReason.VERSION],
    RefusalReason.WRONG_SWARM: f"it belongs to another cluster; {REMEDIES[RefusalReason.WRONG_SWARM]}",
    RefusalReason.WRONG_KEY: f"this node's credential was made for another key, or by another owner; {NEW_INVITE}",
    RefusalReason.CLOCK: "one of the two clocks is wrong; set it (timedatectl set-ntp true), then try again",
    RefusalReason.NOT_YET_VALID: "the invitation is not valid yet",
    RefusalReason.EXPIRED: f"by its clock the invitation or the membership has expired; {NEW_INVITE}",
    RefusalReason.REVOKED: f"the cluster's owner revoked this node or its invitation; {NEW_INVITE}",
    RefusalReason.NEEDS_OWNER: "this invitation needs a certificate that the cluster's owner signs, and the member "
    "is not the owner's node: try again while the owner's node is up",
    RefusalReason.TAKEN: f"all seats of this invitation are taken; {NEW_INVITE}",
    RefusalReason.FULL: "the cluster has as many members as its manifest allows",
    RefusalReason.NO_MEMBER: f"this node showed no credential that makes it a member; {NEW_INVITE}",
}


def refused_for(what: str, error: ProtocolError) -> AdmissionRefused:
    """The refusal of a document whose opening raised ``error``."""
    reason = _REASONS[type(error)]
    return AdmissionRefused(reason, f"{what} cannot be used: {error}; {REMEDIES[reason]}")


def judge_clocks(ours_seconds: float, theirs_seconds: float) -> AdmissionRefused | None:
    """Refuses if the clocks of the two ends of a connection are too far apart."""
    ahead_seconds = theirs_seconds - ours_seconds
    if abs(ahead_seconds) <= limits.CLOCK_WINDOW_SECONDS:
        return None
    return AdmissionRefused(
        RefusalReason.CLOCK,
        f"the clocks are {abs(ahead_seconds):.0f} s apart: the peer's says {utc(theirs_seconds)}, this machine's "
        f"{utc(ours_seconds)}, and {limits.CLOCK_WINDOW_SECONDS:.0f} s are allowed; set the wrong one (timedatectl "
        "set-ntp true), then try again",
    )


def made_in_the_future(
    what: str, made_seconds: float, now_seconds: float, *, clock: str = "this machine's clock"
) -> AdmissionRefused | None:
    """Refuses if ``what`` was made later than now, so that one of two clocks is wrong."""
    ahead_seconds = made_seconds - now_seconds
    if ahead_seconds <= limits.CLOCK_WINDOW_SECONDS:
        return None
    return AdmissionRefused(
        RefusalReason.CLOCK,
        f"{what} was made at {utc(made_seconds)}, and by {clock} it is {utc(now_seconds)}, {ahead_seconds:.0f} s "
        "earlier: one of the two clocks is wrong; set it (timedatectl set-ntp true), then try again",
    )


def outside_validity(
    invitation: Invitation, now_seconds: float, *, what: str = "the invitation", clock: str = "this machine's clock"
) -> AdmissionRefused | None:
    """Refuses if ``now_seconds``, read from ``clock``, lies outside the times of an invitation."""
    clock_off = made_in_the_future(what, invitation.made_seconds, now_seconds, clock=clock)
    if clock_off is not None:
        return clock_off
    by_clock = f"by {clock} it is {utc(now_seconds)}"
    if now_seconds < invitation.valid_from_seconds - limits.CLOCK_WINDOW_SECONDS:
        return AdmissionRefused(
            RefusalReason.NOT_YET_VALID,
            f"{what} is valid from {utc(invitation.valid_from_seconds)}, and {by_clock}: try again then",
        )
    if now_seconds >= invitation.join_by_seconds:
        return AdmissionRefused(
            RefusalReason.EXPIRED,
            f"{what} expired at {utc(invitation.join_by_seconds)}, and {by_clock}: if that is right, {NEW_INVITE}; "
            "if not, set the clock",
        )
    return None


def membership_ended(until_seconds: float, now_seconds: float) -> AdmissionRefused | None:
    """Refuses if a membership has ended."""
    if now_seconds < until_seconds:
        return None
    return AdmissionRefused(
        RefusalReason.EXPIRED,
        f"the membership ended at {utc(until_seconds)}, and by this machine's clock it is {utc(now_seconds)}: if that "
        f"is right, {NEW_INVITE}; if not, set the clock",
    )


def utc(seconds: float) -> str:
    """A time in a form for people, to the second."""
    return datetime.fromtimestamp(min(max(seconds, 0.0), limits.UNIX_SECONDS), UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def refused_by_peer(reason: RefusalReason, ours_seconds: float, theirs_seconds: float) -> AdmissionRefused:
    """The other end's refusal of this node for ``reason``, with a message in our own words."""
    if reason is RefusalReason.CLOCK:
        clocks = judge_clocks(ours_seconds, theirs_seconds)
        if clocks is not None:
            return clocks
    return AdmissionRefused(
        reason, f"a member of the cluster refuses this node: {_REFUSED_BY_PEER.get(reason, str(reason))}"
    )
