"""Starting a node and keeping it up: the supervisor, its children, their restarts."""
