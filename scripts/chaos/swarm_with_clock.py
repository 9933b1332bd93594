"""The swarm process as it is, with a clock that can be moved."""

# ruff: noqa: E402  the clock is replaced before anything keeps a reference to it
from __future__ import annotations

from scripts.chaos import clock

clock.install()

from swarm.swarm_process import main

if __name__ == "__main__":
    main()
