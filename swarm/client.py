"""A blocking client of the swarm process on its Unix socket, for the learner and the supervisor.

A frame is a 4-byte big-endian length and that many bytes of MessagePack, one of ``swarm.api``'s structs. One request is
outstanding at a time; use one client per thread. Blobs pass as files in the content store beside the socket, small ones
that were fetched within the reply.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from protocol.errors import DeadlineError, StarlingError, StorageError, TransportError, UnreachableError
from protocol.messages import GroupAdvert, Heartbeat, StateAdvert
from protocol.streams.lend_messages import LendTerms
from protocol.streams.letter_messages import HoldLetter, LetterReceipt
from swarm import api
from swarm.averaging.pairing_rules import MAX_SECONDS_AFTER_DEADLINE
from swarm.averaging.weights_offer import WeightsOffer
from swarm.blobs.incoming import BlobInbox

if TYPE_CHECKING:
    from protocol.rollouts import Group

R = TypeVar("R", bound=api.Reply)
_LENGTH = struct.Struct(">I")
_ERRORS: dict[str, type[StarlingError]] = {e.reason: e for e in (DeadlineError, StorageError, UnreachableError)}
_GRACE_SECONDS = 10.0  # after the deadline of a request, for its reply to arrive


class SwarmClient:
    """Blocking calls to the swarm process of one data directory.

    It connects on the first call and again after a failure, so that the next call reaches a restarted swarm process.
    Every call raises ``TransportError`` if the process is gone or does not answer for ``timeout_seconds``.
    """

    def __init__(
        self, socket_path: Path | str, *, timeout_seconds: float = 30.0, store_bytes: int | None = None
    ) -> None:
        """With ``store_bytes`` each connection first raises the store's limit to at least that: a swarm process that
        was restarted has forgotten it."""
        self._path = Path(socket_path)
        self._store_bytes = store_bytes
        self._timeout_seconds = timeout_seconds
        self._inbox = BlobInbox(self._path.parent / "blobs")
        self._socket: socket.socket | None = None
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[api.Reply] = msgspec.msgpack.Decoder(api.Reply)

    def status(self) -> api.SwarmStatus:
        return self._ask(api.AskStatus(), api.SwarmStatus)

    def peers(self) -> list[api.PeerStatus]:
        """Returns every peer known now, connected ones first."""
        return list(self._ask(api.AskPeers(), api.PeerList).peers)

    def share(self, groups: Sequence[Group]) -> None:
        """Stores each group's blob in the content store, then announces them: one advert per policy version.

        Raises ``StorageError`` if the disk is full; nothing is announced then.
        """
        from protocol.rollouts import advert_of, encode_group  # late: most clients share nothing, and need no numpy

        adverts: dict[tuple[bytes, bytes, int], list[GroupAdvert]] = {}
        for group in groups:
            blob = encode_group(group)
            self._inbox.put(blob)
            advert = advert_of(group, blob)
            adverts.setdefault((group.family, group.tokenizer, group.policy_version), []).append(advert)
        for (family, tokenizer, version), of_policy in adverts.items():
            self._ask(api.Share(family, tokenizer, version, tuple(of_policy)), api.Done)

    def seen_groups(self, after: int, limit: int) -> list[api.SeenGroup]:
        """Returns groups of other nodes with a cursor above ``after``, oldest first; 0 starts from the beginning.

        Cursors start again at 1 when the swarm process restarts; a cursor above the newest one is read as 0.
        """
        return list(self._ask(api.AskSeenGroups(after, limit), api.SeenGroups).groups)

    def fetch(self, wanted: Sequence[api.Wanted], *, deadline_seconds: float) -> list[api.Fetched]:
        """Returns one outcome per wanted blob, in order: the verified content or its file, or why there is none."""
        request = api.Fetch(tuple(wanted), deadline_seconds)
        timeout_seconds = max(self._timeout_seconds, deadline_seconds + _GRACE_SECONDS)
        return list(self._ask(request, api.FetchedList, timeout_seconds).fetched)

    def average(self, ours: WeightsOffer, *, deadline_seconds: float) -> api.AverageReply:
        """Offers weights to the peers of the family, and waits for the outcome.

        Returns at most ``MAX_SECONDS_AFTER_DEADLINE`` after the deadline: an exchange that runs then is finished.
        Closing the client from another thread, or the end of this process, abandons it. Raises ``StorageError`` if the
        disk is full, ``TransportError`` also if an exchange of this node runs already or the blob does not fit the
        layout and encoding.
        """
        request = ours.request(*self._inbox.put(ours.content), deadline_seconds)
        return self._ask(request, api.AverageReply, deadline_seconds + MAX_SECONDS_AFTER_DEADLINE + _GRACE_SECONDS)

    def progress(self, blobs: Sequence[bytes]) -> list[int]:
        """Returns the verified bytes of each blob, also while another client's ``fetch`` runs."""
        return list(self._ask(api.AskProgress(tuple(blobs)), api.FetchProgress).here_bytes)

    def put(self, content: bytes | Sequence[bytes | memoryview]) -> bytes:
        """Stores a blob of our own, whole or in parts; returns its id. Raises ``StorageError``."""
        return self._inbox.put(content)[0]

    def share_state(self, advert: StateAdvert) -> None:
        """Announces a state from now on, and keeps its blobs, which are already in the store, there.

        Raises ``StorageError`` if a blob is not there; the state announced before then stays.
        """
        self._ask(api.ShareState(advert), api.Done)

    def states(self, family: bytes) -> list[api.SeenState]:
        """Returns the states that peers of ``family`` announce now, the latest heard first."""
        return list(self._ask(api.AskStates(family), api.States).states)

    def beat(self, heartbeat: Heartbeat) -> None:
        """Sets the node's heartbeat; the swarm process repeats it on its own schedule."""
        self._ask(api.Beat(heartbeat), api.Done)

    def set_paused(self, paused: bool) -> None:
        """Says whether the learner rests on purpose, until said otherwise or the swarm process ends."""
        self._ask(api.SetPaused(paused), api.Done)

    def judge(self, peer: str, blob: bytes, judgement: api.Judgement, detail: str = "") -> None:
        """Reports the result of checking a peer's group or state; reputation and bans follow from it."""
        self._ask(api.Judge(peer, blob, judgement, detail), api.Done)

    def donors(self, terms: LendTerms) -> list[api.DonorOffer]:
        """Returns the donors whose streams wait; those that come from now on get ``terms``."""
        return list(self._ask(api.AskDonors(terms), api.DonorOffers).donors)

    def use_donor(self, peer: str) -> socket.socket:
        """Takes a donor's stream and returns it, as the connection that this client had; it connects again for its next
        call. Raises ``UnreachableError`` where the donor does not wait."""
        self._ask(api.UseDonor(peer), api.Carrying)
        stream, self._socket = self._socket, None
        assert stream is not None
        return stream

    def drop_donor(self, peer: str, because: str) -> None:
        """Refuses a donor for good."""
        self._ask(api.DropDonor(peer, because), api.Done)

    def cut_off_donor(self, peer: str) -> None:
        """Ends a donor's stream, if it has one."""
        self._ask(api.CutOffDonor(peer), api.Done)

    def decree(self, kind: Literal["revocations", "key_change"], document: bytes) -> None:
        """Spreads a document that the cluster's owner signed. Raises ``TransportError`` if it is refused."""
        self._ask(api.Decree(kind, document), api.Done)

    def leave_letter(self, letter: HoldLetter) -> str:
        """Leaves an invite for a newcomer with a code; returns the peer id of the member that holds it. Raises
        ``TransportError`` that says why none does."""
        return self._ask(api.LeaveLetter(letter), api.LetterLeft).holder

    def letter(self, lookup: bytes) -> LetterReceipt:
        """Returns the state of a letter that was left from here."""
        return self._ask(api.AskLetter(lookup), api.LetterSeen).receipt

    def leave(self, reason: str) -> None:
        """Ends the swarm process, which says goodbye to its peers."""
        self._ask(api.Leave(reason), api.Done)
        self.close()

    def close(self) -> None:
        """Closes the connection, if there is one; never raises. The next call connects again.

        May be called from another thread: a call that waits for an answer then raises ``UnreachableError``.
        """
        connection, self._socket = self._socket, None
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # close() alone would not wake a thread that reads from it
            connection.close()

    def __enter__(self) -> SwarmClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _ask(self, request: api.Request, expected: type[R], timeout_seconds: float | None = None) -> R:
        frame = self._encoder.encode(request)
        if len(frame) > api.MAX_FRAME_BYTES:
            raise TransportError(
                f"a request of {len(frame)} bytes is over the limit of {api.MAX_FRAME_BYTES}: ask in parts"
            )
        try:
            reply = self._decoder.decode(self._exchange(frame, timeout_seconds or self._timeout_seconds))
        except TimeoutError as error:
            self.close()
            waited_seconds = timeout_seconds or self._timeout_seconds
            raise DeadlineError(
                f"the swarm process did not answer within {waited_seconds:g} s on {self._path}"
            ) from error
        except (OSError, EOFError) as error:
            self.close()
            raise UnreachableError(f"no swarm process answers on {self._path} ({error}): is the node up?") from error
        except msgspec.DecodeError as error:
            self.close()
            raise TransportError(
                f"the swarm process on {self._path} has another version ({error}): restart it"
            ) from error
        if isinstance(reply, api.RequestRefused):
            raise _ERRORS.get(reply.reason, TransportError)(reply.message)
        if not isinstance(reply, expected):
            self.close()
            raise TransportError(f"asked for {expected.__name__}, answered by {type(reply).__name__} on {self._path}")
        return reply

    def _exchange(self, frame: bytes, timeout_seconds: float) -> bytes:
        connection = self._socket
        if connection is None:
            self._socket = connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(timeout_seconds)
            connection.connect(str(self._path))
            if self._store_bytes is not None:
                _round_trip(connection, self._encoder.encode(api.RaiseStore(self._store_bytes)))
        connection.settimeout(timeout_seconds)
        return _round_trip(connection, frame)


def _round_trip(connection: socket.socket, frame: bytes) -> bytes:
    connection.sendall(_LENGTH.pack(len(frame)) + frame)
    (length,) = _LENGTH.unpack(_receive_exactly(connection, _LENGTH.size))
    if length > api.MAX_FRAME_BYTES:
        raise EOFError(f"a reply of {length} bytes is over the limit of {api.MAX_FRAME_BYTES}")
    return _receive_exactly(connection, length)


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        part = connection.recv(min(size - len(received), 1 << 20))
        if not part:
            raise EOFError("the connection was closed")
        received += part
    return bytes(received)
