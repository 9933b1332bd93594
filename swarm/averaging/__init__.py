"""Averaging weights with one peer of the same family: finds a partner, exchanges, and judges what it offers."""
