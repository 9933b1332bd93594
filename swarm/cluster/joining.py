"""Joining a private cluster: ``python -m swarm.cluster.joining``, once, before the node is started.

Standard input: the JSON of ``JoinSettings``. Standard output: one JSON line, ``{"event": "joined", "cluster": …,
"welcomed_by": …}`` or ``{"event": "refused", "reason": …, "message": …}``. Where a code was given in place of an
invite, the invite is taken first from the member that holds it (``letter_taking``). The addresses of the invite are
dialled until one of them admits the newcomer; a refusal by all of them is final. Exit codes: 0 joined, 69 no member
answers, 77 refused, 1 any other failure. The credentials that the cluster gives are written to the data directory, the
addresses of the invite to ``peers.json``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NoReturn

import anyio
import anyio.to_thread
import msgspec

from protocol.cluster.admission import read_invite, read_manifest
from protocol.cluster.documents import Credential, sign_join
from protocol.cluster.invite import Invite
from protocol.cluster.refusal import AdmissionRefused, RefusalReason, refused_by_peer
from protocol.cluster.spoken_code import is_spoken, read_spoken, secrets_of
from protocol.errors import RefusedError, StarlingError, TransportError, UnreachableError
from protocol.identity import NodeKey
from protocol.streams.handshake_messages import (
    HandshakeAnswer,
    HandshakeGreeting,
    decode_handshake,
    encode_handshake,
)
from swarm.atomic_file import write_atomically
from swarm.cluster.cluster_files import SPOKEN, cluster_files, has_cluster, read_cluster, write_credentials
from swarm.cluster.letter_taking import LetterReader, take_letter
from swarm.cluster.membership import ClusterCredentials, Membership
from swarm.exit_codes import exit_code_of
from swarm.host import HandshakeReply, Host, PeerId
from swarm.hosts.lan import hear
from swarm.hosts.libp2p.libp2p_host import Libp2pHost
from swarm.hosts.unwrapping import unwrapped
from swarm.settings import JoinSettings

DIAL_SECONDS = 10.0
LAN_SECONDS = 3.0  # to hear of members on the local network, if no address of the invite answers

Hear = Callable[[], Awaitable[Sequence[str]]]


class Newcomer:
    """The ``Handshake`` of a host that dials members with an invite and accepts no connections."""

    def __init__(self, key: NodeKey, invite: Invite, *, wall_clock: Callable[[], float]) -> None:
        self.credentials: ClusterCredentials | None = None  # set once the node is a member
        self._key = key
        self._invite = invite
        self._wall_clock = wall_clock
        joined = sign_join(invite.key, key, invitation=invite.document, time_seconds=wall_clock())
        self._credential = Credential("join", joined).encode()

    def keys(self) -> list[bytes]:
        return [self._invite.psk]

    def greet(self, peer: PeerId) -> bytes:
        swarm_id = self._invite.invitation.swarm_id
        return encode_handshake(
            HandshakeGreeting(swarm_id, int(self._wall_clock()), self._credential, 0, 0, wants_manifest=True)
        )

    def answer(self, peer: PeerId, greeting: bytes) -> HandshakeReply:
        raise UnreachableError("this node is still joining, and admits no peer yet")

    def confirm(self, peer: PeerId, conclusion: bytes) -> None:
        raise UnreachableError("this node is still joining, and admits no peer yet")

    def refusal(self, peer: PeerId) -> AdmissionRefused | None:
        return None

    def conclude(self, peer: PeerId, answer: bytes) -> HandshakeReply:
        """Checks the manifest, then continues as every member does."""
        said, now_seconds = decode_handshake(answer, HandshakeAnswer), self._wall_clock()
        if said.refusal is not None or said.documents is None:
            reason = said.refusal.reason if said.refusal is not None else RefusalReason.DAMAGED
            theirs_seconds = said.refusal.time_seconds if said.refusal is not None else now_seconds
            return _no(refused_by_peer(reason, now_seconds, theirs_seconds))
        cluster = read_manifest(self._invite, said.documents.manifest)
        if isinstance(cluster, AdmissionRefused):
            return _no(cluster)
        kept: dict[str, bytes] = {}
        certificate = said.documents.certificate
        credential = Credential("certificate", certificate).encode() if certificate else self._credential
        credentials = ClusterCredentials(cluster, self._invite.psk, credential)
        try:
            membership = Membership(self._key, credentials, wall_clock=self._wall_clock, keep=kept.__setitem__)
        except RefusedError as error:
            return HandshakeReply(b"", error)
        concluded = membership.conclude(peer, answer)
        if concluded.refused is None:
            self.credentials = ClusterCredentials(
                cluster,
                self._invite.psk,
                kept.get("credential", credential),
                kept.get("revocations", b""),
                kept.get("key-change", b""),
                tuple(membership.roster.credentials()),
            )
        return concluded


def _no(refused: AdmissionRefused) -> HandshakeReply:
    return HandshakeReply(b"", RefusedError(refused.message, refused.reason))


async def join(host: Host, addresses: Sequence[str], *, hear: Hear | None = None) -> PeerId:
    """Joins over ``host``, which runs with a ``Newcomer`` as its handshake; returns the member that admitted it.

    ``hear`` returns addresses on the local network. Raises the first ``RefusedError`` if a member refuses and none
    admits the newcomer, ``TransportError`` if no member answers.
    """
    refusal: RefusedError | None = None
    failures: list[str] = []
    for address in addresses:
        try:
            return await host.connect(address, deadline_seconds=DIAL_SECONDS)
        except RefusedError as error:
            refusal = refusal or error
        except TransportError as error:
            failures.append(str(error))
    if refusal is None and hear is not None:
        for address in await hear():
            try:
                return await host.connect(address, deadline_seconds=DIAL_SECONDS)
            except RefusedError as error:  # a peer with another key is in another swarm
                refusal = refusal or (error if error.reason != RefusalReason.WRONG_PSK else None)
            except TransportError as error:
                failures.append(str(error))
    if refusal is not None:
        raise refusal
    tried = "; ".join(failures) or "the invite names no address"
    raise UnreachableError(
        f"no member of the cluster answers at the addresses of the invite ({tried}): make sure that one of those nodes "
        "runs and can be reached, or ask for an invite that names such a node (starling invite --address)"
    )


def main() -> NoReturn:
    try:
        settings = msgspec.json.decode(sys.stdin.buffer.read(), type=JoinSettings)
        with unwrapped():
            said = anyio.run(_run, settings, backend="trio")
    except msgspec.DecodeError as error:
        sys.exit(f"joining cannot use its settings: {error}")
    except StarlingError as error:
        _say({"event": "refused", "reason": error.reason, "message": str(error)})
        sys.exit(exit_code_of(error))
    _say(said)
    sys.exit(0)


async def _run(settings: JoinSettings) -> dict[str, str]:
    home = Path(settings.home)
    key, files = NodeKey.load_or_create(home / "identity.key"), cluster_files(home)

    async def listen() -> Sequence[str]:
        return await anyio.to_thread.run_sync(lambda: hear(LAN_SECONDS, ourselves=key.peer_id))

    hears = listen if settings.lan_discovery else None
    text, lookup = await _letter(settings.invite, key, hears) if is_spoken(settings.invite) else (settings.invite, b"")
    invite = read_invite(text, time.time())
    if isinstance(invite, AdmissionRefused):
        raise RefusedError(invite.message, invite.reason)
    if has_cluster(files) and read_cluster(files).swarm_id != invite.invitation.swarm_id:
        raise RefusedError(
            "this data directory belongs to another private cluster: ask for a new invite, and choose another "
            "directory with --home",
            RefusalReason.WRONG_SWARM,
        )
    newcomer = Newcomer(key, invite, wall_clock=time.time)
    host = Libp2pHost(key, [], handshake=newcomer)
    async with host.run():
        peer = await join(host, invite.addresses, hear=hears)
    if newcomer.credentials is None:
        raise UnreachableError(f"{peer} admitted this node and gave it no credentials")
    write_credentials(files, newcomer.credentials)
    if lookup:
        files.keep(SPOKEN, lookup.hex().encode())
    _remember(home / "peers.json", invite.addresses)
    return {"event": "joined", "cluster": newcomer.credentials.cluster.manifest.name, "welcomed_by": peer}


async def _letter(spoken: str, key: NodeKey, hear: Hear | None) -> tuple[str, bytes]:
    """Returns the text of the invite that a code opens, and the code's lookup, by which it is known again."""
    given = read_spoken(spoken)
    secrets = secrets_of(given.code)
    reader = LetterReader(secrets)
    host = Libp2pHost(key, [], handshake=reader)
    async with host.run():
        text = await take_letter(host, reader, [door for door in given.at.split(",") if door], hear=hear)
    return text, secrets.lookup


def _remember(path: Path, addresses: Sequence[str]) -> None:
    """Adds the addresses of the invite to those that the node dials when it starts."""
    known = msgspec.json.decode(path.read_bytes(), type=list[str]) if path.exists() else []
    write_atomically(path, msgspec.json.encode(list(dict.fromkeys([*addresses, *known]))))


def _say(event: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
