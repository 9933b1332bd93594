"""``starling demo``: nodes on this machine that learn together and alone."""
