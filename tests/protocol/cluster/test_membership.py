"""Who is let into a private cluster: every refusal has its reason, and words that say what to do."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.cluster.admission import (
    Admitted,
    certify,
    judge_credential,
    judge_join,
    judge_revocations,
    read_manifest,
    still_member,
)
from protocol.cluster.cluster_manifest import open_manifest, sign_manifest
from protocol.cluster.documents import (
    CERTIFICATE_DOMAIN,
    Credential,
    open_certificate,
    open_invitation,
    open_revocations,
    sign_revocations,
)
from protocol.cluster.invite import decode_invite
from protocol.cluster.refusal import AdmissionRefused, RefusalReason, judge_clocks
from protocol.cluster.signed_document import sign_document
from protocol.errors import MalformedError, SignatureError, WrongSwarmError
from protocol.limits import REVOKED, UNIX_SECONDS

HOUR = 3600
DAY = 86_400


def shown(lab: Any, credential: bytes, *, now: float | None = None, **known: Any) -> Admitted | AdmissionRefused:
    """What a member says to ``lab.PEER`` that shows this."""
    arguments = {"cluster": lab.cluster, "revocations": None, "taken": {}, "peer": lab.PEER.public_bytes} | known
    return judge_credential(lab.MADE + HOUR if now is None else now, raw=credential, **arguments)


def asked(lab: Any, join: bytes, *, now: float | None = None, **known: Any) -> Admitted | AdmissionRefused:
    """What the owner's node says to ``lab.PEER`` that asks to join."""
    arguments = {"cluster": lab.cluster, "revocations": None, "taken": {}, "peer": lab.PEER.public_bytes} | known
    return judge_join(lab.MADE + HOUR if now is None else now, raw=join, **arguments)


def refused(answer: object, reason: RefusalReason, *words: str) -> None:
    assert isinstance(answer, AdmissionRefused), answer
    assert answer.reason is reason, answer
    assert all(word in answer.message for word in words), answer.message


def test_newcomer_with_an_open_invitation_is_a_member_at_once_and_without_the_owner(lab) -> None:
    admitted = shown(lab, lab.credential(lab.join(at=lab.MADE + HOUR)))
    until = lab.MADE + HOUR + lab.cluster.manifest.membership_seconds
    assert admitted == Admitted(lab.PEER.public_bytes, lab.INVITATION_KEY.public_bytes, False, until, "Wren")


def test_join_made_in_time_still_counts_for_a_member_that_meets_it_after_the_invitation_expired(lab) -> None:
    credential = lab.credential(lab.join(at=lab.MADE + 7 * DAY - 1))
    assert isinstance(shown(lab, credential, now=lab.MADE + 60 * DAY), Admitted)


def test_owner_answers_a_request_with_a_certificate_that_every_member_takes(lab) -> None:
    document = lab.invitation(needs_owner=True)
    now = lab.MADE + HOUR
    request = lab.join(at=now, document=document)
    refused(shown(lab, lab.credential(request)), RefusalReason.NEEDS_OWNER)
    admitted = asked(lab, request)
    assert isinstance(admitted, Admitted)
    certificate = Credential("certificate", certify(lab.OWNER, lab.cluster, admitted, now)).encode()
    assert shown(lab, certificate, now=now + DAY) == admitted


def test_cluster_that_admits_by_its_owner_alone_takes_no_open_join(lab) -> None:
    strict = type(lab)()
    strict.cluster = sign_manifest(lab.OWNER, lab.manifest(admission="owner"))
    refused(shown(strict, strict.credential(strict.join(at=lab.MADE + HOUR))), RefusalReason.NEEDS_OWNER)


def test_second_use_of_the_last_seat_is_refused_and_its_holder_is_not(lab) -> None:
    single = lab.invitation(seats=1)
    credential = lab.credential(lab.join(at=lab.MADE + HOUR, document=single))
    taken = {lab.INVITATION_KEY.public_bytes: {lab.STRANGER.public_bytes}}
    refused(shown(lab, credential, taken=taken), RefusalReason.TAKEN, "(1)", "starling invite")
    refused(asked(lab, lab.join(at=lab.MADE + HOUR, document=single), taken=taken), RefusalReason.TAKEN)
    mine = {lab.INVITATION_KEY.public_bytes: {lab.PEER.public_bytes}}
    assert isinstance(shown(lab, credential, taken=mine), Admitted)


