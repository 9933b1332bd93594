"""The verbs of the command ``starling``, one a file; each imports what it needs when it is called."""
