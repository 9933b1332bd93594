"""Averaging weights with one peer of the same family: finding a partner, exchanging, judging what it offers."""
