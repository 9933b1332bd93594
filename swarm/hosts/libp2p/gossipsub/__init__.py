"""GossipSub with verdicts, on py-libp2p's router. ``pubsub`` says what differs from the library, and why."""
