"""The invite string: it comes back whole from a chat, says what is wrong with it, and never shows what it hides."""

from __future__ import annotations

import io
import re
import traceback
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.pretty import pprint

from protocol import base58
from protocol.cluster.admission import read_invite
from protocol.cluster.documents import open_invitation
from protocol.cluster.invite import SCHEME, address_to_invite, decode_invite, encode_invite
from protocol.cluster.refusal import AdmissionRefused, RefusalReason
from protocol.errors import MalformedError, OversizedError, ProtocolError, SignatureError
from protocol.identity import NodeKey
from protocol.limits import INVITE_ADDRESSES, INVITE_CHARACTERS

HOUR = 3600


def read(text: str, lab: Any, *, after: float = HOUR) -> object:
    return read_invite(text, lab.MADE + after)


def refused(answer: object, reason: RefusalReason, *words: str) -> None:
    assert isinstance(answer, AdmissionRefused), answer
    assert answer.reason is reason, answer
    assert all(word in answer.message for word in words), answer.message


def test_invite_holds_all_that_a_newcomer_needs(lab) -> None:
    invite = decode_invite(lab.invite())
    assert invite.document == lab.invitation()
    assert invite.invitation == open_invitation(lab.invitation(), owner=lab.OWNER.public_bytes)
    assert invite.secret == lab.INVITATION_KEY.private_bytes
    assert invite.key.public_bytes == invite.invitation.key
    assert (invite.owner, invite.psk, invite.addresses) == (lab.OWNER.public_bytes, lab.PSK, lab.ADDRESSES)
    assert read(lab.invite(), lab) == invite


def test_invite_with_two_addresses_is_short_enough_for_a_chat_message_and_has_no_character_that_chats_format(
    lab,
) -> None:
    text = lab.invite(lab.invitation(name="x" * 20))
    assert len(text) < 520
    assert re.fullmatch(r"starling://1[1-9A-HJ-NP-Za-km-z]+", text)
    longest = lab.invite(lab.invitation(name="ж" * 32), addresses=[self_address(n) for n in range(INVITE_ADDRESSES)])
    assert len(longest) < INVITE_CHARACTERS
    assert len(decode_invite(longest).addresses) == INVITE_ADDRESSES


def self_address(number: int) -> str:
    return f"/ip6/2001:db8::{number + 1}/tcp/65535/p2p/{NodeKey(bytes([number]) * 32).peer_id}"


@pytest.mark.parametrize("form", ["<{}>", "`{}`", "  {}\n", "({}).", '"{}",', "**{}**"])
def test_what_a_chat_puts_around_an_invite_is_taken_off(lab, form: str) -> None:
    text = lab.invite()
    assert decode_invite(form.format(text)) == decode_invite(text)


def test_invite_that_was_wrapped_or_whose_scheme_was_capitalised_is_read(lab) -> None:
    text = lab.invite()
    wrapped = "\r\n   ".join(text[start : start + 40] for start in range(0, len(text), 40))
    assert decode_invite(wrapped.replace("starling://", "Starling://")) == decode_invite(text)


@given(ip=st.ip_addresses(), port=st.integers(1, 65_535), seed=st.binary(min_size=32, max_size=32))
def test_every_address_comes_back(lab, ip, port, seed) -> None:
    address = f"/ip{ip.version}/{ip}/tcp/{port}/p2p/{NodeKey(seed).peer_id}"
    assert decode_invite(lab.invite(addresses=[address])).addresses == (address,)


def test_a_member_behind_a_relay_is_invited_to_by_the_relays_own_address(lab) -> None:
    relay, member = self_address(1), NodeKey(bytes([2]) * 32).peer_id
    assert address_to_invite(f"{relay}/p2p-circuit/p2p/{member}") == relay == address_to_invite(relay)
    assert decode_invite(lab.invite(addresses=[relay])).addresses == (relay,)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "/ip4/192.0.2.1/tcp/4001",
        "/dns4/a.example/tcp/1/p2p/{}",
        "/ip4/192.0.2.1/udp/1/p2p/{}",
        "/ip4/192.0.2.1/tcp/0/p2p/{}",
        "/ip4/::1/tcp/1/p2p/{}",
        "/ip6/fe80::1%eth0/tcp/1/p2p/{}",
    ],
)
def test_address_that_nobody_could_dial_is_not_put_into_an_invite(lab, address: str) -> None:
    with pytest.raises(ValueError, match="/ip4/<ip>/tcp/<port>/p2p/"):
        lab.invite(addresses=[address.format(lab.PEER.peer_id)])


def test_key_of_a_wrong_length_and_too_many_addresses_are_not_put_into_an_invite(lab) -> None:
    for change in ({"psk": bytes(31)}, {"addresses": [self_address(n) for n in range(INVITE_ADDRESSES + 1)]}):
        with pytest.raises(ValueError, match="an invite holds"):
            lab.invite(**change)


def test_expired_invite_says_so_and_names_the_clock_that_it_believed(lab) -> None:
    refused(read(lab.invite(), lab, after=7 * 86_400), RefusalReason.EXPIRED, "this machine's clock", "starling invite")


