"""``starling relay``: a peer that only introduces and relays. One process, without torch and without a supervisor."""
