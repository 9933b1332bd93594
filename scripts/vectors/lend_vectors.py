"""Messages of ``/starling/lend/1``, as fields and as frames, those that must be refused, and a donor's invitation."""

from __future__ import annotations

from typing import Any

import msgspec

from protocol import limits
from protocol.donor_invitation import DonorInvitation, encode_donor_invitation
from protocol.streams import lend_messages as messages
from protocol.streams.framing import framed, framed_message
from scripts.vectors.cluster_vectors import PEER
from scripts.vectors.plain_values import FAMILY, SWARM_ID, Json, pattern, plain

SECRET = bytes(range(32))


def lend_messages() -> list[Json]:
    """The hello, the terms, and every refusal."""
    hello = messages.LendHello(messages.LEND_MAJOR, messages.LEND_MINOR, SECRET, "attic")
    terms = messages.LendTerms("Qwen/Qwen3-0.6B", 16, False, "auto", FAMILY)
    layers = messages.LendTerms("Qwen/Qwen3-0.6B", 16, False, "auto", FAMILY, layers="bfloat16")
    refusals = {f"refused: {reason}": messages.LendRefused(reason, "in words") for reason in messages.LendRefusal}
    return [
        {
            "name": name,
            "kind": message.__struct_config__.tag,
            "fields": plain(message),
            "frame": framed_message(message).hex(),
        }
        for name, message in {"hello": hello, "terms": terms, "terms of layers": layers, **refusals}.items()
    ]


def donor_invitations() -> list[Json]:
    """Invitations with their text, of an open swarm and of a private cluster."""
    address = f"/ip4/192.0.2.7/tcp/4001/p2p/{PEER.peer_id}"
    invitations = (
        DonorInvitation(PEER.peer_id, (address,), "starling", SWARM_ID, SECRET),
        DonorInvitation(PEER.peer_id, (), "lab", SWARM_ID, SECRET, "starling://1…"),
    )
    return [
        {
            "fields": plain(invitation),
            "secret_hash": invitation.secret_hash.hex(),
            "text": encode_donor_invitation(invitation),
        }
        for invitation in invitations
    ]


def refused_lend_messages() -> dict[tuple[str, str, str], bytes]:
    def packed(*values: Any) -> bytes:
        return framed(msgspec.msgpack.encode(values))

    cases = {
        ("hello", "oversized: its length"): (limits.LEND_MESSAGE_BYTES + 1).to_bytes(4, "big"),
        ("hello", "malformed: a secret of 31 bytes"): packed("hello", 1, 0, pattern(31), "attic"),
        ("hello", "malformed: a name of 65 characters"): packed("hello", 1, 0, SECRET, "a" * 65),
        ("hello", "malformed: terms"): packed("terms", "m", 0, False, "auto", FAMILY),
        ("terms", "malformed: a hello"): packed("hello", 1, 0, SECRET, "attic"),
        ("terms", "malformed: a rank below 0"): packed("terms", "m", -1, False, "auto", FAMILY),
        ("terms", "malformed: a model's name that is too long"): packed(
            "terms", "m" * (limits.LEND_TEXT_CHARACTERS + 1), 0, False, "auto", FAMILY
        ),
    }
    return {("lends", expected, name): frame for (expected, name), frame in cases.items()}
