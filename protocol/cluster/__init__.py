"""Private clusters: the signed documents, and what they allow. Pure functions of documents and time."""
