"""An engine in a process of its own: ``docs/engines.md`` specifies how it is spoken to."""
