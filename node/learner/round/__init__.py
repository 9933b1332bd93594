"""The parts of a round between generating and publishing: scoring, learning, taking back, measuring, reporting."""
