"""The learner process: the round, and what it is made of."""
