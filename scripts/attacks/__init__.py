"""Attacks of strangers on a node, each with what it costs the victim: ``python -m scripts.attacks.NAME``."""
