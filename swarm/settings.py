"""The settings of the swarm process, read as JSON from its standard input. Unknown fields are refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from protocol import limits
from protocol.errors import ConfigurationError, ProtocolError
from protocol.manifest import Manifest
from protocol.messages import Name
from protocol.streams.manifest_messages import decode_manifest_of


class ServiceSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The node's data directory, its swarm, and the limits of what it may use."""

    home: str  # the data directory; holds identity.key, swarm.sock, swarm.port, blobs/, peers.json, trust.json
    swarm_name: Name
    swarm_id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]  # hex of ``Manifest.swarm_id``
    manifest: str = ""  # hex of the open swarm's manifest, for peers that ask; empty: they get none
    private: bool = False  # the swarm is a private cluster, whose files lie in home/cluster
    name: Name = ""  # the node's display name; the learner's heartbeat replaces it
    software: Name = ""
    listen: str = "/ip4/0.0.0.0/tcp/0"
    peers: tuple[str, ...] = ()  # multiaddrs ending in /p2p/<peer id>
    lan_discovery: bool = True
    port_mapping: bool = False  # ask the router before this machine to open a port, where that can help
    relay: bool = True  # relay for peers that nobody can dial, while this node can be dialled
    store_bytes: Annotated[int, Meta(ge=1 << 20)] = 2 << 30
    upload_bytes_per_second: Annotated[float, Meta(ge=0.0)] = 0.0  # to all peers together, of everything; 0: no limit
    download_bytes_per_second: Annotated[float, Meta(ge=0.0)] = 0.0  # from all peers together; 0: no limit
    heartbeat_seconds: Annotated[float, Meta(gt=0.0)] = 5.0
    mesh_degree: Annotated[int, Meta(ge=1)] = 4
    host: Literal["py", "go"] = "py"  # ``swarm.hosts.libp2p`` or ``swarm.hosts.go``
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def home_path(self) -> Path:
        return Path(self.home)

    @property
    def port_path(self) -> Path:
        """The file with the port at which this node listened last."""
        return self.home_path / "swarm.port"

    @property
    def swarm_id_bytes(self) -> bytes:
        return bytes.fromhex(self.swarm_id)

    def open_manifest(self) -> Manifest | None:
        """The manifest to give to peers that ask. Raises ``ConfigurationError`` unless ``swarm_id`` is its hash."""
        if not self.manifest:
            return None
        try:
            return decode_manifest_of(bytes.fromhex(self.manifest), self.swarm_id_bytes)
        except (ValueError, ProtocolError) as error:
            raise ConfigurationError(f"the swarm process cannot use its manifest: {error}") from error

    @property
    def log_number(self) -> int:
        """The level as a number of ``logging``."""
        return logging.getLevelNamesMapping()[self.log_level.upper()]


class JoinSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of ``swarm.cluster.joining``, on its standard input. The text form does not show the invite."""

    home: str  # the data directory; holds identity.key
    invite: Annotated[str, Meta(max_length=2 * limits.INVITE_CHARACTERS)]  # or CODE@ADDRESS,…, read out to this node
    lan_discovery: bool = True

    def __repr__(self) -> str:
        return f"JoinSettings({self.home!r}, …)"


def decode_settings(line: bytes) -> ServiceSettings:
    """Raises ``ConfigurationError`` that names the field."""
    try:
        return msgspec.json.decode(line, type=ServiceSettings)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"the swarm process cannot use its settings: {error}") from error
