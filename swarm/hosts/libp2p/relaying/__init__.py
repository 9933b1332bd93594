"""Connections through a relay: libp2p's circuit v2, both as relay and as a host that is reached through one."""
