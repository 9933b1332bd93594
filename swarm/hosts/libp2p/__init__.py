"""A host on py-libp2p: TCP, Noise, Yamux, GossipSub, Kad-DHT, and what the library lacks or gets wrong.

The library imports all of itself, and with it QUIC, WebSocket, TLS certificates over HTTP, mDNS, metrics and every kind
of key. A host here uses none of these, or for few peers. They are imported once they are used: 33 MB of a process.
"""

from swarm.deferred_imports import deferred

RARELY_USED = (
    "Crypto",  # keys of RSA, and the cipher of private clusters
    "aioquic",
    "cbor2",  # IPNS records of the DHT
    "coincurve",  # keys of secp256k1
    "dns",
    "libp2p.discovery.bootstrap",  # the library's own; ``swarm.peers`` does this here
    "libp2p.discovery.mdns",
    "libp2p.discovery.upnp",
    "libp2p.peer.persistent",  # peers in databases
    "libp2p.security.secio",
    "libp2p.security.tls.autotls",
    "libp2p.transport.quic.connection",
    "libp2p.transport.quic.listener",
    "libp2p.transport.quic.transport",
    "libp2p.transport.websocket",
    "prometheus_client",
    "psutil",
)

with deferred(RARELY_USED):
    import libp2p.kad_dht.kad_dht
    import libp2p.pubsub.gossipsub
    import libp2p.security.pnet.psk_conn  # noqa: F401
