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
from protocol.errors import ConfigurationError, ProtocolError, RefusedError, StorageError, UnreachableError
from protocol.identity import NodeKey
from swarm.cluster.cluster_files import ClusterFiles, cluster_files, has_cluster, read_cluster, read_credentials
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
    """Returns ``given`` if it is an invite, otherwise the content of that file. Raises ``ConfigurationError``."""
    if SCHEME in given.lower():
        return given
    try:
        with Path(given).expanduser().open(encoding="utf-8") as file:
            return file.read(2 * limits.INVITE_CHARACTERS)
    except (OSError, UnicodeDecodeError):
        raise ConfigurationError(
            f"--join takes an invite, which begins with {SCHEME}, or a file that holds one; this is neither"
        ) from None


def ensure_joined(home: Home, config: Config, text: str) -> Joined | None:
    """Joins the cluster of an invite. Returns None if the directory has already joined by this invite.

    Raises ``RefusedError`` if the invite or the cluster does not admit this node, ``UnreachableError`` if no node of
    the cluster answers, ``ConfigurationError`` for a directory of another cluster, ``IdentityError`` for its files.
    """
    files = cluster_files(home.path)
    if _has_joined_by(files, text):
        return None
    invite = read_invite(text, time.time())
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
