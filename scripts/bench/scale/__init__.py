"""A swarm of simulated nodes: how they start, what they do, what disturbs them, what is counted; ``swarm_scale.py``."""
