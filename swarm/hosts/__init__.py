"""The implementations of ``swarm.host``: ``libp2p`` (py-libp2p on sockets), ``simulated`` (in memory, virtual time).

Both keep the guarantees of ``swarm.host``; one set of conformance tests checks them. trio and py-libp2p are imported
nowhere else. The ``libp2p_*`` modules are the parts of the first; each says what it changes of the library and why. The
``simulated_*`` modules are the parts of the second; ``lan`` and ``network_interfaces`` know the local network.
"""
