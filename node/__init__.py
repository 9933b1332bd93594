"""One peer: its policy, its tasks, its learner, and the processes around them."""
