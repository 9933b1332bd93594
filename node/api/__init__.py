"""The HTTP API of a node, its metrics and its web page."""
