"""Transport: peers, gossip, blobs, averaging. On anyio; trio and libp2p appear in ``swarm.hosts`` alone. No torch."""
