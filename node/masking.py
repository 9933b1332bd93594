"""Takes secrets out of text that a user may show to others.

Guarantees: none of the secrets that lie in a data directory is in ``Mask.masked(text)``, written as it is, in
hexadecimal, base58, base64 (also inside of something longer that was encoded as a whole), or as Python shows bytes. Of
secrets that lie elsewhere it takes out what can be told by its looks: invites, bearer tokens, tokens of the hub.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping

from node.home import Home
from protocol import base58
from protocol.errors import StarlingError
from protocol.identity import NodeKey
from swarm.cluster.cluster_files import (
    ClusterFiles,
    cluster_files,
    has_cluster,
    read_cluster,
    read_key_change,
    read_psk,
)

HIDDEN = "[hidden]"
SHORTEST_BYTES = 8  # of a spelling: a shorter one would be found everywhere
SECRET_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "STARLING_JOIN")
_LOOKS = re.compile(
    r"starling://\S+"  # an invite
    r"|(?i:bearer)\s+[\w.~+/=-]+"
    r"|hf_\w{8,}"
    r"|[1-9A-HJ-NP-Za-km-z]{100,}"  # of an invite, cut out of it; peer ids are half as long
)


class Mask:
    """What is to be hidden: every spelling of every secret that was found."""

    def __init__(self, secrets: Iterable[bytes]) -> None:
        spellings = {spelling for secret in secrets for spelling in _spellings(secret)}
        known = sorted((re.escape(each) for each in spellings if len(each) >= SHORTEST_BYTES), key=len, reverse=True)
        self._known = re.compile("|".join(known), re.IGNORECASE) if known else None

    def masked(self, text: str) -> str:
        """``text`` with ``HIDDEN`` in place of each secret."""
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        return _LOOKS.sub(HIDDEN, text)


def secrets_of(home: Home, environment: Mapping[str, str]) -> Iterator[bytes]:
    """Keys of node and owner, the API's token, pre-shared keys, and what the environment holds. A file that is not
    there, or cannot be read, is no secret that could have come into a report."""
    files = cluster_files(home.path)
    for path in (home.key, files.owner_key, home.api_token, files.psk):
        try:
            yield path.read_bytes().strip()
        except OSError:  # not there
            continue
    for path in (home.key, files.owner_key):
        try:
            yield NodeKey.load(path).private_bytes
        except StarlingError:  # its bytes are among the above
            continue
    yield from _pre_shared(files)
    for name in SECRET_VARIABLES:
        yield environment.get(name, "").encode()


def _pre_shared(files: ClusterFiles) -> Iterator[bytes]:
    if not has_cluster(files):
        return
    try:
        yield read_psk(files)
        change = read_key_change(files, read_cluster(files))
    except StarlingError:  # their text is taken out above; what does not decode cannot have been shown decoded
        return
    if change is not None:
        yield change.psk
        yield from (former.psk for former in change.former)


def _spellings(secret: bytes) -> Iterator[str]:
    """Every way to write ``secret`` that a program here could have used."""
    yield secret.decode("latin-1")
    yield secret.decode("utf-8", errors="replace")
    yield repr(secret)[2:-1]
    yield secret.hex()
    yield base58.encode(secret)
    for before in range(3):  # its place among the threes of bytes that base64 writes as fours of characters
        # Characters that hold bits of a neighbour are left out at both ends.
        whole = b64encode(bytes(before) + secret).decode().rstrip("=")
        first, last = -(-8 * before // 6), 8 * (before + len(secret)) // 6
        yield whole[first:last]
        yield whole[first:last].translate(str.maketrans("+/", "-_"))
    if b"\n" in secret:  # a PEM file: its lines by themselves
        for line in secret.splitlines():
            if not line.startswith(b"-----"):
                yield from _spellings(line)
