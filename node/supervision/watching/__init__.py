"""What the supervisor looks at while its processes run: the swarm process, the learner's events, memory and devices."""
