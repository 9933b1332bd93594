"""State sync: starting from weights that peers announce, and announcing one's own for peers that join or return.

``start_from_peers`` is what the learner calls; ``adoption`` looks, fetches and adopts, ``state_choice`` chooses,
``rebuild`` verifies; ``publishing`` announces.
"""
