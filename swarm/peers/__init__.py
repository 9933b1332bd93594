"""Peers: how a node discovers, dials, remembers and judges them."""
