"""What two connected peers send each other: one module for each stream protocol, and one for the handshake."""
