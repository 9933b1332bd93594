"""From a data directory and a configuration to a learner that is ready for its first round."""
