"""Blobs: the content store, serving chunks of it, and fetching from many peers at once."""
