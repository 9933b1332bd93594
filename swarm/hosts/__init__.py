"""The implementations of ``swarm.host``: ``libp2p`` (py-libp2p on sockets), ``simulated`` (in memory, virtual time).

Both keep the guarantees of ``swarm.host``; one set of conformance tests checks them. trio and py-libp2p are imported
nowhere else. Each module of ``libp2p`` says what it changes of the library and why. ``lan`` and ``network_interfaces``
know the local network.
"""

MAX_BLOCKED_PEERS = 4096  # of one host; above that the earliest is let in again, as another identity it would be too
