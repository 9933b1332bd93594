"""One model in stages over several machines: what it should cost, by arithmetic, and its schedule."""
