"""Taking a letter, before this node is a member: dials under the letter's key, asks for it, and hangs up.

No address that a person can read out has a peer id. Whoever answers under the letter's pre-shared key holds the letter,
so that any peer may answer where a door names none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from protocol.cluster.refusal import NEW_INVITE, AdmissionRefused, RefusalReason
from protocol.cluster.spoken_code import SpokenSecrets, open_letter
from protocol.errors import IntegrityError, RefusedError, TransportError, UnreachableError
from protocol.streams.letter_messages import (
    LetterAnswer,
    LetterRequest,
    decode_letter_message,
    encode_letter_message,
)
from swarm.host import Address, HandshakeReply, Host, PeerId

DIAL_SECONDS: Final = 10.0
DOORS_HEARD: Final = 32  # on the local network
WRONG_CODE: Final = "wrong_code"
_NEW_CODE: Final = "ask for a new code (made by: starling invite --spoken)"
_STILL_JOINING: Final = "this node is still joining, and admits no peer yet"


class LetterReader:
    """The ``Handshake`` of a host that dials for one letter and accepts no connections."""

    def __init__(self, secrets: SpokenSecrets) -> None:
        self.said: LetterAnswer | None = None  # of the latest holder that answered
        self._secrets = secrets

    def keys(self) -> list[bytes]:
        return [self._secrets.psk]

    def greet(self, peer: PeerId) -> bytes:
        return encode_letter_message(LetterRequest(self._secrets.lookup))

    def conclude(self, peer: PeerId, answer: bytes) -> HandshakeReply:
        self.said = decode_letter_message(answer, LetterAnswer)
        return HandshakeReply(b"", RefusedError(f"{peer} has answered, and the connection ends", "letter"))

    def opened(self, said: LetterAnswer) -> str:
        """Returns the invite in an answer. Raises ``RefusedError`` for a letter that was altered."""
        try:
            return open_letter(self._secrets, said.letter)
        except IntegrityError as error:
            raise RefusedError(f"{error}; {NEW_INVITE}", RefusalReason.DAMAGED) from error

    def answer(self, peer: PeerId, greeting: bytes) -> HandshakeReply:
        raise UnreachableError(_STILL_JOINING)

    def confirm(self, peer: PeerId, conclusion: bytes) -> None:
        raise UnreachableError(_STILL_JOINING)

    def refusal(self, peer: PeerId) -> AdmissionRefused | None:
        return None


async def take_letter(
    host: Host,
    reader: LetterReader,
    doors: Sequence[Address],
    *,
    hear: Callable[[], Awaitable[Sequence[Address]]] | None = None,
) -> str:
    """Returns the invite in the letter, over ``host``, which runs with ``reader`` as its handshake.

    Doors are asked one after the other; where none has the letter, those that ``hear`` returns, of the local network.
    Raises ``RefusedError`` that says why the code opens nothing, ``UnreachableError`` where nobody answers.
    """
    failures: list[str] = []
    refusals: list[RefusedError] = []

    async def resolved(door: Address) -> Sequence[Address]:
        if door.startswith(("/ip4/", "/ip6/")):
            return [door]
        try:
            return await host.resolve(door, deadline_seconds=DIAL_SECONDS)
        except TransportError as error:
            failures.append(str(error))
            return []

    async def opened_at(some: Sequence[Address]) -> str | None:
        for address in [each for door in some for each in await resolved(door)]:
            try:
                said = await _asked(host, reader, address)
                if said.state == "waiting":
                    return reader.opened(said)
                refusals.insert(0, _not_given(said))
            except RefusedError as error:
                refusals.append(error)
            except TransportError as error:
                failures.append(str(error))
        return None

    invite = await opened_at(doors)
    if invite is None and hear is not None and all(refused.reason == WRONG_CODE for refused in refusals):
        invite = await opened_at((await hear())[:DOORS_HEARD])
    if invite is not None:
        return invite
    if refusals:
        raise refusals[0]
    tried = "; ".join(failures) or "no member was heard on the local network"
    raise UnreachableError(
        f"no node could be asked for the invite behind this code ({tried}): type the code with the address that was "
        "printed with it, CODE@ADDRESS, and make sure that this node runs and can be reached; a cluster's name stands "
        "for its address where a list with it was read (starling swarms --list)"
    )


async def _asked(host: Host, reader: LetterReader, address: Address) -> LetterAnswer:
    """Raises ``RefusedError`` where nobody there holds a letter under this code, ``TransportError``."""
    reader.said = None
    try:
        await host.prove(address, deadline_seconds=DIAL_SECONDS)
    except RefusedError as error:
        if reader.said is not None and reader.said.state != "unknown":
            return reader.said
        if reader.said is None and error.reason != RefusalReason.WRONG_PSK:
            raise
    raise RefusedError(
        f"no node holds anything for this code at {address}: digits are wrong, it expired more than an hour ago, the "
        f"node that held it was restarted, or another node answers there. Compare the code, or {_NEW_CODE}",
        WRONG_CODE,
    )


def _not_given(said: LetterAnswer) -> RefusedError:
    if said.state == "taken":
        return RefusedError(
            "another node has used this code already. If it was not one of yours, tell the inviter at once, who sees "
            "its peer id and can put it out (starling revoke)",
            RefusalReason.TAKEN,
        )
    return RefusedError(f"the time of this code is over; {_NEW_CODE}", RefusalReason.EXPIRED)
