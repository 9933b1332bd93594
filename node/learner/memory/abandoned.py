"""A wait that ends because the learner is asked to stop. No torch."""

from __future__ import annotations


class WaitAbandoned(Exception):
    """The learner was asked to stop while it waited, for memory or for machines. The round is not done."""
