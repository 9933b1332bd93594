"""Running out of memory is an event of the round, not its end: ``phases.PhaseRunner`` is what the round uses."""
