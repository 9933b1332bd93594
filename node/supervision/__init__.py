"""Starting a node and keeping it up: the supervisor, its children, their restarts.

From ``starling up`` to the optimizer's step: ``node/cli/verbs/up.py`` → ``start.py`` (``run_node``) → the learner
process, ``node/learner/learner_process.py`` → ``loop.py`` (``Learner.round``) → ``step.py`` (``optimizer_steps``).
"""
