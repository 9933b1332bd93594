"""Evaluating a policy on fixed prompts."""
