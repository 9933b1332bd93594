"""One learner on several devices: every device holds a share of each weight, of its gradient and of its moments.

``model.py`` puts the network in shards. ``devices.py`` divides a batch, and is what an optimizer step asks of them.
"""
