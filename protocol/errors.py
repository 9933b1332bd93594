"""The one exception tree of starling.

    StarlingError
    ├── ProtocolError            a peer sent something that must not be used (a peer's failure: data, counted)
    │   ├── OversizedError         over a bound in ``limits``
    │   ├── MalformedError         does not decode, or breaks the schema
    │   ├── SignatureError         not signed by the key that it names
    │   ├── WrongSwarmError        for another swarm
    │   ├── VersionError           another major version of the protocol
    │   ├── UnknownKindError       a kind of announcement that this version does not know
    │   ├── ClockError             outside the window of accepted times
    │   ├── IntegrityError         bytes do not match their hash, or a group does not match its advert
    │   └── StaleBaseError         a weight diff for other weights than those at hand
    ├── TransportError           a peer or the network did not do in time what was asked
    │   ├── UnreachableError       the peer cannot be reached
    │   │   └── RefusedError         the peer answers, and refuses this node
    │   ├── DeadlineError          connected, and silent until the deadline
    │   └── HostEndedError         what carries our connections ended or sent rubbish; a new process starts it again
    ├── StorageError             the data directory: full, unreadable, damaged
    ├── AcceleratorError         the GPU vanished or failed: of no use to this process, perhaps to a new one
    ├── EngineLostError          an engine elsewhere ended, hung, or sent what cannot be; another one is started
    ├── StageLostError           a machine that holds layers ended, hung, or sent what cannot be; another one is awaited
    ├── HalfWrittenError         memory ran out in the middle of changing weights; a new process has whole ones
    ├── IdentityError            the key file: missing where it must exist, unreadable, not ours
    └── ConfigurationError       the user's configuration is not possible
        └── TooLittleMemoryError   it needs more memory than there is, with everything halved that can be

Every message gives the value seen, the limit, and the remedy. ``reason`` is a stable, short name for counters.
"""

from __future__ import annotations


class StarlingError(Exception):
    """Root of everything that starling raises on purpose."""

    reason = "error"


class ProtocolError(StarlingError):
    reason = "protocol"


class OversizedError(ProtocolError):
    reason = "oversized"


class MalformedError(ProtocolError):
    reason = "malformed"


class SignatureError(ProtocolError):
    reason = "signature"


class WrongSwarmError(ProtocolError):
    reason = "wrong_swarm"


class VersionError(ProtocolError):
    reason = "version"


class UnknownKindError(ProtocolError):
    reason = "unknown_kind"


class ClockError(ProtocolError):
    """An announcement's time lies too far from ours; ``offset_seconds`` is that time minus ours."""

    reason = "clock"

    def __init__(self, message: str, offset_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.offset_seconds = offset_seconds


class IntegrityError(ProtocolError):
    reason = "integrity"


class StaleBaseError(ProtocolError):
    reason = "stale_base"


class TransportError(StarlingError):
    reason = "transport"


class UnreachableError(TransportError):
    reason = "unreachable"


class RefusedError(UnreachableError):
    """``why`` is a ``protocol.cluster.refusal.RefusalReason`` where the other end belongs to a private cluster."""

    def __init__(self, message: str, why: str = "refused") -> None:
        super().__init__(message)
        self.reason = why


class DeadlineError(TransportError):
    reason = "deadline"


class HostEndedError(TransportError):
    reason = "host_ended"


class StorageError(StarlingError):
    reason = "storage"


class AcceleratorError(StarlingError):
    reason = "accelerator"


class EngineLostError(StarlingError):
    """An engine elsewhere cannot be used any more; ``why`` is a ``node.engines.process.losses.Loss``."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.reason = why


class StageLostError(StarlingError):
    """``ran_out``: its memory did, so that the same again would end the same."""

    reason = "stage_lost"

    def __init__(self, message: str, *, ran_out: bool = False) -> None:
        super().__init__(message)
        self.ran_out = ran_out


class HalfWrittenError(StarlingError):
    reason = "half_written"


class IdentityError(StarlingError):
    reason = "identity"


class ConfigurationError(StarlingError):
    reason = "configuration"


class TooLittleMemoryError(ConfigurationError):
    reason = "memory"
