"""Kernels: one reference, a CPU path, a Triton path, one dispatch."""
