"""Environments of many turns: the interface, what is built in, playing and auditing them."""
