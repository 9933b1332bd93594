"""Groups of other nodes: choosing, fetching, checking them."""
