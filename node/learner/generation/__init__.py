"""Own rollouts: generating, scheduling, sharing, and new weights for the engine."""
