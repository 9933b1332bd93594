"""A host on py-libp2p: TCP, Noise, Yamux, GossipSub, Kad-DHT, and what the library lacks or gets wrong."""
