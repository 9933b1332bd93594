"""The host on hivemind's Go libp2p daemon ``p2pd``: the only package that starts it and speaks to it."""
