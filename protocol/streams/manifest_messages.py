"""The answer on ``/starling/manifest/1``: the manifest whose hash is an open swarm's id.

    asker → nothing;  other → one frame of ``protocol.streams.framing`` with the manifest's canonical bytes

A peer that was given an address and nothing else learns from it what swarm it met. Bytes with another hash than the
swarm id that it expects are another swarm's, whoever sent them.
"""

from __future__ import annotations

from typing import Final

from protocol.errors import WrongSwarmError
from protocol.manifest import Manifest, decode_manifest
from protocol.streams.framing import framed

MANIFEST_PROTOCOL: Final = "/starling/manifest/1"


def manifest_frame(manifest: Manifest) -> bytes:
    """The frame with which a member answers."""
    return framed(manifest.encode())


def decode_manifest_of(raw: bytes, swarm_id: bytes) -> Manifest:
    """The manifest of the swarm ``swarm_id`` in the body of a frame.

    Raises ``OversizedError``, ``MalformedError``, and ``WrongSwarmError`` if it is another swarm's.
    """
    manifest = decode_manifest(raw)
    if manifest.swarm_id != swarm_id:
        raise WrongSwarmError(f"a manifest of swarm {manifest.swarm_id.hex()}; that of {swarm_id.hex()} was expected")
    return manifest
