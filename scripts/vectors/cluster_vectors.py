"""A private cluster, an invite to it, and credentials with the answers to them."""

from __future__ import annotations

from typing import Any

import msgspec

from protocol.cluster.admission import Admitted, judge_credential
from protocol.cluster.cluster_manifest import Cluster, ClusterManifest, sign_manifest
from protocol.cluster.documents import (
    Certificate,
    Credential,
    Invitation,
    Revocations,
    sign_certificate,
    sign_invitation,
    sign_join,
    sign_revocations,
)
from protocol.cluster.invite import encode_invite
from protocol.identity import NodeKey
from scripts.vectors.plain_values import Json, plain

CLUSTER_MADE = 1_790_000_000
OWNER, INVITATION_KEY, PEER, STRANGER = (NodeKey(bytes([number]) * 32) for number in (1, 2, 3, 4))


def example_cluster() -> Cluster:
    tasks = (("chain_sum", 1, b"\x01" * 16),)
    return sign_manifest(
        OWNER, ClusterManifest("lab", tasks, OWNER.public_bytes, CLUSTER_MADE, "invitation", 8, 7_776_000)
    )


def example_invitation(signer: NodeKey = OWNER, **changes: Any) -> bytes:
    times = (CLUSTER_MADE, CLUSTER_MADE + 3600, CLUSTER_MADE + 604_800)
    invitation = Invitation(example_cluster().swarm_id, INVITATION_KEY.public_bytes, 2, False, *times, "Wren")
    return sign_invitation(signer, msgspec.structs.replace(invitation, **changes))


def judged_credentials(cluster: Cluster) -> list[Json]:
    """Credentials shown by one peer at one time, and what every member must make of them; no other peer is known."""

    def join(at: int = CLUSTER_MADE + 3600, document: bytes | None = None, peer: NodeKey = PEER) -> bytes:
        joined = sign_join(INVITATION_KEY, peer, invitation=document or example_invitation(), time_seconds=at)
        return Credential("join", joined).encode()

    def certificate(signer: NodeKey = OWNER, **changes: Any) -> bytes:
        body = Certificate(
            cluster.swarm_id, PEER.public_bytes, bytes(32), CLUSTER_MADE, CLUSTER_MADE + 7_776_000, "Wren"
        )
        signed = sign_certificate(signer, msgspec.structs.replace(body, **changes))
        return Credential("certificate", signed).encode()

    hour, week = CLUSTER_MADE + 3600, CLUSTER_MADE + 604_800
    revoked = Revocations(cluster.swarm_id, 7, CLUSTER_MADE, (PEER.public_bytes,), ())
    taken_back = Revocations(cluster.swarm_id, 8, CLUSTER_MADE, (), (INVITATION_KEY.public_bytes,))
    cases: list[tuple[str, bytes, int, Revocations | None]] = [
        ("open join", join(), hour, None),
        ("certificate", certificate(), hour, None),
        ("open join, long after its invitation expired", join(), week + 604_800, None),
        (
            "certificate, its invitation taken back",
            certificate(invitation=INVITATION_KEY.public_bytes),
            hour,
            taken_back,
        ),
        ("truncated", join()[:-1], hour, None),
        ("one bit changed", join()[:-1] + bytes([join()[-1] ^ 1]), hour, None),
        ("invitation by another owner", join(document=example_invitation(STRANGER)), hour, None),
        ("certificate by another owner", certificate(STRANGER), hour, None),
        ("shown by another peer", join(peer=STRANGER), hour, None),
        ("another swarm", certificate(swarm_id=bytes(16)), hour, None),
        ("from the future", certificate(made_seconds=hour + 301), hour, None),
        ("joined before the invitation is valid", join(CLUSTER_MADE + 3600 - 301), hour, None),
        ("joined after the invitation expired", join(week), week, None),
        ("membership over", certificate(), CLUSTER_MADE + 7_776_000, None),
        ("revoked", certificate(), hour, revoked),
        ("invitation taken back", join(), hour, taken_back),
        ("needs the owner", join(document=example_invitation(needs_owner=True)), hour, None),
    ]
    vectors = []
    for name, credential, now, revocations in cases:
        answer = judge_credential(now, cluster, revocations, {}, credential, PEER.public_bytes)
        vectors.append(
            {
                "name": name,
                "credential": credential.hex(),
                "now_seconds": now,
                "revocations": sign_revocations(OWNER, revocations).hex() if revocations else None,
                "answer": plain(answer) if isinstance(answer, Admitted) else str(answer.reason),
            }
        )
    return vectors


def membership() -> list[Json]:
    """A cluster, an invite to it, and credentials with the answers to them. Keys are seeds of one repeated byte."""
    cluster = example_cluster()
    psk = bytes(range(100, 132))
    addresses = [f"/ip4/192.0.2.7/tcp/4001/p2p/{PEER.peer_id}", f"/ip6/2001:db8::7/tcp/65535/p2p/{PEER.peer_id}"]
    invite = encode_invite(
        document=example_invitation(), key=INVITATION_KEY, owner=OWNER.public_bytes, psk=psk, addresses=addresses
    )
    return [
        {
            "owner_seed": OWNER.private_bytes.hex(),
            "invitation_seed": INVITATION_KEY.private_bytes.hex(),
            "peer_seed": PEER.private_bytes.hex(),
            "psk": psk.hex(),
            "addresses": addresses,
            "manifest": plain(cluster.manifest),
            "swarm_id": cluster.swarm_id.hex(),
            "manifest_document": cluster.document.hex(),
            "invitation_document": example_invitation().hex(),
            "invite": invite,
            "credentials": judged_credentials(cluster),
        }
    ]
