"""Averaging weights with one peer of the same family, now and then, beside learning.

``weight_averager`` decides when to offer weights and applies the result; ``rules`` is the interface of the two ways to
average; ``noloco`` and ``compressed`` are their mathematics.
"""
