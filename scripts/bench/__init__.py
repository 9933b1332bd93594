"""Benchmarks: every module of this folder is a command; ``--json`` prints one JSON object (``common/reporting.py``)."""
