"""The events that the learner process reports to the supervisor: on its standard output, one JSON object per line,
tagged by ``event``.

The supervisor writes these lines to ``metrics.jsonl``, one kind of them shortened (``node.api.record.recorded_line``),
and keeps the newest of each kind for the API. A number that does not exist (a loss in a round without an optimizer
step) is null, never NaN. Imports no torch.
"""

from __future__ import annotations

import msgspec

from node.events.engines import DonorShare, DonorsShared, EngineChanged
from node.events.faults import Fault, OutOfMemory
from node.events.input_lines import PAUSE_LINE, STOP_LINE, LearnerStart
from node.events.loading import LearnerReady, Loading, Planned, Stage, StateSyncing
from node.events.rounds import Evaluated, ForeignGroups, GroupOutcome, PhaseBegan, Phases, RoundDone
from node.events.samples import SAMPLE_ANSWERS, SAMPLE_CHARACTERS, SAMPLES_SECONDS, SampledAnswer, SampledGroup, Samples
from node.events.saving import CheckpointSaved, CheckpointsDamaged, DamagedCheckpoint, NotSaved, Stopped
from node.events.surroundings import DeviceUsage, NamedPeer, PeersChanged, Usage
from node.events.weights import Averaged, AveragingTakenBack, StatePublished

__all__ = [
    "PAUSE_LINE",
    "SAMPLES_SECONDS",
    "SAMPLE_ANSWERS",
    "SAMPLE_CHARACTERS",
    "STOP_LINE",
    "Averaged",
    "AveragingTakenBack",
    "CheckpointSaved",
    "CheckpointsDamaged",
    "DamagedCheckpoint",
    "DeviceUsage",
    "DonorShare",
    "DonorsShared",
    "EngineChanged",
    "Evaluated",
    "Event",
    "Fault",
    "ForeignGroups",
    "GroupOutcome",
    "LearnerReady",
    "LearnerStart",
    "Loading",
    "NamedPeer",
    "NotSaved",
    "OutOfMemory",
    "PeersChanged",
    "PhaseBegan",
    "Phases",
    "Planned",
    "RoundDone",
    "SampledAnswer",
    "SampledGroup",
    "Samples",
    "Stage",
    "StatePublished",
    "StateSyncing",
    "Stopped",
    "Usage",
    "decode_event",
    "encode_event",
    "kind_of",
]

Event = (
    Loading
    | Planned
    | PhaseBegan
    | ForeignGroups
    | RoundDone
    | Evaluated
    | Averaged
    | AveragingTakenBack
    | StateSyncing
    | LearnerReady
    | StatePublished
    | CheckpointSaved
    | NotSaved
    | CheckpointsDamaged
    | EngineChanged
    | DonorsShared
    | Fault
    | OutOfMemory
    | Samples
    | Stopped
)

_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_encoder = msgspec.json.Encoder()


def encode_event(event: Event) -> bytes:
    """Returns one line of JSON, without the newline."""
    return _encoder.encode(event)


def decode_event(line: bytes | str) -> Event:
    """Returns the event of a line. Raises ``msgspec.DecodeError`` (``ValidationError`` included) if it holds none."""
    return _decoder.decode(line)


def kind_of(event: Event | PeersChanged | Usage) -> str:
    """Returns the tag of an event's lines, such as "round"."""
    return str(event.__struct_config__.tag)
