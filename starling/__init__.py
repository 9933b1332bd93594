"""The public surface of starling for other packages is ``starling.plugins``; the rest may change in any version."""
