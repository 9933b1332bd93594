"""Evaluating a policy on prompts that never change."""
