"""The shortest run of ``scripts/chaos``: three nodes; one of each process is killed, a clock moves, a process stops,
one gets no memory, and name servers lie."""

from __future__ import annotations

import pytest

from scripts.chaos.chaos_run import ChaosRun
from scripts.chaos.conditions import Lie
from scripts.chaos.disturbances import Disturbance, Kind

pytestmark = pytest.mark.processes

DISTURBANCES = (
    Disturbance(0.0, 3.0, Kind.CLOCK, (0,), 3600.0),
    Disturbance(0.0, 0.0, Kind.KILL_LEARNER, (1,)),
    Disturbance(0.0, 4.0, Kind.NO_MEMORY_SWARM, (1,)),
    Disturbance(0.0, 4.0, Kind.NAMES, (2,), Lie.ANOTHER_NODE),
    Disturbance(0.0, 0.0, Kind.KILL_SWARM, (2,)),
    Disturbance(1.0, 3.0, Kind.STOP_SWARM, (0,)),
    Disturbance(4.0, 4.0, Kind.KILL_SUPERVISOR, (0,)),
)


def test_nodes_whose_processes_die_and_stop_lose_nothing_and_become_one_swarm_again() -> None:
    chaos = ChaosRun(3, seed=0, aloud=False)
    chaos.run(0.1, DISTURBANCES)
    assert chaos.violations == []
    assert chaos.done == {each.kind: 1 for each in DISTURBANCES}
    assert sum(node.starts for node in chaos.members) == 4
    assert chaos.due_to_be_told == 2  # the killed learner and the killed swarm process
