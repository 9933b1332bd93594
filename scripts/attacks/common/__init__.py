"""What several attacks use: honest nodes on simulated networks, and the strangers beside them."""
