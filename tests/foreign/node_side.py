"""What the client asks of the node's own swarm process, over its socket: ``python -m tests.foreign.node_side``.

share BYTES HOME                 announces a state whose weights are so many bytes; prints their SHA-256
fetch BLOB BYTES PEER HOME       has the node fetch a blob from a peer; prints the SHA-256 of what came
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from random import Random

from protocol.blob_id import blob_id
from protocol.messages import StateAdvert, StateBlob
from swarm.api import Wanted
from swarm.client import SwarmClient

FETCH_SECONDS = 60.0


def share(client: SwarmClient, size: int) -> bytes:
    content = Random(size).randbytes(size)
    blob = client.put(content)
    assert blob == blob_id(content)
    client.share_state(StateAdvert(b"\x01" * 16, b"\x02" * 16, 1, 0, (), StateBlob(blob, size, b"\x03" * 32), ()))
    return content


def fetch(client: SwarmClient, blob: bytes, size: int, peer: str) -> bytes:
    (fetched,) = client.fetch([Wanted(blob, size, (peer,))], deadline_seconds=FETCH_SECONDS)
    if not fetched.is_here:
        raise SystemExit(f"the node did not get the blob: {fetched.reason}")
    return fetched.read()


def main() -> None:
    verb, *arguments, home = sys.argv[1:]
    with SwarmClient(Path(home) / "swarm.sock") as client:
        if verb == "share":
            content = share(client, int(arguments[0]))
        else:
            content = fetch(client, bytes.fromhex(arguments[0]), int(arguments[1]), arguments[2])
    print(hashlib.sha256(content).hexdigest())


if __name__ == "__main__":
    main()
