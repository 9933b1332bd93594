"""What a run is between rounds: its state, checkpoints, and where it goes on from."""
