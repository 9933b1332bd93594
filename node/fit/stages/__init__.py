"""Which layers each of several machines holds, and what a round takes then. No torch."""
