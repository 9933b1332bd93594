"""The code that is read out: what mistakes it shows, that it hides its letter, and that it is derived as documented."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.cluster.spoken_code import (
    CODES,
    SpokenSecrets,
    is_spoken,
    new_code,
    open_letter,
    read_spoken,
    seal_letter,
    secrets_of,
    shown_code,
)
from protocol.errors import IntegrityError, MalformedError

CODES_DRAWN = st.integers(0, CODES - 1).map(lambda number: new_code(lambda _: number))
BETWEEN = st.sampled_from(["", " ", "-", " - ", ".", "\u00a0"])


@given(CODES_DRAWN, st.lists(BETWEEN, min_size=15, max_size=15), st.sampled_from(["", "192.0.2.7", "lark:4242"]))
def test_a_code_is_read_however_its_digits_are_grouped(code: str, between: list[str], at: str) -> None:
    typed = "".join(map("".join, zip(code, [*between, ""], strict=True))) + (f" @ {at}" if at else "")
    assert is_spoken(typed)
    said = read_spoken(typed)
    assert (said.code, said.at) == (code, at)
    assert read_spoken(said.text) == said
    assert code not in repr(said)


@given(CODES_DRAWN, st.data())
def test_every_wrong_digit_and_every_exchange_of_neighbours_is_found_without_asking_anybody(
    code: str, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, 15))
    for digit in set("0123456789") - {code[at]}:
        with pytest.raises(MalformedError) as wrong:
            read_spoken(code[:at] + digit + code[at + 1 :])
        assert code[:4] not in str(wrong.value)
    for first in range(15):
        exchanged = code[:first] + code[first + 1] + code[first] + code[first + 2 :]
        if exchanged != code:
            with pytest.raises(MalformedError):
                read_spoken(exchanged)


@pytest.mark.parametrize("length", [10, 15, 17])
def test_a_code_that_lacks_digits_or_has_too_many_is_told_as_such(length: int) -> None:
    typed = (new_code(Random(3).randrange) * 2)[:length]
    assert is_spoken(typed)
    with pytest.raises(MalformedError, match=f"16 digits, and {length}"):
        read_spoken(typed)


@pytest.mark.parametrize(
    "text", ["starling://1abc", "invite.txt", "/tmp/4821", "2026-11-26", "~/4821-0937-5526-1840", ""]
)
def test_invites_and_file_names_are_not_taken_for_codes(text: str) -> None:
    assert not is_spoken(text)


def test_codes_have_all_of_their_digits_from_the_random_source_and_are_shown_in_groups() -> None:
    assert new_code(lambda below: below - 1)[:15] == "9" * 15
    assert new_code(lambda below: 0) == "0" * 16
    code = new_code(Random(1).randrange)
    assert shown_code(code).replace("-", "") == code and [len(part) for part in shown_code(code).split("-")] == [4] * 4


def test_a_letter_opens_under_its_code_alone_and_unaltered() -> None:
    mine, theirs = (SpokenSecrets(b"l" * 16, b"p" * 32, bytes([key]) * 32) for key in (1, 2))
    letter = seal_letter(mine, "starling://1abc")
    assert open_letter(mine, letter) == "starling://1abc"
    assert b"starling" not in letter and "ppp" not in repr(mine)
    elsewhere = replace(mine, lookup=bytes(16))
    for secrets, raw in ((theirs, letter), (elsewhere, letter), (mine, letter[:-1] + b"?"), (mine, b"")):
        with pytest.raises(IntegrityError):
            open_letter(secrets, raw)


def test_secrets_are_those_that_the_protocol_page_gives() -> None:
    """The vector of docs/protocol.md: any implementation derives these."""
    derived = secrets_of("4821093755261841")
    assert derived.lookup.hex() == "9595401bb8b18d8b3ab9e7ff4b2367d1"
    assert derived.psk.hex() == "273f0dc0e4b2664400a46b1942e2e7d5c0c6e71b647399c039b7c3906effa8d2"
    assert derived.key.hex() == "558d4d9dc845fb0cd3589bff6ccacc2e49d011d6c9a1ac5cb9650b0b19d63507"