def test_invite_that_is_not_valid_yet(lab) -> None:
    text = lab.invite(lab.invitation(valid_from_seconds=lab.MADE + 86_400))
    refused(read(text, lab), RefusalReason.NOT_YET_VALID)
    assert not isinstance(read(text, lab, after=86_400), AdmissionRefused)


def test_clock_an_hour_behind_an_invite_just_made_is_called_a_wrong_clock(lab) -> None:
    refused(read(lab.invite(), lab, after=-HOUR), RefusalReason.CLOCK, "3600 s", "timedatectl")


def test_invite_of_another_swarms_owner_or_of_another_invitation_is_a_wrong_key(lab) -> None:
    refused(read(lab.invite(owner=lab.STRANGER.public_bytes), lab), RefusalReason.WRONG_KEY)
    refused(read(lab.invite(key=lab.STRANGER), lab), RefusalReason.WRONG_KEY)


def test_text_that_is_no_invite(lab) -> None:
    for text in ("", "hello", "https://example.org/", lab.PEER.peer_id, SCHEME, SCHEME + "1"):
        refused(read(text, lab), RefusalReason.DAMAGED)
    refused(read(SCHEME + "1O0Il", lab), RefusalReason.DAMAGED, "base58")
    refused(read(SCHEME + "z" * INVITE_CHARACTERS, lab), RefusalReason.DAMAGED, f"at most {INVITE_CHARACTERS}")
    refused(read(" " * 10_000_000, lab), RefusalReason.DAMAGED)


def test_invite_of_a_later_version_names_the_version(lab) -> None:
    refused(read(lab.invite().replace(SCHEME + "1", SCHEME + "2"), lab), RefusalReason.VERSION)


def test_invite_cut_anywhere_is_damaged(lab) -> None:
    text = lab.invite()
    for length in range(len(text)):
        refused(read(text[:length], lab), RefusalReason.DAMAGED)


@given(position=st.integers(0, 10_000), replacement=st.sampled_from(base58.ALPHABET))
def test_mistyped_character_never_gives_another_invite(lab, position: int, replacement: str) -> None:
    text = lab.invite()
    place = len(SCHEME) + position % (len(text) - len(SCHEME))
    mistyped = text[:place] + replacement + text[place + 1 :]
    answer = read(mistyped, lab)
    if mistyped == text:
        assert answer == decode_invite(text)
    else:
        assert isinstance(answer, AdmissionRefused)


@given(st.binary(max_size=60))
def test_base58_gives_back_any_bytes(content: bytes) -> None:
    assert base58.to_bytes(base58.to_text(content)) == content


@given(st.text(alphabet=base58.ALPHABET, max_size=60))
def test_base58_has_one_text_for_each_content(text: str) -> None:
    assert base58.to_text(base58.to_bytes(text)) == text


def secrets_of(lab: Any) -> list[str]:
    """Every form in which a secret of the lab's invite could show."""
    raw = [lab.PSK, lab.INVITATION_KEY.private_bytes]
    forms = [form for secret in raw for form in (secret.hex(), repr(secret)[2:-1], str(list(secret))[1:-1])]
    text = lab.invite()[len(SCHEME) :]
    return forms + [text[start : start + 12] for start in range(0, len(text) - 12, 4)]


def test_no_text_form_of_an_invite_shows_a_secret(lab) -> None:
    invite = decode_invite(lab.invite())
    console = Console(file=io.StringIO(), width=200)
    pprint(invite, console=console, expand_all=True)
    forms = [repr(invite), str(invite), f"{invite}", f"{invite!r:>10}", f"{[invite]}", console.file.getvalue()]  # type: ignore[attr-defined]
    assert all("hidden" in form for form in forms)
    assert not [secret for secret in secrets_of(lab) for form in forms if secret in form]


def test_no_refusal_and_no_traceback_shows_a_secret(lab) -> None:
    text = lab.invite()
    raw = base58.to_bytes(text[len(SCHEME) + 1 :])
    damaged = [text[:-1], text[:-40], text + "x", text[:200] + "0" + text[201:], text * 5, text[11:]]
    damaged += [SCHEME + "1" + base58.to_text(raw[:cut]) for cut in (1, 100, 300)] + [lab.invite(key=lab.STRANGER)]
    for one in damaged:
        answer = read(one, lab)
        assert isinstance(answer, AdmissionRefused)
        with pytest.raises(ProtocolError) as raised:
            decode_invite(one)
        shown = [answer.message, repr(answer), "".join(traceback.format_exception(raised.value))]
        assert not [secret for secret in secrets_of(lab) for form in shown if secret in form], one


def test_pieces_of_two_invites_with_a_sound_checksum_are_told_apart_from_a_damaged_one(lab) -> None:
    with pytest.raises(SignatureError):
        decode_invite(lab.invite(lab.invitation(signer=lab.STRANGER)))
    with pytest.raises(MalformedError):
        decode_invite(encode_invite(document=b"x", key=lab.PEER, owner=bytes(32), psk=bytes(32), addresses=()))
    with pytest.raises(OversizedError):
        decode_invite(SCHEME + "1" * INVITE_CHARACTERS)
