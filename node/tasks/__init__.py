"""Tasks: prompts that any node can regenerate, and rewards that any node can recompute.

``task`` is the interface; ``default_swarm``, ``jsonl`` and ``plugins`` bring tasks; ``registry`` collects those that
are configured; ``scorer`` computes rewards in ``worker`` processes. Plug-ins import ``starling.plugins``.
"""
