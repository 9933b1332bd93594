"""A private cluster: its files on disk, its handshake, its members."""
