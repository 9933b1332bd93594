"""For all tests."""

import os

os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton: its kernels then run here, on CPU tensors
