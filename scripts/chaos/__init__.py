"""Real nodes on this machine while processes, disks, clocks and network fail, drawn from a seed: ``docs/chaos.md``.

sudo nice python -m scripts.chaos --nodes 24 --minutes 10 --seed 0 [--json]
"""
