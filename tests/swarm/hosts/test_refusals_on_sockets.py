"""Refusals on real sockets come at once: every deadline of a handshake here is an hour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from protocol.cluster.admission import Admitted, certify
from protocol.cluster.cluster_manifest import Cluster, ClusterManifest, sign_manifest
from protocol.cluster.documents import Credential, Revocations, sign_revocations
from protocol.cluster.refusal import RefusalReason
from protocol.errors import RefusedError
from protocol.identity import NodeKey
from swarm.cluster.membership import ClusterCredentials, Membership
from swarm.exit_codes import ExitCode, exit_code_of
from swarm.hosts.libp2p.libp2p_host import Libp2pHost

NOW = 1_790_000_000.0
HOUR = 3600.0
LASTS_SECONDS = 30 * 86_400
OWNER, US, STRANGER, OTHER_OWNER = (NodeKey(bytes([number]) * 32) for number in (1, 2, 3, 4))
PSK, OTHER_PSK = b"k" * 32, b"K" * 32


def cluster(name: str = "lab", owner: NodeKey = OWNER) -> Cluster:
    made = int(NOW - 60 * 86_400)
    return sign_manifest(owner, ClusterManifest(name, (), owner.public_bytes, made, "invitation", 8, LASTS_SECONDS))


LAB = cluster()


def member(
    key: NodeKey,
    lab: Cluster = LAB,
    *,
    owner: NodeKey = OWNER,
    psk: bytes = PSK,
    ahead_seconds: float = 0.0,
    shown: NodeKey | None = None,
    certified_seconds: float = NOW,
    revocations: bytes = b"",
) -> Membership:
    """One side's membership. It greets with the certificate of ``shown``; its own dates from ``certified_seconds``."""

    def credential(of: NodeKey, made_seconds: float = NOW) -> bytes:
        admitted = Admitted(of.public_bytes, owner.public_bytes, True, 0.0, "")
        return Credential("certificate", certify(owner, lab, admitted, made_seconds)).encode()

    def keep(name: str, content: bytes) -> None:
        assert name != "key-change", "a stranger was given the pre-shared key"

    def clock() -> float:
        return NOW + ahead_seconds

    credentials = ClusterCredentials(lab, psk, credential(key), revocations)
    membership = Membership(key, credentials, wall_clock=clock, keep=keep)
    membership._credential = credential(shown or key, certified_seconds)
    return membership


def taken_out() -> bytes:
    listed = Revocations(LAB.swarm_id, 1, int(NOW), (STRANGER.public_bytes,), ())
    return sign_revocations(OWNER, listed)


STRANGERS: dict[RefusalReason, tuple[Callable[[], Membership], str]] = {
    RefusalReason.WRONG_PSK: (lambda: member(STRANGER, psk=OTHER_PSK), "pre-shared key"),
    RefusalReason.WRONG_SWARM: (lambda: member(STRANGER, cluster("other")), "another cluster"),
    RefusalReason.WRONG_KEY: (lambda: member(STRANGER, shown=US), "made for another key"),
    RefusalReason.EXPIRED: (lambda: member(STRANGER, certified_seconds=NOW - 40 * 86_400), "starling invite"),
    RefusalReason.REVOKED: (lambda: member(STRANGER), "revoked"),
    RefusalReason.CLOCK: (lambda: member(STRANGER, ahead_seconds=HOUR), "timedatectl"),
}


@pytest.fixture(autouse=True)
def _nothing_ends_by_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "cluster.handshake.FRAME_SECONDS",
        "hosts.libp2p.connecting.network.HANDSHAKE_SECONDS",
        "hosts.libp2p.private_network.PROOF_SECONDS",
    ):
        monkeypatch.setattr(f"swarm.{name}", HOUR)


@pytest.mark.parametrize("reason", STRANGERS)
@pytest.mark.parametrize("stranger_dials", [True, False], ids=["dials", "is dialled"])
def test_refusal_reaches_both_sides_without_waiting(
    tell_on_sockets: Any, reason: RefusalReason, stranger_dials: bool
) -> None:
    make, words = STRANGERS[reason]

    async def story(world: Any, tasks: Any) -> None:
        ours = Libp2pHost(US, ["/ip4/127.0.0.1/tcp/0"], handshake=member(US, revocations=taken_out_if(reason)))
        theirs = Libp2pHost(STRANGER, ["/ip4/127.0.0.1/tcp/0"], handshake=make())
        dialling, dialled = (theirs, ours) if stranger_dials else (ours, theirs)
        async with ours.run(), theirs.run():
            with pytest.raises(RefusedError) as refused:
                await dialling.connect(dialled.addresses()[0], deadline_seconds=HOUR)
            assert refused.value.reason == reason
            assert not stranger_dials or words in str(refused.value)
            assert exit_code_of(refused.value) == ExitCode.REFUSED
            await world.eventually(lambda: not ours._meter.open and not theirs._meter.open)
            assert (list(ours.peers()), list(theirs.peers())) == ([], [])

    tell_on_sockets(story)


def taken_out_if(reason: RefusalReason) -> bytes:
    return taken_out() if reason is RefusalReason.REVOKED else b""
