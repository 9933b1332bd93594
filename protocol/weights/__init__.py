"""The forms in which peers send weights: sparse updates, diffs, slices, and their layout. Reference codecs."""
