"""Guesses of the next tokens, from answers sampled before, which the model verifies several at a time."""
