"""``starling up --join``: makes the data directory a member of a private cluster before the node is started.

A separate process does the work (``swarm.cluster.joining``), since the supervisor does not import libp2p. A directory
that has already joined by this invite is left as it is, so that a unit file or a compose file may keep the invite.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from node.compute_environment import compute_environment
from node.configuration import Config
from node.home import Home
from node.printable import printable
from protocol import limits
from protocol.cluster.admission import judge_as_made, read_invite
from protocol.cluster.invite import SCHEME, decode_invite
from protocol.cluster.refusal import AdmissionRefused
from protocol.cluster.spoken_code import is_spoken, read_spoken, secrets_of
from protocol.errors import (
    ConfigurationError,
    MalformedError,
    ProtocolError,
    RefusedError,
    StorageError,
    UnreachableError,
)
from protocol.identity import NodeKey
from swarm.cluster.cluster_files import SPOKEN, ClusterFiles, cluster_files, has_cluster, read_cluster, read_credentials
from swarm.cluster.membership import ClusterCredentials, Membership
from swarm.exit_codes import ExitCode
from swarm.settings import JoinSettings

MESSAGE_CHARACTERS = 2000


class Joined(msgspec.Struct, frozen=True, tag_field="event", tag="joined"):
    cluster: str
    welcomed_by: str


class NotJoined(msgspec.Struct, frozen=True, tag_field="event", tag="refused"):
    reason: str
    message: str


def invite_text(given: str) -> str:
    """Returns ``given`` if it is an invite or a code that was read out, otherwise the content of that file. Raises
    ``ConfigurationError``, for a mistyped code too."""
    text = given
    try:
        if SCHEME not in given.lower() and not is_spoken(given):
            with Path(given).expanduser().open(encoding="utf-8") as file:
                text = file.read(2 * limits.INVITE_CHARACTERS)
        return read_spoken(text).text if is_spoken(text) else text
    except MalformedError as error:
        raise ConfigurationError(f"the code cannot be used: {error}") from None
    except (OSError, UnicodeDecodeError):
        raise ConfigurationError(
            f"--join takes an invite, which begins with {SCHEME}, a file that holds one, or CODE@ADDRESS as it was "
            "read out; this is none of them"
        ) from None


def ensure_joined(home: Home, config: Config, text: str) -> Joined | None:
    """Joins the cluster of an invite, or of the one that a code opens, CODE@ADDRESS,…. Returns None if the directory
    has already joined by it.

    Raises ``RefusedError`` if the invite or the cluster does not admit this node, ``UnreachableError`` if no node of
    the cluster answers, ``ConfigurationError`` for a directory of another cluster, ``IdentityError`` for its files.
    """
    files = cluster_files(home.path)
    if _has_joined_by(files, text):
        return None
    invite = None if is_spoken(text) else read_invite(text, time.time())
    if isinstance(invite, AdmissionRefused):
        raise _not_let_in(invite.reason, invite.message)
    settings = JoinSettings(str(home.path), text, config.swarm.lan_discovery)
    done = subprocess.run(
        (sys.executable, "-P", "-m", "swarm.cluster.joining"),
        input=msgspec.json.encode(settings),
        capture_output=True,
        env=compute_environment(os.environ),
        check=False,
    )
    try:
        reply = msgspec.json.decode(done.stdout, type=Joined | NotJoined)
    except msgspec.DecodeError:
        last = printable(done.stderr.decode(errors="replace").strip().rpartition("\n")[2])
        raise UnreachableError(f"joining failed with exit code {done.returncode}: {last}") from None
    if isinstance(reply, Joined):
        return reply
    message = printable(reply.message, MESSAGE_CHARACTERS)
    if done.returncode == ExitCode.REFUSED:
        raise _not_let_in(reply.reason, message)
    raise UnreachableError(message) if done.returncode == ExitCode.UNREACHABLE else StorageError(message)


def credentials_of(home: Home, key: NodeKey) -> ClusterCredentials | None:
    """Returns the credentials of the private cluster that the directory belongs to, None if it belongs to none.

    Raises ``RefusedError`` if the credentials show that the node is no longer a member, ``IdentityError`` for files
    that cannot be used.
    """
    files = cluster_files(home.path)
    if not has_cluster(files):
        return None
    credentials = read_credentials(files)
    owner = NodeKey.load(files.owner_key) if files.owner_key.exists() else None
    try:
        Membership(key, credentials, wall_clock=time.time, keep=lambda name, content: None, owner=owner)
    except RefusedError as error:
        raise _not_let_in(error.reason, str(error)) from None
    return credentials


def _has_joined_by(files: ClusterFiles, text: str) -> bool:
    if not has_cluster(files):
        return False
    if is_spoken(text):
        used = files.directory / SPOKEN
        return used.exists() and used.read_bytes() == secrets_of(read_spoken(text).code).lookup.hex().encode()
    try:
        invite = decode_invite(text)
    except ProtocolError:
        return False  # ``read_invite`` reports the reason
    cluster = read_cluster(files)
    if cluster.swarm_id != invite.invitation.swarm_id:
        raise ConfigurationError(
            f"this data directory belongs to the private cluster {printable(cluster.manifest.name)}, and the invite is "
            "of another one: choose another directory with --home"
        )
    admitted = judge_as_made(time.time(), cluster, None, {}, read_credentials(files).credential)
    return not isinstance(admitted, AdmissionRefused) and admitted.invitation == invite.invitation.key


def _not_let_in(reason: str, message: str) -> RefusedError:
    return RefusedError(f"not let in ({reason}): {message}", reason)
