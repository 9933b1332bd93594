"""The real learner, which rests after each round, and awaits machines that are away for seconds instead of minutes."""

from __future__ import annotations

import os
import sys
from functools import partial

from node.learner import learner_process
from node.stages.attendance import Attendance
from tests.processes.resting_learner import LEAST_SECONDS, resting

AWAY_SECONDS = 5.0
# A new plan ends sessions, and one of less than 20 s counts as a failure at the machine that lends, which then stays
# away for longer each time.
BETWEEN_PLANS_SECONDS = 21.0

if __name__ == "__main__":
    hasty = partial(Attendance, away_seconds=AWAY_SECONDS, between_plans_seconds=BETWEEN_PLANS_SECONDS)
    for name, stand_in in (("_reporter", resting(learner_process._reporter, LEAST_SECONDS)), ("Attendance", hasty)):
        setattr(learner_process, name, stand_in)
    code = learner_process.main()
    sys.stderr.flush()
    os._exit(code)  # as the learner's own module does
