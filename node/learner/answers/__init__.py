"""Right answers, own and of peers: remembered, learnt from again, shown to people."""
