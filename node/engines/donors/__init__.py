"""Engines of donors: other machines that generate for this learner beside its own engine."""
