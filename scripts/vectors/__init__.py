"""The values of the test vectors; ``scripts/make_vectors.py`` writes them."""
