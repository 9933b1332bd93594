"""The swarm process as it is, under the conditions that a run sets."""

# ruff: noqa: E402  functions are replaced before anything keeps a reference to them
from __future__ import annotations

from scripts.chaos import conditions

conditions.install()

from swarm.swarm_process import main

if __name__ == "__main__":
    main()
