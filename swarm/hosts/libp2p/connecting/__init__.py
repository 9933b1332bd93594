"""Connections of py-libp2p: where a host listens, how it dials, and what runs before a connection stands."""
