"""Bounds on one RPC of GossipSub, checked on its bytes before protobuf makes an object of any of them.

Protobuf makes an object for every message, id and subscription that a peer names: 1 MiB holds half a million of them.
``rpc_refusal`` walks the bytes once, without recursion and without a copy, and stops at the first bound that they
break; it takes about a microsecond a field, and there are at most ``limits.GOSSIP_RPC_FIELDS``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from protocol import limits

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5  # wire types; 3 and 4 are groups, which no RPC has
_VARINT_BYTES = 10  # of the longest number, 64 bits


class RpcRefusal(StrEnum):
    """Why an RPC is not read; no honest peer sends one like it."""

    OVERSIZED = "rpc_oversized"  # more than ``limits.GOSSIP_RPC_BYTES``
    MALFORMED = "rpc_malformed"  # does not decode
    FIELDS = "rpc_fields"  # too many fields of any kind, known or not
    MESSAGES = "rpc_messages"
    SUBSCRIPTIONS = "rpc_subscriptions"
    CONTROLS = "rpc_controls"  # IHAVE, IWANT, GRAFT, PRUNE and the others together
    MUTED = "rpc_muted"  # from a peer that goes on sending while nothing of it is read
    IDS = "rpc_ids"  # ids of messages and of peers, topics of a message


@dataclass(frozen=True, slots=True)
class _Layout:
    """The fields of a kind of message, by number: what each counts as, and the layout of what is within it."""

    counts: dict[int, RpcRefusal] = field(default_factory=dict)
    nested: dict[int, _Layout] = field(default_factory=dict)


_CONTROL: Final = _Layout(
    counts=dict.fromkeys(range(1, 9), RpcRefusal.CONTROLS),
    nested={
        1: _Layout({2: RpcRefusal.IDS}),  # IHAVE
        2: _Layout({1: RpcRefusal.IDS}),  # IWANT
        4: _Layout({2: RpcRefusal.IDS}),  # PRUNE: peers to connect to
        5: _Layout({1: RpcRefusal.IDS}),  # IDONTWANT
    },
)
_RPC: Final = _Layout(
    counts={1: RpcRefusal.SUBSCRIPTIONS, 2: RpcRefusal.MESSAGES, 3: RpcRefusal.CONTROLS},
    nested={1: _Layout(), 2: _Layout({4: RpcRefusal.IDS}), 3: _CONTROL},
)


def rpc_refusal(raw: bytes) -> RpcRefusal | None:
    """Returns the first bound that the bytes of an RPC break, or None if they keep all of them."""
    if len(raw) > limits.GOSSIP_RPC_BYTES:
        return RpcRefusal.OVERSIZED
    fields_left = limits.GOSSIP_RPC_FIELDS
    left = {
        RpcRefusal.MESSAGES: limits.GOSSIP_RPC_MESSAGES,
        RpcRefusal.SUBSCRIPTIONS: limits.GOSSIP_RPC_SUBSCRIPTIONS,
        RpcRefusal.CONTROLS: limits.GOSSIP_RPC_CONTROLS,
        RpcRefusal.IDS: limits.GOSSIP_RPC_IDS,
    }
    position, end, layout = 0, len(raw), _RPC
    outer: list[tuple[int, _Layout]] = []
    while True:
        while position == end:
            if not outer:
                return None
            end, layout = outer.pop()
        tag, position = _varint(raw, position, end)
        number, wire_type = tag >> 3, tag & 7
        length, position = _length(raw, position, end, wire_type)
        if length < 0 or length > end - position or not number:
            return RpcRefusal.MALFORMED
        fields_left -= 1
        if fields_left < 0:
            return RpcRefusal.FIELDS
        counted = layout.counts.get(number)
        if counted is not None:
            left[counted] -= 1
            if left[counted] < 0:
                return counted
        if wire_type == _BYTES and number in layout.nested:
            outer.append((end, layout))
            end, layout = position + length, layout.nested[number]
        else:
            position += length


def _length(raw: bytes, position: int, end: int, wire_type: int) -> tuple[int, int]:
    """Returns how many bytes a value takes, -1 if there is no such value, and where they begin."""
    if wire_type == _BYTES:
        return _varint(raw, position, end)
    if wire_type == _VARINT:
        value, after = _varint(raw, position, end)
        return (-1 if value < 0 else 0), after
    return {_FIXED_64: 8, _FIXED_32: 4}.get(wire_type, -1), position


def _varint(raw: bytes, position: int, end: int) -> tuple[int, int]:
    """Returns the number at ``position`` and the position after it; -1 if none ends before ``end``."""
    value = 0
    for shift in range(0, 7 * min(_VARINT_BYTES, end - position), 7):
        byte = raw[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    return -1, position
