"""Averaging weights with one peer of the same family."""
