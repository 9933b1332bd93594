"""Removes secrets from text that a user may share.

Guarantees: ``Mask.masked(text)`` holds none of the secrets of a data directory, whether written plainly, in
hexadecimal, base58 or base64 (also inside something longer that was encoded as a whole), or as Python's repr of bytes.
Of secrets from elsewhere it removes those with a recognisable form: invites, bearer tokens, tokens of the hub.
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
MIN_SPELLING_CHARACTERS = 8  # a shorter spelling would occur everywhere
SECRET_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "STARLING_JOIN")
_RECOGNISABLE = re.compile(
    r"starling://\S+"  # an invite
    r"|(?i:bearer)\s+[\w.~+/=-]+"
    r"|hf_\w{8,}"
    r"|[1-9A-HJ-NP-Za-km-z]{100,}"  # a part of an invite; peer ids are half as long
)


class Mask:
    """Hides every spelling of the given secrets."""

    def __init__(self, secrets: Iterable[bytes]) -> None:
        spellings = {spelling for secret in secrets for spelling in _spellings(secret)}
        long_enough = (re.escape(text) for text in spellings if len(text) >= MIN_SPELLING_CHARACTERS)
        known = sorted(long_enough, key=len, reverse=True)
        self._known = re.compile("|".join(known), re.IGNORECASE) if known else None

    def masked(self, text: str) -> str:
        """Returns ``text`` with ``HIDDEN`` in place of each secret."""
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        return _RECOGNISABLE.sub(HIDDEN, text)


def secrets_of(home: Home, environment: Mapping[str, str]) -> Iterator[bytes]:
    """Yields the keys of node and owner, the API token, pre-shared keys, and the secrets in the environment. A file
    that is missing or cannot be read is skipped: its content cannot be in a report."""
    files = cluster_files(home.path)
    for path in (home.key, files.owner_key, home.api_token, files.psk):
        try:
            yield path.read_bytes().strip()
        except OSError:  # missing or unreadable
            continue
    for path in (home.key, files.owner_key):
        try:
            yield NodeKey.load(path).private_bytes
        except StarlingError:  # not a key; the bytes of the file were yielded above
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
    except StarlingError:  # the bytes of the files were yielded above, and no code can have decoded them
        return
    if change is not None:
        yield change.psk
        yield from (former.psk for former in change.former)


def _spellings(secret: bytes) -> Iterator[str]:
    """Yields every way to write ``secret`` that a program here may have used."""
    yield secret.decode("latin-1")
    yield secret.decode("utf-8", errors="replace")
    yield repr(secret)[2:-1]
    yield secret.hex()
    yield base58.to_text(secret)
    for before in range(3):  # its offset in the groups of three bytes that base64 writes as four characters
        # Characters at both ends that also hold bits of a neighbour are left out.
        whole = b64encode(bytes(before) + secret).decode().rstrip("=")
        first, last = -(-8 * before // 6), 8 * (before + len(secret)) // 6
        yield whole[first:last]
        yield whole[first:last].translate(str.maketrans("+/", "-_"))
    if b"\n" in secret:  # a PEM file: also each of its lines
        for line in secret.splitlines():
            if not line.startswith(b"-----"):
                yield from _spellings(line)
