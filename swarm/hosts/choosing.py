"""Which host a node runs on: py-libp2p, or the Go daemon. A process imports only the one it runs on."""

from __future__ import annotations

from protocol.errors import ConfigurationError
from protocol.identity import NodeKey
from swarm.host import Handshake, Host, LanSwarm
from swarm.hosts.bandwidth import Bandwidth
from swarm.kept_port import listen_again
from swarm.settings import ServiceSettings


def host_for(settings: ServiceSettings, key: NodeKey, handshake: Handshake | None) -> Host:
    """Returns the host that ``settings.host`` names; ``handshake`` is that of a private cluster.

    Raises ``ConfigurationError`` for a private cluster on the Go daemon, which knows neither its pre-shared key nor a
    handshake before the multiplexer, so that anybody could connect; and where the daemon is not installed.
    """
    lan_swarm = None if settings.private else LanSwarm(settings.swarm_id, settings.swarm_name)
    listen = [listen_again(settings.listen, settings.port_path)]
    bandwidth = Bandwidth(settings.upload_bytes_per_second, settings.download_bytes_per_second)
    if settings.host == "go":
        if handshake is not None:
            raise ConfigurationError(
                'swarm.host is "go", which cannot keep strangers out of a private cluster (it has no pre-shared key): '
                'set swarm.host = "py" or leave it out'
            )
        from swarm.hosts.go.go_host import GoHost

        return GoHost(
            key,
            listen,
            home=settings.home_path,
            lan_discovery=settings.lan_discovery,
            lan_swarm=lan_swarm,
            bandwidth=bandwidth,
        )
    from swarm.hosts.libp2p.libp2p_host import Libp2pHost

    return Libp2pHost(
        key,
        listen,
        mesh_degree=settings.mesh_degree,
        lan_discovery=settings.lan_discovery,
        lan_swarm=lan_swarm,
        handshake=handshake,
        bandwidth=bandwidth,
    )
