"""``starling lend``: a machine that generates for an owner who invited it. Its own process imports no torch."""
