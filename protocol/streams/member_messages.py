"""The messages of ``/starling/members/1``, which spread what makes a private cluster: credentials and owner's orders.

    asker → question;  other → answer, a question of its own and news;  asker → news

Each is one frame of ``protocol.streams.framing``. News leaves out what the other side has. The numbers of a question
are sequence + 1 of the list of revocations and of the change of key at hand, 0 for none.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Final, TypeVar

from msgspec import Meta, Struct

from protocol import limits, wire
from protocol.cluster.documents import Document, RevocationsDocument
from protocol.messages import Counter

MEMBER_PROTOCOL: Final = "/starling/members/1"
CREDENTIAL_DIGEST_BYTES: Final = 8


class MembersQuestion(Struct, frozen=True, array_like=True):
    known: Annotated[bytes, Meta(max_length=limits.KNOWN_CREDENTIALS_BYTES)]  # digests, one after another
    revocations: Counter
    key_change: Counter


class MembersNews(Struct, frozen=True, array_like=True):
    """Its text forms show no change of key, which is a secret."""

    credentials: Annotated[tuple[Document, ...], Meta(max_length=limits.CREDENTIALS_PER_NEWS)]
    revocations: RevocationsDocument  # empty: not given
    key_change: Document  # empty: not given

    def __repr__(self) -> str:
        return f"MembersNews({len(self.credentials)} credentials, …)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


class MembersAnswer(Struct, frozen=True, array_like=True):
    question: MembersQuestion
    news: MembersNews


MembersMessage = TypeVar("MembersMessage", MembersQuestion, MembersAnswer, MembersNews)


def credential_digest(credential: bytes) -> bytes:
    """The ``CREDENTIAL_DIGEST_BYTES`` by which a question names a credential: the first of its SHA-256."""
    return hashlib.sha256(credential).digest()[:CREDENTIAL_DIGEST_BYTES]


def split_digests(known: bytes) -> set[bytes]:
    """The digests in a question. The last one may be cut short, and then names nothing."""
    return {known[at : at + CREDENTIAL_DIGEST_BYTES] for at in range(0, len(known), CREDENTIAL_DIGEST_BYTES)}


def decode_members_message(raw: bytes, kind: type[MembersMessage]) -> MembersMessage:
    """The message in the body of a frame. Raises ``OversizedError`` or ``MalformedError``."""
    return wire.decode(raw, kind, max_bytes=limits.MEMBERS_MESSAGE_BYTES)