def test_cluster_with_as_many_members_as_its_manifest_allows_takes_no_more(lab) -> None:
    taken = {bytes([number]) * 32: {bytes([number]) * 32} for number in range(8)}
    refused(shown(lab, lab.credential(lab.join()), taken=taken), RefusalReason.FULL, "8 members")


def test_credential_shown_by_another_peer_than_it_names(lab) -> None:
    stranger = lab.STRANGER.public_bytes
    refused(shown(lab, lab.credential(lab.join()), peer=stranger), RefusalReason.WRONG_KEY, lab.PEER.peer_id)
    refused(asked(lab, lab.join(at=lab.MADE + HOUR), peer=stranger), RefusalReason.WRONG_KEY, lab.STRANGER.peer_id)


def test_documents_of_another_swarm_of_the_same_owner(lab) -> None:
    elsewhere = {"document": lab.invitation(swarm_id=bytes(16))}
    refused(shown(lab, lab.credential(lab.join(**elsewhere))), RefusalReason.WRONG_SWARM, lab.cluster.swarm_id.hex())
    refused(asked(lab, lab.join(at=lab.MADE + HOUR, **elsewhere)), RefusalReason.WRONG_SWARM)
    other = sign_manifest(lab.OWNER, lab.manifest(name="other"))
    list_of_ours = sign_revocations(lab.OWNER, lab.revocations())
    refused(judge_revocations(other, None, list_of_ours), RefusalReason.WRONG_SWARM)
    admitted = shown(lab, lab.credential(lab.join()))
    assert isinstance(admitted, Admitted)
    certificate = Credential("certificate", certify(lab.OWNER, lab.cluster, admitted, lab.MADE)).encode()
    refused(shown(lab, certificate, cluster=other), RefusalReason.WRONG_SWARM)


def test_documents_signed_by_another_key_than_the_owner(lab) -> None:
    forged = lab.invitation(signer=lab.STRANGER)
    refused(shown(lab, lab.credential(lab.join(document=forged))), RefusalReason.WRONG_KEY)
    refused(asked(lab, lab.join(at=lab.MADE + HOUR, document=forged)), RefusalReason.WRONG_KEY)
    admitted = shown(lab, lab.credential(lab.join()))
    assert isinstance(admitted, Admitted)
    certificate = Credential("certificate", certify(lab.STRANGER, lab.cluster, admitted, lab.MADE)).encode()
    refused(shown(lab, certificate), RefusalReason.WRONG_KEY)
    refused(
        judge_revocations(lab.cluster, None, sign_revocations(lab.STRANGER, lab.revocations())), RefusalReason.WRONG_KEY
    )


def test_join_by_who_knows_the_invitation_and_not_its_secret(lab) -> None:
    guessed = type(lab)()
    guessed.INVITATION_KEY = lab.STRANGER
    join = guessed.join(document=lab.invitation())
    refused(shown(lab, lab.credential(join)), RefusalReason.WRONG_KEY)


def test_no_document_passes_for_one_of_another_kind(lab) -> None:
    invitation, join = lab.invitation(), lab.join()
    mixed: tuple[tuple[Literal["join", "certificate"], bytes], ...]
    mixed = (("certificate", invitation), ("certificate", join), ("join", invitation))
    for kind, document in mixed:
        refused(shown(lab, Credential(kind, document).encode()), RefusalReason.DAMAGED)
    with pytest.raises(SignatureError):  # the same fields, signed for another purpose
        body = open_invitation(invitation, owner=lab.OWNER.public_bytes)
        open_invitation(sign_document(lab.OWNER, b"starling/other/1", body), owner=lab.OWNER.public_bytes)


def test_revoked_peer_is_refused_whatever_it_shows_and_put_out_where_it_is_connected(lab) -> None:
    revoked = lab.revocations(peers=(lab.PEER.public_bytes,))
    credential = lab.credential(lab.join())
    admitted = shown(lab, credential)
    assert isinstance(admitted, Admitted)
    certificate = Credential("certificate", certify(lab.OWNER, lab.cluster, admitted, lab.MADE)).encode()
    refused(shown(lab, credential, revocations=revoked), RefusalReason.REVOKED, lab.PEER.peer_id)
    refused(shown(lab, certificate, revocations=revoked), RefusalReason.REVOKED)
    refused(asked(lab, lab.join(at=lab.MADE + HOUR), revocations=revoked), RefusalReason.REVOKED)
    refused(still_member(lab.MADE + HOUR, admitted, revoked), RefusalReason.REVOKED)
    assert still_member(lab.MADE + HOUR, admitted, lab.revocations(peers=(lab.STRANGER.public_bytes,))) is None


