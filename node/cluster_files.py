"""The files of a private cluster in a data directory, each mode 0600 and checked whenever it is read.

    cluster/manifest   the signed manifest: no secret, the same on every member
    cluster/psk        the pre-shared key in hexadecimal: what every member holds
    cluster/owner.key  the owner's key: on the machine that founded the cluster, or wherever its owner keeps it

A cluster is founded once: nothing here replaces a file that is there.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from protocol import limits
from protocol.cluster import Cluster, ClusterManifest, open_manifest, sign_manifest
from protocol.errors import ConfigurationError, IdentityError, ProtocolError, StorageError
from protocol.identity import NodeKey
from protocol.invite import PSK_BYTES

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class ClusterFiles:
    """Paths of one cluster; ``owner_key`` may lie elsewhere."""

    directory: Path
    owner_key: Path

    @property
    def manifest(self) -> Path:
        return self.directory / "manifest"

    @property
    def psk(self) -> Path:
        return self.directory / "psk"


def cluster_files(home: Path, owner_key: Path | None = None) -> ClusterFiles:
    """The cluster of a data directory."""
    return ClusterFiles(home / "cluster", owner_key or home / "cluster" / "owner.key")


def found_cluster(files: ClusterFiles, manifest: ClusterManifest, *, owner: NodeKey, psk: bytes) -> Cluster:
    """Signs the manifest and writes it beside the pre-shared key. Raises ``ConfigurationError`` where one is."""
    for path in (files.manifest, files.psk):
        if path.exists():
            raise ConfigurationError(
                f"there is a cluster at {files.directory} already (starling swarm show); found another one elsewhere "
                "with --home, or move that directory away"
            )
    cluster = sign_manifest(owner, manifest)
    _write(files.psk, psk.hex().encode())
    _write(files.manifest, cluster.document)
    return cluster


def read_cluster(files: ClusterFiles) -> Cluster:
    """Raises ``ConfigurationError`` where there is none, ``IdentityError`` for a file that cannot be used."""
    raw = _read(files.manifest)
    try:
        return open_manifest(raw)
    except ProtocolError as error:
        raise IdentityError(
            f"{files.manifest} is damaged ({error}); restore it from a backup or another member"
        ) from error


def read_psk(files: ClusterFiles) -> bytes:
    """The pre-shared key. Raises as ``read_cluster``; no error repeats the file's content."""
    try:
        psk = bytes.fromhex(_read(files.psk).decode("ascii"))
    except ValueError:
        psk = b""
    if len(psk) != PSK_BYTES:
        raise IdentityError(f"{files.psk} holds no pre-shared key ({2 * PSK_BYTES} hexadecimal digits); restore it")
    return psk


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(limits.MANIFEST_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"no private cluster here: there is no {path}; found one with starling swarm create --private --name NAME"
        ) from error
    except OSError as error:
        raise IdentityError(f"{path} cannot be read ({error.strerror}); make it this user's own file") from error
    if mode & _OTHERS:
        raise IdentityError(
            f"{path} has mode {stat.S_IMODE(mode):04o}, so that others may read or change it; if you trust that nobody "
            f"did: chmod 600 {path}"
        )
    return content


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written ({error.strerror}); choose another directory with --home"
        ) from error
