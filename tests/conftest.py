"""For all tests."""

import os

from hypothesis import settings

os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton: its kernels then run here, on CPU tensors

# The same examples every time, however slow the machine: what CI refuses, everybody can see fail.
settings.register_profile("seeded", derandomize=True, deadline=None, database=None)
settings.load_profile("seeded")
