"""What peers send each other of their weights: sparse updates, diffs, slices, and their layout. Reference codecs."""
