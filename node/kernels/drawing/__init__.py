"""Tokens drawn from logits by random numbers that belong to a completion, not to a place in a batch."""
