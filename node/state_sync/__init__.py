"""Starting from the weights of peers, and handing one's own to others."""
