"""A private cluster: its documents on disk, its handshake, its members."""
