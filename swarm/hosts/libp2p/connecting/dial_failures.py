"""The error for a failed dial: the reason, and a remedy where the failure shows one."""

from __future__ import annotations

from libp2p.transport.exceptions import MuxerUpgradeFailure, SecurityUpgradeFailure

from protocol.cluster.refusal import RefusalReason
from protocol.errors import RefusedError, UnreachableError
from swarm.host import Address
from swarm.hosts.libp2p.connecting.upgrading import OtherProtocolError
from swarm.hosts.libp2p.containment import innermost_cause
from swarm.hosts.libp2p.private_network import PrivateNetworkError
from swarm.hosts.libp2p.transport import CONNECTIONS_PER_PEER


def dial_failure(address: Address, error: BaseException) -> UnreachableError:
    """Returns the error for a dial that failed with ``error``; a ``RefusedError`` where a private cluster refused."""
    cause = innermost_cause(error)
    if isinstance(cause, RefusedError):
        return RefusedError(f"{address}: {cause}", cause.reason)
    if isinstance(cause, PrivateNetworkError):
        return RefusedError(
            f"cannot connect to {address}: {cause}. It is in no private cluster or in another one, or the key was "
            "changed: ask the cluster's owner for a new invite",
            RefusalReason.WRONG_PSK,
        )
    greeting = isinstance(error.__cause__, SecurityUpgradeFailure) and not isinstance(cause, OtherProtocolError)
    hint = " (a host of a private cluster, which needs an invite, answers so, as does a full host)" if greeting else ""
    if isinstance(error.__cause__, MuxerUpgradeFailure):
        hint = (
            f" (it closed once it knew this node's key: it has blocked it, or {CONNECTIONS_PER_PEER} connections with "
            "this key are open already, as where two nodes use one key)"
        )
    return UnreachableError(f"cannot connect to {address}: {reason_of(error)}{hint}")


def has_failed_in_handshake(error: BaseException) -> bool:
    """Whether a dial reached a peer and Noise failed there; False for a peer that refuses us or speaks another
    protocol."""
    refusals = (RefusedError, PrivateNetworkError, OtherProtocolError)
    chain: BaseException | None = error
    while chain is not None and not isinstance(chain, SecurityUpgradeFailure):
        chain = chain.__cause__
    return chain is not None and not isinstance(innermost_cause(chain), refusals)


def reason_of(error: BaseException) -> str:
    """Returns what the innermost cause says, or else its name."""
    cause = innermost_cause(error)
    return str(cause) or type(cause).__name__
