"""The hosts that the swarm can stand on: ``libp2p`` (py-libp2p on sockets), ``simulated`` (in memory, virtual time).

Both keep the promises of ``swarm.host``, and one set of conformance tests holds them to it. trio and py-libp2p are
imported nowhere else. The ``libp2p_*`` modules are the parts of the first, each saying what it changes of the library
and why; ``simulated_*`` those of the second; ``lan`` and ``interfaces`` know the local network.
"""
