"""How an experiment runs: its conditions, its runs in processes of their own, and nodes on a simulated network."""
