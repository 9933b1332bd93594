"""Why someone is not let in: a reason for programs, words for people; and what a clock alone can tell.

A clock that is wrong is told from a document that is over: nothing can be used before it was made, so a document from
the future means that one of two clocks is off. A clock that is ahead cannot be told from a document alone; an expiry
therefore names the time that this machine believes in, and ``judge_clocks`` compares the two ends of a connection.
Times are Unix seconds. No message holds a secret.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from protocol import errors, limits
from protocol.errors import ProtocolError
from protocol.membership import Invitation


class Reason(StrEnum):
    """Stable, short names for counters and programs."""

    DAMAGED = "damaged"  # does not decode, is too large, or fails its checksum
    VERSION = "version"
    WRONG_SWARM = "wrong_swarm"
    WRONG_KEY = "wrong_key"  # not signed by the owner, or shown by another peer than it names
    CLOCK = "clock"
    NOT_YET_VALID = "not_yet_valid"
    EXPIRED = "expired"
    REVOKED = "revoked"
    NEEDS_OWNER = "needs_owner"
    TAKEN = "taken"  # every seat of the invitation
    FULL = "full"  # the cluster
    OUTDATED = "outdated"  # a list of revocations older than the one here


@dataclass(frozen=True, slots=True)
class Refused:
    """No, and why."""

    reason: Reason
    message: str  # what is wrong, and what to do


_REASONS: Final[dict[type[ProtocolError], Reason]] = {
    errors.OversizedError: Reason.DAMAGED,
    errors.MalformedError: Reason.DAMAGED,
    errors.VersionError: Reason.VERSION,
    errors.WrongSwarmError: Reason.WRONG_SWARM,
    errors.SignatureError: Reason.WRONG_KEY,
}
REMEDIES: Final = {
    Reason.DAMAGED: "copy it again, whole and from where it was made",
    Reason.VERSION: "use the same version of starling on both sides",
    Reason.WRONG_SWARM: "ask the owner of the cluster that you mean for an invite",
    Reason.WRONG_KEY: "ask the cluster's owner, in person or where you know who answers, for a new one",
}
NEW_INVITE: Final = "ask the cluster's owner for a new invite (made by: starling invite)"


def refused_for(what: str, error: ProtocolError) -> Refused:
    """The refusal of a document that could not be opened."""
    reason = _REASONS[type(error)]
    return Refused(reason, f"{what} cannot be used: {error}; {REMEDIES[reason]}")


def judge_clocks(ours_seconds: float, theirs_seconds: float) -> Refused | None:
    """Compares the clocks of the two ends of a connection."""
    ahead_seconds = theirs_seconds - ours_seconds
    if abs(ahead_seconds) <= limits.CLOCK_WINDOW_SECONDS:
        return None
    return Refused(
        Reason.CLOCK,
        f"the clocks are {abs(ahead_seconds):.0f} s apart: the peer's says {utc(theirs_seconds)}, this machine's "
        f"{utc(ours_seconds)}, and {limits.CLOCK_WINDOW_SECONDS:.0f} s are allowed; set the wrong one (timedatectl "
        "set-ntp true), then try again",
    )


def from_the_future(
    what: str, made_seconds: float, now_seconds: float, *, clock: str = "this machine's clock"
) -> Refused | None:
    """Whether ``what`` was made later than now, so that one of two clocks is wrong."""
    ahead_seconds = made_seconds - now_seconds
    if ahead_seconds <= limits.CLOCK_WINDOW_SECONDS:
        return None
    return Refused(
        Reason.CLOCK,
        f"{what} was made at {utc(made_seconds)}, and by {clock} it is {utc(now_seconds)}, {ahead_seconds:.0f} s "
        "earlier: one of the two clocks is wrong; set it (timedatectl set-ntp true), then try again",
    )


def outside_of(
    invitation: Invitation, now_seconds: float, *, what: str = "the invitation", clock: str = "this machine's clock"
) -> Refused | None:
    """Whether ``now_seconds``, told by ``clock``, lies outside the times of an invitation."""
    clock_off = from_the_future(what, invitation.made_seconds, now_seconds, clock=clock)
    if clock_off is not None:
        return clock_off
    by_clock = f"by {clock} it is {utc(now_seconds)}"
    if now_seconds < invitation.valid_from_seconds - limits.CLOCK_WINDOW_SECONDS:
        return Refused(
            Reason.NOT_YET_VALID,
            f"{what} holds from {utc(invitation.valid_from_seconds)} on, and {by_clock}: try again then",
        )
    if now_seconds >= invitation.join_by_seconds:
        return Refused(
            Reason.EXPIRED,
            f"{what} expired at {utc(invitation.join_by_seconds)}, and {by_clock}: if that is right, {NEW_INVITE}; "
            "if not, set the clock",
        )
    return None


def over(until_seconds: float, now_seconds: float) -> Refused | None:
    """Whether a membership has ended."""
    if now_seconds < until_seconds:
        return None
    return Refused(
        Reason.EXPIRED,
        f"the membership ended at {utc(until_seconds)}, and by this machine's clock it is {utc(now_seconds)}: if that "
        f"is right, {NEW_INVITE}; if not, set the clock",
    )


def utc(seconds: float) -> str:
    """A time as people read it, to the second."""
    return datetime.fromtimestamp(min(max(seconds, 0.0), limits.UNIX_SECONDS), UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
