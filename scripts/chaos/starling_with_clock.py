"""The command ``starling`` with the stub learner, and with a clock that can be moved in each of its processes."""

# ruff: noqa: E402  the clock is replaced before anything keeps a reference to it
from __future__ import annotations

import sys

from scripts.chaos import clock

clock.install()

from node.cli.main import main
from node.supervision import start

if __name__ == "__main__":
    start.LEARNER_COMMAND = (sys.executable, "-P", "-m", "scripts.chaos.stub_learner")
    start.SWARM_COMMAND = (sys.executable, "-P", "-m", "scripts.chaos.swarm_with_clock")
    main()
