"""A benchmark's process with the environment in which a node starts its learner."""

from __future__ import annotations

import os
import sys

from node.compute_environment import compute_environment


def ensure_compute_environment() -> None:
    """Returns in a process that has ``compute_environment``, and where no model hub is asked.

    torch and transformers read the environment on import. So a process that lacks a variable of it is replaced by one
    that runs the same command. To be called first in ``main``.
    """
    environment = compute_environment({"HF_HUB_OFFLINE": "1", **os.environ})
    if environment != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
