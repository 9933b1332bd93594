"""The swarms that a machine knows, and how a start chooses one by its name. No torch, and no libp2p."""
