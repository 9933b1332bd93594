"""Attention of training passes on a GPU: completions attend to their prompts by index, and to themselves by length."""