def test_invitation_taken_back_ends_those_who_joined_by_it_and_not_those_whom_the_owner_certified(lab) -> None:
    taken_back = lab.revocations(invitations=(lab.INVITATION_KEY.public_bytes,))
    admitted = shown(lab, lab.credential(lab.join()))
    assert isinstance(admitted, Admitted)
    certificate = Credential("certificate", certify(lab.OWNER, lab.cluster, admitted, lab.MADE)).encode()
    refused(shown(lab, lab.credential(lab.join()), revocations=taken_back), RefusalReason.REVOKED, "starling invite")
    refused(asked(lab, lab.join(at=lab.MADE + HOUR), revocations=taken_back), RefusalReason.REVOKED)
    refused(still_member(lab.MADE + HOUR, admitted, taken_back), RefusalReason.REVOKED)
    certified = shown(lab, certificate, revocations=taken_back)
    assert isinstance(certified, Admitted)
    assert still_member(lab.MADE + HOUR, certified, taken_back) is None


def test_later_list_of_revocations_replaces_the_earlier_one_and_never_the_other_way_round(lab) -> None:
    first, second = (lab.revocations(sequence=n, peers=(bytes([n]) * 32,)) for n in (1, 2))
    raw_first, raw_second = (sign_revocations(lab.OWNER, one) for one in (first, second))
    assert judge_revocations(lab.cluster, None, raw_first) == first
    assert judge_revocations(lab.cluster, first, raw_second) == second
    refused(judge_revocations(lab.cluster, second, raw_first), RefusalReason.OUTDATED, "number 1", "number 2")
    refused(judge_revocations(lab.cluster, second, raw_second), RefusalReason.OUTDATED)


