"""One member's view of its private cluster, and the only place that decides who is a member: its host's ``Handshake``.

Guarantees: a peer is admitted only if ``protocol.cluster.admission`` admits its credential now; ``refusal`` answers for
any peer and at any time whether it is still a member; the later list of revocations and the later change of key win,
from whichever peer they come; a document is kept (``keep``) before it is acted on. It never waits, and reads only the
clock that it is given.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import msgspec

from protocol import limits, wire
from protocol.cluster.admission import (
    Admitted,
    certify,
    judge_as_made,
    judge_credential,
    judge_join,
    judge_key_change,
    judge_revocations,
    still_member,
)
from protocol.cluster.cluster_manifest import Cluster
from protocol.cluster.documents import Credential, KeyChange, Revocations, decode_credential
from protocol.cluster.refusal import AdmissionRefused, RefusalReason, judge_clocks, refused_by_peer
from protocol.errors import RefusedError
from protocol.identity import NodeKey, public_bytes_of
from protocol.streams.handshake_messages import (
    HandshakeAnswer,
    HandshakeConclusion,
    HandshakeDocuments,
    HandshakeGreeting,
    HandshakeRefusal,
    decode_handshake,
    encode_handshake,
)
from protocol.streams.letter_messages import (
    LetterRequest,
    decode_letter_message,
    encode_letter_message,
    is_letter_request,
)
from swarm.cluster.letter_box import LetterBox
from swarm.cluster.roster import Roster
from swarm.host import HandshakeReply, PeerId

log = logging.getLogger(__name__)

RENEWAL_SHARE = 0.5  # of a membership: when less is left, the owner's node renews it
WORTH_NOTING_SHARE = 0.25  # of a membership: by this much a newer credential must last longer
NOT_SHOWN = AdmissionRefused(RefusalReason.NO_MEMBER, "it has shown nothing that makes it a member of this cluster")
_FINAL_REFUSALS = frozenset(
    {RefusalReason.TAKEN, RefusalReason.WRONG_KEY, RefusalReason.WRONG_SWARM, RefusalReason.DAMAGED}
)

MEMBERS_FILE_BYTES = 2 * limits.MEMBERS * (limits.DOCUMENT_BYTES + 8)

T = TypeVar("T")
Keep = Callable[[str, bytes], None]  # (name of the file, content)


@dataclass(frozen=True, slots=True)
class ClusterCredentials:
    """What a member keeps. The text form shows no key."""

    cluster: Cluster
    psk: bytes = field(repr=False)  # as received with the invite; a change of key replaces it
    credential: bytes  # our own, encoded
    revocations: bytes = b""
    key_change: bytes = field(default=b"", repr=False)
    members: tuple[bytes, ...] = ()  # credentials of other members


class Membership:
    """Raises ``RefusedError`` if the credentials no longer make this node a member."""

    def __init__(
        self,
        key: NodeKey,
        credentials: ClusterCredentials,
        *,
        wall_clock: Callable[[], float],
        keep: Keep,
        owner: NodeKey | None = None,
    ) -> None:
        self.cluster = credentials.cluster
        self.roster = Roster()
        self.letters = LetterBox()
        self.revocations: Revocations | None = None
        self.key_change: KeyChange | None = None
        self.documents = HandshakeDocuments(revocations=credentials.revocations, key_change=credentials.key_change)
        self.refusals: Counter[str] = Counter()  # of other peers, by reason
        self.welcomed = False  # by any member, since start
        self.version = 0  # rises with every change that other members should hear of
        self._key = key
        self._psk = credentials.psk
        self._wall_clock = wall_clock
        self._keep = keep
        self._owner = owner if owner is not None and owner.public_bytes == credentials.cluster.manifest.owner else None
        self._credential = credentials.credential
        self._turned_away: AdmissionRefused | None = None
        self._read(credentials)

    def _read(self, credentials: ClusterCredentials) -> None:
        now_seconds = self._wall_clock()
        if credentials.revocations:
            self.revocations = _or_raise(judge_revocations(self.cluster, None, credentials.revocations))
        if credentials.key_change:
            self.key_change = _or_raise(judge_key_change(self.cluster, None, credentials.key_change))
        self.renew()
        ours = _or_raise(self._judge(self._credential, self._key.public_bytes, now_seconds))
        self.roster.add(ours, self._credential, 0.0)
        for credential in credentials.members:
            self._note(credential, now_seconds)

    def renew(self) -> None:
        """Renews memberships in time; only the owner's node does. It renews its own even after a long absence."""
        if self._owner is None:
            return
        now_seconds, cluster = self._wall_clock(), self.cluster
        ours = judge_as_made(now_seconds, cluster, self.revocations, {}, self._credential)
        if not isinstance(ours, AdmissionRefused) and self._is_due(ours, self._credential, now_seconds):
            self._take_certificate(certify(self._owner, cluster, ours, now_seconds), now_seconds)
        due = [member for member in self.roster if self._is_due(member.admitted, member.credential, now_seconds)]
        self.take_credentials(
            Credential("certificate", certify(self._owner, cluster, member.admitted, now_seconds)).encode()
            for member in due
            if self.refusal(member.peer) is None
        )

    # The handshake

    def keys(self) -> list[bytes]:
        now_seconds = self._wall_clock()
        letters = self.letters.keys(now_seconds)
        if self.key_change is None:
            return [self._psk, *letters]
        former = (f.psk for f in self.key_change.former if now_seconds < f.until_seconds)
        return [self.key_change.psk, *former, *letters]

    def greet(self, peer: PeerId) -> bytes:
        return encode_handshake(self._greeting())

    def answer(self, peer: PeerId, greeting: bytes) -> HandshakeReply:
        if is_letter_request(greeting):
            return self._give_letter(peer, greeting)
        theirs, now_seconds = decode_handshake(greeting, HandshakeGreeting), self._wall_clock()
        admitted, certificate = self._judge_greeting(theirs, peer, now_seconds)
        if isinstance(admitted, AdmissionRefused):
            frame = encode_handshake(HandshakeAnswer(self._no(admitted), None, None))
            return HandshakeReply(frame, self._refuse(peer, admitted))
        manifest = self.cluster.document if theirs.wants_manifest else b""
        documents = self._documents_for(theirs, manifest=manifest, certificate=certificate)
        return HandshakeReply(encode_handshake(HandshakeAnswer(None, self._greeting(), documents)))

    def _give_letter(self, peer: PeerId, request: bytes) -> HandshakeReply:
        """Answers a newcomer that knows a code. It is no member by that, and the connection ends."""
        said = self.letters.take(self._wall_clock(), decode_letter_message(request, LetterRequest).lookup, peer)
        log.info("%s asked for a letter: %s", peer, said.state)
        return HandshakeReply(encode_letter_message(said), RefusedError(f"{peer} asked for a letter", "letter"))

    def conclude(self, peer: PeerId, answer: bytes) -> HandshakeReply:
        said, now_seconds = decode_handshake(answer, HandshakeAnswer), self._wall_clock()
        if said.refusal is not None or said.greeting is None or said.documents is None:
            return HandshakeReply(
                b"", self._turned(peer, said.refusal or HandshakeRefusal(RefusalReason.DAMAGED, int(now_seconds)))
            )
        self._take_from(said.documents)
        self._take_certificate(said.documents.certificate, now_seconds)
        admitted, _ = self._judge_greeting(said.greeting, peer, now_seconds)
        if isinstance(admitted, AdmissionRefused):
            return HandshakeReply(
                encode_handshake(HandshakeConclusion(self._no(admitted), HandshakeDocuments())),
                self._refuse(peer, admitted),
            )
        self.welcomed = True
        return HandshakeReply(encode_handshake(HandshakeConclusion(None, self._documents_for(said.greeting))))

    def confirm(self, peer: PeerId, conclusion: bytes) -> None:
        said = decode_handshake(conclusion, HandshakeConclusion)
        if said.refusal is not None:
            raise self._turned(peer, said.refusal)
        self._take_from(said.documents)
        refused = self.refusal(peer)
        if refused is not None:
            raise self._refuse(peer, refused)
        self.welcomed = True

    def refusal(self, peer: PeerId) -> AdmissionRefused | None:
        refused: AdmissionRefused | None = NOT_SHOWN
        for member in self.roster.of(peer):
            refused = still_member(self._wall_clock(), member.admitted, self.revocations)
            if refused is None:
                return None
        return refused

    # What the rest of the swarm process asks

    def is_out(self, peer: PeerId) -> bool:
        """Whether the peer is known to be no longer a member; False for an unknown peer."""
        return bool(self.roster.of(peer)) and self.refusal(peer) is not None

    def own_refusal(self) -> AdmissionRefused | None:
        """Returns why this node is no longer a member, as its documents prove, or None."""
        return self.refusal(self._key.peer_id)

    def on_refused(self, peer: PeerId, error: RefusedError) -> None:
        """Notes that a known member did not admit us, or does not hold our pre-shared key."""
        owner_holds = error.reason == RefusalReason.WRONG_PSK and self._owner is not None
        if error.reason in (RefusalReason.WRONG_PSK, RefusalReason.CLOCK) and self.roster.of(peer) and not owner_holds:
            self._turned_away = AdmissionRefused(RefusalReason(error.reason), str(error))

    @property
    def turned_away(self) -> AdmissionRefused | None:
        """Why no member has admitted us since start: another pre-shared key, or a clock. None once welcomed."""
        return None if self.welcomed else self._turned_away

    def take(self, kind: Literal["revocations", "key_change"], raw: bytes) -> None:
        """Takes a document that the owner gave this node. Raises ``RefusedError``."""
        refused = self.take_revocations(raw) if kind == "revocations" else self.take_key_change(raw)
        if refused is not None:
            raise RefusedError(refused.message, refused.reason)

    def take_revocations(self, raw: bytes) -> AdmissionRefused | None:
        judged = judge_revocations(self.cluster, self.revocations, raw)
        if isinstance(judged, AdmissionRefused):
            return judged
        self._keep("revocations", raw)
        self.revocations = judged
        self.documents = HandshakeDocuments(revocations=raw, key_change=self.documents.key_change)
        self.version += 1
        log.info("list of revocations number %d", judged.sequence)
        return None

    def take_key_change(self, raw: bytes) -> AdmissionRefused | None:
        judged = judge_key_change(self.cluster, self.key_change, raw)
        if isinstance(judged, AdmissionRefused):
            return judged
        self._keep("key-change", raw)
        self.key_change = judged
        self.documents = HandshakeDocuments(revocations=self.documents.revocations, key_change=raw)
        self.version += 1
        log.info("change of key number %d", judged.sequence)
        return None

    def take_credentials(self, credentials: Iterable[bytes]) -> None:
        """Adds credentials that other members sent."""
        now_seconds = self._wall_clock()
        if sum(self._note(credential, now_seconds) for credential in credentials):
            self.version += 1
            self._keep_members()

    # What decides

    def _judge(self, credential: bytes, public_bytes: bytes, now_seconds: float) -> Admitted | AdmissionRefused:
        return judge_credential(
            now_seconds, self.cluster, self.revocations, self.roster.taken, credential, public_bytes
        )

    def _judge_greeting(
        self, theirs: HandshakeGreeting, peer: PeerId, now_seconds: float
    ) -> tuple[Admitted | AdmissionRefused, bytes]:
        """Returns the member or the refusal, and the certificate that the owner's node signs; empty if none is
        needed."""
        if theirs.swarm_id != self.cluster.swarm_id:
            return AdmissionRefused(RefusalReason.WRONG_SWARM, f"it is in swarm {theirs.swarm_id.hex()}"), b""
        clocks = judge_clocks(now_seconds, theirs.time_seconds)
        if clocks is not None:
            return clocks, b""
        if not theirs.credential:
            return NOT_SHOWN, b""
        credential, certificate = theirs.credential, b""
        admitted = self._judge(credential, public_bytes_of(peer), now_seconds)
        if (
            isinstance(admitted, AdmissionRefused)
            and admitted.reason is RefusalReason.NEEDS_OWNER
            and self._owner is not None
        ):
            document = decode_credential(credential).document
            admitted = judge_join(
                now_seconds, self.cluster, self.revocations, self.roster.taken, document, public_bytes_of(peer)
            )
        if isinstance(admitted, AdmissionRefused):
            return admitted, b""
        if self._owner is not None and self._is_due(admitted, credential, now_seconds):
            certificate = certify(self._owner, self.cluster, admitted, now_seconds)
            credential = Credential("certificate", certificate).encode()
            admitted = _or_raise(self._judge(credential, public_bytes_of(peer), now_seconds))
        if self._add(admitted, credential):
            self.version += 1
            self._keep_members()
        return admitted, certificate

    def _is_due(self, admitted: Admitted, credential: bytes, now_seconds: float) -> bool:
        asks = admitted.certified and decode_credential(credential).kind == "join"
        left_seconds = admitted.until_seconds - now_seconds
        return asks or left_seconds < RENEWAL_SHARE * self.cluster.manifest.membership_seconds

    def _note(self, credential: bytes, now_seconds: float) -> bool:
        judged = judge_as_made(now_seconds, self.cluster, self.revocations, self.roster.taken, credential)
        if not isinstance(judged, AdmissionRefused) and self._add(judged, credential):
            if judged.certified and judged.peer == self._key.public_bytes:
                self._adopt(credential)
            return True
        if not isinstance(judged, AdmissionRefused) or judged.reason in _FINAL_REFUSALS:
            self.roster.refuse(credential)
        return False

    def _add(self, admitted: Admitted, credential: bytes) -> bool:
        return self.roster.add(admitted, credential, WORTH_NOTING_SHARE * self.cluster.manifest.membership_seconds)

    # Documents sent and received

    def _greeting(self) -> HandshakeGreeting:
        return HandshakeGreeting(
            self.cluster.swarm_id, int(self._wall_clock()), self._credential, self.revocations_number, self.key_number
        )

    @property
    def revocations_number(self) -> int:
        return self.revocations.sequence + 1 if self.revocations is not None else 0

    @property
    def key_number(self) -> int:
        return self.key_change.sequence + 1 if self.key_change is not None else 0

    def _documents_for(
        self, theirs: HandshakeGreeting, *, manifest: bytes = b"", certificate: bytes = b""
    ) -> HandshakeDocuments:
        return HandshakeDocuments(
            manifest,
            self.documents.revocations if theirs.revocations < self.revocations_number else b"",
            self.documents.key_change if theirs.key_change < self.key_number else b"",
            certificate,
        )

    def _take_from(self, documents: HandshakeDocuments) -> None:
        for raw, take in (
            (documents.revocations, self.take_revocations),
            (documents.key_change, self.take_key_change),
        ):
            refused = take(raw) if raw else None
            if refused is not None and refused.reason is not RefusalReason.OUTDATED:
                self.refusals[refused.reason] += 1

    def _take_certificate(self, certificate: bytes, now_seconds: float) -> None:
        if not certificate:
            return
        credential = Credential("certificate", certificate).encode()
        admitted = self._judge(credential, self._key.public_bytes, now_seconds)
        if isinstance(admitted, AdmissionRefused):
            self.refusals[admitted.reason] += 1
            return
        self._adopt(credential)
        self.roster.add(admitted, credential, 0.0)
        self.version += 1

    def _adopt(self, credential: bytes) -> None:
        self._keep("credential", credential)
        self._credential = credential

    def _no(self, refused: AdmissionRefused) -> HandshakeRefusal:
        proof = self.documents.revocations if refused.reason is RefusalReason.REVOKED else b""
        return HandshakeRefusal(refused.reason, int(self._wall_clock()), proof)

    def _refuse(self, peer: PeerId, refused: AdmissionRefused) -> RefusedError:
        self.refusals[refused.reason] += 1
        log.info("%s is not admitted: %s", peer, refused.message)
        return RefusedError(f"{peer} is not admitted: {refused.message}", refused.reason)

    def _turned(self, peer: PeerId, refusal: HandshakeRefusal) -> RefusedError:
        """Takes the list that proves a revocation; everything else in the refusal is one peer's claim."""
        if refusal.revocations:
            self._take_from(HandshakeDocuments(revocations=refusal.revocations))
        refused = self.own_refusal() or refused_by_peer(refusal.reason, self._wall_clock(), refusal.time_seconds)
        return RefusedError(refused.message, refused.reason)

    def _keep_members(self) -> None:
        self._keep("members", encode_members(self.roster.credentials()))


def encode_members(credentials: list[bytes]) -> bytes:
    """Encodes the file in which a member keeps the credentials of all members."""
    return msgspec.msgpack.encode(credentials)


def decode_members(raw: bytes) -> tuple[bytes, ...]:
    """Raises ``OversizedError`` or ``MalformedError``."""
    return wire.decode(raw, tuple[bytes, ...], max_bytes=MEMBERS_FILE_BYTES)


def _or_raise(judged: T | AdmissionRefused) -> T:
    if isinstance(judged, AdmissionRefused):
        raise RefusedError(judged.message, judged.reason)
    return judged
