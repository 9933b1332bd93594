"""The command ``starling`` with the stub learner, in each of its processes under the conditions that a run sets."""

# ruff: noqa: E402  functions are replaced before anything keeps a reference to them
from __future__ import annotations

import sys

from scripts.chaos import conditions

conditions.install()

from node.cli.main import main
from node.supervision import start

if __name__ == "__main__":
    start.LEARNER_COMMAND = (sys.executable, "-P", "-m", "scripts.chaos.stub_learner")
    start.SWARM_COMMAND = (sys.executable, "-P", "-m", "scripts.chaos.swarm_under_conditions")
    main()
