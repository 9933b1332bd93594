"""Getting it there: peers, gossip, blobs. anyio only; trio and libp2p appear in ``swarm.hosts`` alone. No torch."""
