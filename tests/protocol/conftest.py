"""What the tests of the protocol share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from protocol.cluster.cluster_manifest import ClusterManifest, sign_manifest
from protocol.cluster.documents import Credential, Invitation, Revocations, sign_invitation, sign_join
from protocol.cluster.invite import encode_invite
from protocol.conversations import Action, beginning_digest, turn_digest
from protocol.identity import NodeKey
from protocol.messages import PromptRef
from protocol.rollouts import Completion, FinishReason, Group

BEGINNING = bytes(range(16))
SPLIT = np.array([1, 1, 2, 1, 1, 0], dtype=np.int64)


@pytest.fixture(scope="session")
def key() -> NodeKey:
    return NodeKey(bytes(range(32)))


@pytest.fixture(scope="session")
def make_completion() -> Callable[..., Completion]:
    """A completion of six tokens, the last one end-of-sequence; keywords replace single fields."""

    def make(**changes: object) -> Completion:
        fields: dict[str, object] = {
            "text": b"So 42.",
            "token_ids": np.array([70_000, 12, 4, 5, 300, 0], dtype=np.int64),
            "token_bytes": np.array([2, 1, 1, 1, 1, 0], dtype=np.int64),
            "logps": np.array([-0.1, -2.0, -0.5, -11.0, -0.001, 0.0], dtype=np.float32),
            "finish": FinishReason.STOP,
            "reward": 1.0,
        }
        return Completion(**(fields | changes))  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def make_group(make_completion: Callable[..., Completion]) -> Callable[..., Group]:
    """A group of the given completions, or of two that differ."""

    def make(*completions: Completion) -> Group:
        several = completions or (make_completion(), make_completion(reward=0.0))
        return Group(PromptRef("chain_sum", 1, b"c" * 16, 42), b"f" * 16, b"t" * 16, 7, several)

    return make


@pytest.fixture(scope="session")
def conversations(make_completion: Callable[..., Completion]) -> Group:
    """Two conversations about one prompt, of two actions and of one."""
    first = turn_digest(BEGINNING, "So", "higher", 0.0, done=False)
    second = turn_digest(first, " 42.", "yes", 1.0, done=True)
    both = make_completion(actions=(Action(2, False, first), Action(4, True, second)), token_bytes=SPLIT)
    one = make_completion(actions=(Action(6, True, second),), reward=0.5)
    ref = PromptRef("guess_number", 1, b"c" * 16, 42)
    return Group(ref, b"f" * 16, b"t" * 16, 7, (both, one), beginning_digest(ref, "0-9:", 0.0))


class Lab:
    """A private cluster whose owner made it, and one invitation, at ``MADE``. Keywords replace single fields."""

    MADE = 1_790_000_000
    OWNER, INVITATION_KEY, PEER, STRANGER = (NodeKey(bytes([number]) * 32) for number in (1, 2, 3, 4))
    PSK = bytes(range(100, 132))
    ADDRESSES = tuple(f"/ip4/192.0.2.{n}/tcp/4001/p2p/{NodeKey(bytes([n]) * 32).peer_id}" for n in (7, 8))

    def manifest(self, **changes: object) -> ClusterManifest:
        fields: dict[str, object] = {
            "name": "lab",
            "tasks": (("chain_sum", 1, b"a" * 16),),
            "owner": self.OWNER.public_bytes,
            "made_seconds": self.MADE,
            "admission": "invitation",
            "members": 8,
            "membership_seconds": 90 * 86_400,
        }
        return ClusterManifest(**(fields | changes))  # type: ignore[arg-type]

    def __init__(self) -> None:
        self.cluster = sign_manifest(self.OWNER, self.manifest())

    def invitation(self, signer: NodeKey = OWNER, **changes: object) -> bytes:
        fields: dict[str, object] = {
            "swarm_id": self.cluster.swarm_id,
            "key": self.INVITATION_KEY.public_bytes,
            "seats": 2,
            "needs_owner": False,
            "made_seconds": self.MADE,
            "valid_from_seconds": self.MADE,
            "join_by_seconds": self.MADE + 7 * 86_400,
            "name": "Wren",
        }
        return sign_invitation(signer, Invitation(**(fields | changes)))  # type: ignore[arg-type]

    def invite(self, document: bytes | None = None, **changes: object) -> str:
        fields: dict[str, object] = {
            "document": document or self.invitation(),
            "key": self.INVITATION_KEY,
            "owner": self.OWNER.public_bytes,
            "psk": self.PSK,
            "addresses": self.ADDRESSES,
        }
        return encode_invite(**(fields | changes))  # type: ignore[arg-type]

    def join(self, peer: NodeKey = PEER, *, at: float = MADE, document: bytes | None = None) -> bytes:
        return sign_join(self.INVITATION_KEY, peer, invitation=document or self.invitation(), time_seconds=at)

    def credential(self, join: bytes) -> bytes:
        return Credential("join", join).encode()

    def revocations(self, *, sequence: int = 1, **changes: object) -> Revocations:
        fields: dict[str, object] = {"peers": (), "invitations": ()}
        return Revocations(self.cluster.swarm_id, sequence, self.MADE, **(fields | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def lab() -> Lab:
    return Lab()
