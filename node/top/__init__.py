"""``starling top``: the terminal interface."""
