"""Replicas of a small language model whose weights are averaged by one of several rules."""
