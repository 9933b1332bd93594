"""The lean decoder: transformers' equations without its framework, on a cache that is written in place."""
