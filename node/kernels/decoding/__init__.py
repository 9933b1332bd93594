"""Kernels of the embedded engine's decode step on a GPU."""
