"""What a swarm process is started with: that of a node, or one that is a relay or a donor and has no learner.

It is apart from ``start.py`` because commands that start no node use it, and do without the supervisor's libraries.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from node.configuration import DEFAULT_HOST, DEFAULT_STORE_BYTES, Config, chosen
from node.home import Home
from node.supervision.cluster_setup import credentials_of
from node.tasks.registry import default_manifest_tasks
from node.version import SOFTWARE
from protocol.identity import NodeKey
from protocol.manifest import Manifest
from swarm.cluster.membership import ClusterCredentials
from swarm.settings import ServiceSettings

NAME_END_CHARACTERS: Final = 5  # of the peer id, in a name that was not configured
MODEL_NAME_CHARACTERS: Final = 12  # at most four bytes each: within the 64 bytes of a name


def swarm_settings(home: Home, config: Config, credentials: ClusterCredentials | None = None) -> ServiceSettings:
    """Returns the swarm process's settings. An open swarm is identified by the configured name and the default tasks: a
    node that trains on some of them, or also on tasks of its own, is still a member. A private swarm is that of
    ``credentials``.
    """
    section = config.swarm
    manifest = Manifest(section.name, default_manifest_tasks())
    name, swarm_id, given = section.name, manifest.swarm_id, manifest.encode()
    if credentials is not None:  # its manifest is given in the handshake, and signed
        name, swarm_id, given = credentials.cluster.manifest.name, credentials.cluster.swarm_id, b""
    return ServiceSettings(
        home=str(home.path),
        swarm_name=name,
        swarm_id=swarm_id.hex(),
        manifest=given.hex(),
        private=credentials is not None,
        name=config.name,
        software=SOFTWARE,
        listen=section.listen,
        peers=section.peers,
        lan_discovery=section.lan_discovery,
        port_mapping=section.lan_discovery and section.port_mapping == "auto",
        relay=section.relay,
        store_bytes=chosen(section.store_bytes, DEFAULT_STORE_BYTES),
        upload_bytes_per_second=config.machine.max_upload_bytes_per_second,
        download_bytes_per_second=config.machine.max_download_bytes_per_second,
        heartbeat_seconds=section.heartbeat_seconds,
        mesh_degree=section.mesh_degree,
        host=chosen(section.host, DEFAULT_HOST),
        log_level=config.log_level,
    )


def settings_without_learner(home: Home, config: Config, key: NodeKey, kind: str) -> ServiceSettings:
    """Returns the settings of a relay or a donor: those of a swarm process, with a name that tells what it is."""
    settings = swarm_settings(home, config, credentials_of(home, key))
    return msgspec.structs.replace(
        settings,
        name=config.name or f"{kind}-{key.peer_id[-NAME_END_CHARACTERS:]}",
        log_level="error" if settings.log_level == "info" else settings.log_level,  # its terminal is no log file
    )


def name_for(model: str, peer: str) -> str:
    """Returns the name of a node without a configured one: its model and the end of its peer id."""
    return f"{re.split('[:/]', model.rstrip('/'))[-1][:MODEL_NAME_CHARACTERS]}-{peer[-NAME_END_CHARACTERS:]}"
