"""Peers: discovering, dialling, remembering and judging them."""
