"""What training a model takes in memory, and the settings that make it fit this machine. Imports no torch."""
