"""A message of GossipSub: its id, its signature, and the recent ones that are remembered."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.validators import PUBSUB_SIGNING_PREFIX

from protocol.gossip_message import gossip_message_id
from protocol.identity import PEER_ID_PREFIX, PUBLIC_KEY_BYTES

SEEN_SECONDS = 120.0
SEEN_MESSAGES = 65_536
CACHED_SECONDS = 10.0  # within which a slow node can ask for a message that it missed
CACHED_BYTES = 16 * 1024 * 1024
GOSSIPED_SECONDS = 3.0  # for which a node says that it has a message
GOSSIPED_IDS = 1000  # at once, the newest


def message_id(message: rpc_pb2.Message) -> bytes:
    """Returns the id of a message of one topic."""
    (topic,) = message.topicIDs
    return gossip_message_id(topic, bytes(message.data))


def is_signed(message: rpc_pb2.Message) -> bool:
    """Returns whether the publisher's Ed25519 key, which is in its peer id, signed the message.

    Other keys have no place in a swarm, and a stranger's RSA key would take as long to verify as it likes.
    """
    prefix, key = message.from_id[: len(PEER_ID_PREFIX)], message.from_id[len(PEER_ID_PREFIX) :]
    if prefix != PEER_ID_PREFIX or len(key) != PUBLIC_KEY_BYTES:
        return False
    content = rpc_pb2.Message(
        data=message.data, topicIDs=message.topicIDs, from_id=message.from_id, seqno=message.seqno
    )
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(
            message.signature, PUBSUB_SIGNING_PREFIX.encode() + content.SerializeToString()
        )
    except (InvalidSignature, ValueError):
        return False
    return True


class SeenMessages:
    """Ids of messages that were judged: ``SEEN_MESSAGES`` at most, for ``SEEN_SECONDS``. The oldest is pushed out."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def has(self, key: bytes) -> bool:
        return self._seen.get(key, -SEEN_SECONDS) > self._clock() - SEEN_SECONDS

    def add(self, key: bytes) -> None:
        now = self._clock()
        self._seen.pop(key, None)
        self._seen[key] = now
        while len(self._seen) > SEEN_MESSAGES or next(iter(self._seen.values())) <= now - SEEN_SECONDS:
            self._seen.popitem(last=False)


@dataclass(frozen=True, slots=True)
class _Cached:
    message: rpc_pb2.Message
    since_seconds: float


class MessageCache:
    """Recent accepted messages, for peers that missed them, in at most ``CACHED_BYTES``.

    When it is full, the publisher that holds most bytes loses its oldest message, so that one who publishes much pushes
    out its own. Its methods are those that the library's router calls on its own cache.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._cached: OrderedDict[bytes, _Cached] = OrderedDict()
        self._by_publisher: dict[bytes, deque[bytes]] = {}
        self._bytes: Counter[bytes] = Counter()
        self.total_bytes = 0

    def __len__(self) -> int:
        return len(self._cached)

    def put(self, message: rpc_pb2.Message) -> None:
        key, publisher = message_id(message), bytes(message.from_id)
        if key in self._cached:
            return
        self._cached[key] = _Cached(message, self._clock())
        self._by_publisher.setdefault(publisher, deque()).append(key)
        self._bytes[publisher] += message.ByteSize()
        self.total_bytes += message.ByteSize()
        while self.total_bytes > CACHED_BYTES:
            self._drop(self._by_publisher[max(self._bytes, key=self._bytes.__getitem__)][0])

    def get(self, key: bytes) -> rpc_pb2.Message | None:
        found = self._cached.get(key)
        return None if found is None else found.message

    def window(self, topic: str, *, after_seconds: float = 0.0) -> list[bytes]:
        """Returns the ids that are gossiped now, newest first: of messages cached later than ``after_seconds``."""
        return self._newest(topic, max(after_seconds, self._clock() - GOSSIPED_SECONDS))[:GOSSIPED_IDS]

    def recent(self, topic: str) -> Sequence[rpc_pb2.Message]:
        """Returns all cached messages, oldest first."""
        return [self._cached[key].message for key in reversed(self._newest(topic, self._clock() - CACHED_SECONDS))]

    def shift(self) -> None:
        """Drops what is too old."""
        oldest = self._clock() - CACHED_SECONDS
        while self._cached and next(iter(self._cached.values())).since_seconds <= oldest:
            self._drop(next(iter(self._cached)))

    def _newest(self, topic: str, after_seconds: float) -> list[bytes]:
        found = []
        for key, cached in reversed(self._cached.items()):
            if cached.since_seconds <= after_seconds:
                break
            if topic in cached.message.topicIDs:
                found.append(key)
        return found

    def _drop(self, key: bytes) -> None:
        message = self._cached.pop(key).message
        publisher = bytes(message.from_id)
        self._by_publisher[publisher].popleft()  # a publisher's messages are dropped in the order in which they came
        self._bytes[publisher] -= message.ByteSize()
        self.total_bytes -= message.ByteSize()
        if not self._by_publisher[publisher]:
            del self._by_publisher[publisher], self._bytes[publisher]
