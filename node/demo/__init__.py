"""``starling demo``: nodes on this machine learn together, then alone, and the results are compared."""
