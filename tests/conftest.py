"""For all tests."""

import os

from hypothesis import HealthCheck, settings

os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton: its kernels then run here, on CPU tensors

# The same examples every time, however slow the machine: what CI refuses, everybody can see fail.
settings.register_profile(
    "starling", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("starling")
