"""The environments that are built in."""