def test_longest_list_of_revocations_fits_its_bounds_and_a_longer_one_is_refused_on_both_sides(lab) -> None:
    keys = [number.to_bytes(32, "big") for number in range(REVOKED + 1)]
    longest = lab.revocations(peers=tuple(keys[: REVOKED // 2]), invitations=tuple(keys[REVOKED // 2 : REVOKED]))
    raw = sign_revocations(lab.OWNER, longest)
    assert open_revocations(raw, owner=lab.OWNER.public_bytes) == longest
    with pytest.raises(ValueError, match=f"{REVOKED + 1} revocations; at most {REVOKED}"):
        sign_revocations(lab.OWNER, lab.revocations(peers=tuple(keys[:1]), invitations=tuple(keys[1:])))


def test_membership_ends_with_its_time_for_newcomers_and_for_who_is_connected(lab) -> None:
    credential = lab.credential(lab.join())
    until = lab.MADE + lab.cluster.manifest.membership_seconds
    admitted = shown(lab, credential, now=until - 1)
    assert isinstance(admitted, Admitted)
    assert still_member(until - 1, admitted, None) is None
    refused(shown(lab, credential, now=until), RefusalReason.EXPIRED, "this machine's clock", "starling invite")
    refused(still_member(until, admitted, None), RefusalReason.EXPIRED)
    certificate = Credential("certificate", certify(lab.OWNER, lab.cluster, admitted, lab.MADE)).encode()
    refused(shown(lab, certificate, now=until), RefusalReason.EXPIRED)


def test_join_after_the_invitation_expired_or_before_it_begins(lab) -> None:
    late = lab.join(at=lab.MADE + 7 * DAY)
    refused(shown(lab, lab.credential(late), now=lab.MADE + 7 * DAY), RefusalReason.EXPIRED, "the newcomer's clock")
    refused(asked(lab, late, now=lab.MADE + 7 * DAY), RefusalReason.EXPIRED, "this machine's clock")
    tomorrow = lab.invitation(valid_from_seconds=lab.MADE + DAY)
    early = lab.join(at=lab.MADE + HOUR, document=tomorrow)
    refused(shown(lab, lab.credential(early)), RefusalReason.NOT_YET_VALID)
    refused(asked(lab, early), RefusalReason.NOT_YET_VALID)


@pytest.mark.parametrize("off", [-HOUR, HOUR])
def test_clock_off_by_an_hour_either_way_is_told_from_every_other_fault(lab, off: int) -> None:
    refused(judge_clocks(lab.MADE, lab.MADE + off), RefusalReason.CLOCK, "3600 s apart", "timedatectl")
    now = lab.MADE + 2 * HOUR
    refused(asked(lab, lab.join(at=now + off), now=now), RefusalReason.CLOCK, "3600 s apart")


def test_join_or_certificate_from_the_future_means_a_wrong_clock(lab) -> None:
    now = lab.MADE + HOUR
    refused(shown(lab, lab.credential(lab.join(at=now + HOUR)), now=now), RefusalReason.CLOCK, "timedatectl")
    refused(
        shown(lab, lab.credential(lab.join(at=lab.MADE - HOUR)), now=now), RefusalReason.CLOCK, "the newcomer's clock"
    )
    admitted = shown(lab, lab.credential(lab.join()))
    assert isinstance(admitted, Admitted)
    certificate = Credential("certificate", certify(lab.OWNER, lab.cluster, admitted, now + HOUR)).encode()
    refused(shown(lab, certificate, now=now), RefusalReason.CLOCK, "3600 s")


@given(now=st.floats(-1e12, 1e15), joined=st.integers(0, UNIX_SECONDS), seats=st.integers(1, 3))
def test_any_time_at_all_gives_an_answer_and_only_times_within_all_bounds_admit(lab, now, joined, seats) -> None:
    document = lab.invitation(seats=seats)
    answer = shown(lab, lab.credential(lab.join(at=joined, document=document)), now=now)
    invitation = open_invitation(document, owner=lab.OWNER.public_bytes)
    inside = (
        joined - 300 <= now < joined + lab.cluster.manifest.membership_seconds
        and invitation.made_seconds - 300 <= joined < invitation.join_by_seconds
    )
    assert isinstance(answer, Admitted) is inside


def test_manifest_is_bound_to_swarm_id_and_owner(lab) -> None:
    document = lab.cluster.document
    assert open_manifest(document) == lab.cluster
    assert open_manifest(document, swarm_id=lab.cluster.swarm_id).manifest == lab.manifest()
    with pytest.raises(WrongSwarmError):
        open_manifest(document, swarm_id=bytes(16))
    with pytest.raises(ValueError, match="the owner that it names"):
        sign_manifest(lab.STRANGER, lab.manifest())
    others = [lab.manifest(**change) for change in ({"name": "lab2"}, {"members": 9}, {"made_seconds": 1})]
    assert len({sign_manifest(lab.OWNER, one).swarm_id for one in others} | {lab.cluster.swarm_id}) == 4


def test_newcomer_takes_the_manifest_that_its_invite_names_and_no_other(lab) -> None:
    invite = decode_invite(lab.invite())
    assert read_manifest(invite, lab.cluster.document) == lab.cluster
    refused(read_manifest(invite, sign_manifest(lab.OWNER, lab.manifest(name="x")).document), RefusalReason.WRONG_SWARM)
    strangers = sign_manifest(lab.STRANGER, lab.manifest(owner=lab.STRANGER.public_bytes))
    by_owner = lab.invitation(swarm_id=strangers.swarm_id)
    refused(
        read_manifest(decode_invite(lab.invite(by_owner)), strangers.document), RefusalReason.WRONG_KEY, "another owner"
    )


@pytest.mark.parametrize(
    "change",
    [{"name": ""}, {"admission": "anyone"}, {"members": 0}, {"membership_seconds": 0}, {"made_seconds": -1}],
    ids=str,
)
def test_manifest_that_every_reader_would_refuse_is_not_signed(lab, change) -> None:
    with pytest.raises(ValueError, match="must not be signed"):
        sign_manifest(lab.OWNER, lab.manifest(**change))


def test_field_that_a_later_minor_version_appended_is_ignored(lab) -> None:
    body = [lab.cluster.swarm_id, lab.PEER.public_bytes, bytes(32), 1, 2, "name", "appended"]
    payload = msgspec.msgpack.encode((1, 9, body))
    raw = msgspec.msgpack.encode((payload, lab.OWNER.sign(CERTIFICATE_DOMAIN, payload)))
    assert open_certificate(raw, owner=lab.OWNER.public_bytes).name == "name"
    with pytest.raises(MalformedError):
        open_certificate(raw + b"\0", owner=lab.OWNER.public_bytes)
