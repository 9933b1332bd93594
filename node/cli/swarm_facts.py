"""What ``starling swarm show`` prints: the terms of the cluster and its members. It holds no secret."""

from __future__ import annotations

import time
from typing import Any

from node.printable import printable
from protocol.cluster.admission import judge_as_made, still_member
from protocol.cluster.documents import Invitation, Revocations
from protocol.cluster.refusal import AdmissionRefused, utc
from protocol.identity import peer_id_of
from swarm.cluster.cluster_files import ClusterFiles, read_credentials, read_invitations, read_revocations
from swarm.cluster.roster import Member, Roster

DAY_SECONDS = 86_400


def cluster_facts(files: ClusterFiles) -> dict[str, Any]:
    """Returns the facts in the files of the data directory, which a running node keeps up to date. Raises
    ``IdentityError``."""
    credentials = read_credentials(files)
    cluster, manifest = credentials.cluster, credentials.cluster.manifest
    revocations, now_seconds = read_revocations(files, cluster), time.time()
    roster = Roster()
    for credential in (credentials.credential, *credentials.members):
        admitted = judge_as_made(now_seconds, cluster, revocations, roster.taken, credential)
        if not isinstance(admitted, AdmissionRefused):
            roster.add(admitted, credential, 0.0)
    invitations = read_invitations(files, cluster).values()
    return {
        "name": manifest.name,
        "swarm_id": cluster.swarm_id.hex(),
        "owner": manifest.owner.hex(),
        "owner_key": str(files.owner_key) if files.owner_key.exists() else "not on this machine",
        "admission": manifest.admission,
        "members_at_most": manifest.members,
        "membership_days": manifest.membership_seconds / DAY_SECONDS,
        "tasks": len(manifest.tasks),
        "members": [_member(list(roster.of(m.peer)), revocations, now_seconds) for m in roster],
        "revoked_peers": [peer_id_of(key) for key in revocations.peers] if revocations is not None else [],
        "revoked_invitations": [key.hex() for key in revocations.invitations] if revocations is not None else [],
        "invitations": [
            _invitation(each, len(roster.taken.get(each.key, ())), revocations, now_seconds) for each in invitations
        ],
    }


def cluster_lines(facts: dict[str, Any]) -> list[str]:
    """Returns the facts as lines of text."""
    shown = []
    for name, value in facts.items():
        if isinstance(value, list):
            continue
        text = printable(value) if isinstance(value, str) else f"{value:g}"
        shown.append(f"{name.replace('_', ' '):<16} {text}")
    shown.append("")
    for member in facts["members"]:
        until = utc(member["until_seconds"])
        state = "until" if member["state"] == "member" else f"{member['state']}, was until"
        shown.append(f"{member['peer']}  {printable(member['name']) or '(no name)':<16}  {state} {until}")
    for peer in facts["revoked_peers"]:
        if peer not in {member["peer"] for member in facts["members"]}:
            shown.append(f"{peer}  revoked")
    for each in facts["invitations"]:
        free = f", {each['seats'] - each['taken']} of {each['seats']} seats free" if each["state"] == "open" else ""
        name = printable(each["name"]) or "(no name)"
        shown.append(f"invitation {each['key']}  {name:<16}  {each['state']}, until {utc(each['until_seconds'])}{free}")
    listed = {each["key"] for each in facts["invitations"]}
    shown += [f"invitation {key}  revoked" for key in facts["revoked_invitations"] if key not in listed]
    return shown


def _member(known: list[Member], revocations: Revocations | None, now_seconds: float) -> dict[str, str | float | bool]:
    """Describes a member by a credential of its that is still valid, or else by its first one."""
    judged = [(member, still_member(now_seconds, member.admitted, revocations)) for member in known]
    member, why = next((each for each in judged if each[1] is None), judged[0])
    return {
        "peer": member.peer,
        "name": member.admitted.name,
        "state": "member" if why is None else str(why.reason),
        "certified": member.admitted.certified,
        "until_seconds": member.admitted.until_seconds,
    }


def _invitation(
    invitation: Invitation, taken: int, revocations: Revocations | None, now_seconds: float
) -> dict[str, str | int]:
    """Describes an invitation that was signed here; ``taken``: seats of it."""
    if revocations is not None and invitation.key in revocations.invitations:
        state = "revoked"
    elif taken >= invitation.seats:
        state = "used"
    else:
        state = "open" if now_seconds <= invitation.join_by_seconds else "expired"
    return {
        "key": invitation.key.hex(),
        "name": invitation.name,
        "state": state,
        "seats": invitation.seats,
        "taken": taken,
        "until_seconds": invitation.join_by_seconds,
    }
