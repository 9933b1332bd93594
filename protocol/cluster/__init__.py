"""Private clusters: signed documents, and what they permit. Pure functions of documents and time."""
