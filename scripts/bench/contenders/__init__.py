"""Other projects that benchmarks compare with, each in a virtual environment of its own.

Modules that run there import nothing of ours which those environments lack.
"""
