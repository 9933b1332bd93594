"""Inputs that a stranger may send, what they are given to, and what each of them costs; ``scripts/attacks/fuzz.py``."""
