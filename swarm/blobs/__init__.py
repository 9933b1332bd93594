"""Blobs: the content store, serving its chunks to peers, and fetching blobs from many peers at once."""
