"""Generation engines: the interface (``engine``), the embedded one (``torch``), and the decoders that it drives."""
